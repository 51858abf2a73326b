//! The seed draws the entries that are sent, from the concatenated tensors.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod device;
mod host;
#[cfg(feature = "cuda")]
mod stream;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(super) use self::device::Resident;
pub(super) use self::host::Random;
