//! The shaders, and WGPU on whatever adapter this machine has.

#[cfg(feature = "wgpu")]
mod asynchronous;
#[cfg(feature = "wgpu")]
mod embed_wgpu;
mod shaders;
#[cfg(feature = "wgpu")]
mod soft_float;
#[cfg(feature = "wgpu")]
mod suite;
