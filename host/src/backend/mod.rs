//! Each backend does one thing: run a plan's passes.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub(crate) mod slices;
#[cfg(feature = "wgpu")]
pub mod wgpu;
