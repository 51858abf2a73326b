//! Sparse payloads: a few entries of a gradient, and what a device does with them.

mod device;
mod index;
mod passes;
mod payload;
mod select;

pub(crate) use device::little_endian;
pub use index::IndexFormat;
pub use payload::{SparseHeader, SparsePayload, ValueFormat};
