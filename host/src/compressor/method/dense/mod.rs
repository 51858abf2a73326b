//! Every element is quantized, a payload for each tensor.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod device;
mod host;
mod pieces;
mod quantizer;
#[cfg(feature = "cuda")]
mod stream;
mod two_phase;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::device::Resident;
pub(crate) use self::pieces::plan_of;
pub(crate) use self::quantizer::Dense;
