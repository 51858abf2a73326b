//! An entropy stage behind a finished payload: codes of fixed width, packed as Elias codes, and back.

#[cfg(feature = "wgpu")]
mod asynchronous;
mod device;
mod engine;
mod packing;
mod passes;
pub(crate) mod table;

pub(crate) use engine::{Entropy, pack, unpack};
pub use packing::Packing;
