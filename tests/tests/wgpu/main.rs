//! The shaders, and WGPU on whatever adapter this machine has.

#[cfg(feature = "wgpu")]
mod embed_wgpu;
#[cfg(feature = "wgpu")]
mod run_async;
mod shaders;
#[cfg(feature = "wgpu")]
mod soft_float;
#[cfg(feature = "wgpu")]
mod suite;
