//! The tensors are concatenated, rotated as one, and then quantized.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod device;
mod host;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(super) use self::device::Resident;
pub(super) use self::host::Rotated;
