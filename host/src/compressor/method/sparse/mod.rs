//! Entries are selected, from all tensors of the group at once.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod device;
mod host;
mod segments;
mod selection;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod steps;
#[cfg(feature = "cuda")]
mod stream;
mod tree;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(super) use self::device::Resident;
pub(super) use self::selection::Sparse;
