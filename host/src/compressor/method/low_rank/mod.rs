//! The tensors go as PowerSGD's factors, which may go through a quantizer.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod device;
mod factors;
mod host;
mod matrices;
mod means;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod quantized;
#[cfg(feature = "cuda")]
mod stream;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(super) use self::device::Resident;
pub(crate) use self::matrices::{LowRank, matrices};
pub(crate) use self::means::refuse;
