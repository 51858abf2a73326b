//! An entropy stage behind a finished payload: codes of fixed width, packed as Elias codes or in base 3, and back.

#[cfg(feature = "wgpu")]
mod asynchronous;
mod device;
mod engine;
mod packing;
mod passes;
pub(crate) mod table;

pub(crate) use engine::{Packs, pack, unpack};
pub use packing::Packing;
pub use table::Entropy;
