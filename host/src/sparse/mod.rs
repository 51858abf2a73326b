//! Sparse payloads: a few entries of a gradient, and what a device does with them.

mod device;
mod embed;
mod index;
mod lazy;
mod passes;
mod payload;
mod select;
mod selection;

pub(crate) use device::little_endian;
pub use embed::{ScatterBuffers, SelectBuffers};
pub use index::IndexFormat;
pub use lazy::LazyResidual;
pub use payload::{SparseHeader, SparsePayload, ValueFormat};
pub use selection::Selection;
