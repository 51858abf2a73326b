//! An entropy stage behind a finished payload: codes of fixed width, packed as Elias codes, and back.

mod device;
mod engine;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod passes;
pub(crate) mod table;

pub(crate) use engine::{Entropy, pack, unpack};
