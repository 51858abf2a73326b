//! Sparse payloads: a few entries of a gradient, and what a device does with them.

mod device;
mod index;
mod lazy;
mod passes;
mod payload;
mod select;

pub use index::IndexFormat;
pub use lazy::LazyResidual;
pub use payload::{SparseHeader, SparsePayload, ValueFormat};
