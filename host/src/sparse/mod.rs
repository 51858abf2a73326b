//! Sparse payloads: a few entries of a gradient, and what a device does with them.

#[cfg(feature = "wgpu")]
mod asynchronous;
mod device;
#[cfg_attr(
    not(any(feature = "cuda", feature = "wgpu")),
    allow(dead_code, reason = "it is the GPU backends that take pieces")
)]
mod embed;
mod index;
mod lazy;
mod passes;
mod payload;
mod select;
mod selection;
mod settle;

pub use embed::{ScatterBuffers, SelectBuffers};
pub use index::IndexFormat;
pub use lazy::LazyResidual;
pub use payload::{SparseHeader, SparsePayload, ValueFormat};
pub use selection::Selection;
