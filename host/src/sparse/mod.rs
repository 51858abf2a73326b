//! Sparse payloads: a few entries of a gradient, and what a device does with them.

#[cfg(feature = "wgpu")]
mod asynchronous;
mod device;
mod embed;
mod engine;
mod estimate;
mod index;
mod lazy;
mod passes;
mod payload;
mod select;
mod selection;
mod settle;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod steps;

pub use embed::{Scan, ScanBuffers, Scatter, ScatterBuffers, Select, SelectBuffers, Settle, SettleBuffers};
pub(crate) use engine::Sparse;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use estimate::Measure;
pub use index::IndexFormat;
pub use lazy::LazyResidual;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use passes::scan_passes;
pub use payload::{SparseHeader, SparsePayload, ValueFormat};
pub use selection::Selection;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use steps::{Put, Selected, SparseSteps, sparse_values};
