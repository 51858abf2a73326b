//! Sparse payloads: a few entries of a gradient, and the passes that select and scatter them.

pub(crate) mod entries;
pub(crate) mod estimate;
pub(crate) mod index;
pub(crate) mod lazy;
pub(crate) mod passes;
pub(crate) mod payload;
pub(crate) mod select;
pub(crate) mod selection;
pub(crate) mod settle;
pub(crate) mod values;

pub(crate) use entries::{ENTRIES, Entries, STATISTICS, Source};
pub use lazy::LazyResidual;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use passes::scan_passes;
pub use payload::SparsePayload;
pub use selection::Selection;
