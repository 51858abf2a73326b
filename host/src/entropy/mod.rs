//! An entropy stage after a finished payload: codes of fixed width, packed as Elias codes or in base 3, and back.

pub(crate) mod packing;
pub(crate) mod passes;
pub(crate) mod payload;

pub use packing::Packing;
pub(crate) use passes::Layout;
