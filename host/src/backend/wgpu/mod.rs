//! The WGPU backend: runs passes as WGSL compute shaders on Vulkan, Metal, DX12, or a browser's WebGPU.

#![cfg_attr(
    target_arch = "wasm32",
    allow(
        clippy::arc_with_non_send_sync,
        reason = "a browser's handles stay on their thread, and others' do not have to"
    )
)]

mod checked;
mod compile;
mod device;
mod embed;
mod fail;
mod loss;
mod memory;
mod open;
mod pipelines;
mod record;
mod run;
mod session;
mod shared;
mod staging;
mod timing;

pub use self::device::Wgpu;
pub use self::memory::WgpuSlice;
pub use self::session::WgpuSession;
pub use crate::embed::HostSlice;
