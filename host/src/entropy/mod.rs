//! An entropy stage behind a finished payload: codes of fixed width, packed as Elias codes or in base 3, and back.

pub(crate) mod engine;
pub(crate) mod packing;
pub(crate) mod passes;

pub(crate) use engine::{PAYLOAD, Packed, Packs, pack, unpack};
pub use packing::Packing;
