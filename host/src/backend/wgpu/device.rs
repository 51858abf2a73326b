//! A device that was opened, and what it says of itself.

use std::sync::Arc;

use gradwire_shaders::SHADERS;
use pollster::block_on;

use super::fail::{WAITS, no_wait, unavailable};
use super::loss::Loss;
use super::shared::Shared;
use crate::error::Error;
use crate::plan::Limits;

/// A WGPU device and its queue.
///
/// The shaders use integer operations only, because WGSL leaves rounding, contraction and subnormal numbers to the
/// implementation; so the bytes are the CPU's on every driver. PowerSGD alone has sums of `f32`, and is within rounding
/// of it.
#[derive(Clone)]
pub struct Wgpu {
    pub(super) shared: Arc<Shared>,
    pub(super) limits: Limits,
}

impl Wgpu {
    /// Opens the best adapter: a discrete GPU before an integrated one before a virtual one before software.
    ///
    /// The environment variable `WGPU_ADAPTER_NAME` chooses by a part of the name instead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no adapter, none of that name, or none with the limits that the shaders
    /// need; in a browser always, since its threads may not wait: [`Wgpu::open_async`] is the way there.
    pub fn open() -> Result<Self, Error> {
        if WAITS { block_on(Self::open_async()) } else { Err(unavailable(no_wait("Wgpu::open_async"))) }
    }

    /// A caller's device and queue, as they are: no feature is asked of them, and nothing of theirs is destroyed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the device's limits are below what a shader needs, with both numbers.
    pub fn on(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Self, Error> {
        Self::watched(device, queue, Loss::default())
    }

    pub(super) fn watched(device: &wgpu::Device, queue: &wgpu::Queue, loss: Loss) -> Result<Self, Error> {
        let limits = device.limits();
        let needs = |what: &str, found: u32, needed: u32| {
            if found >= needed {
                return Ok(());
            }
            Err(unavailable(format!(
                "the device's {what} is {found}, and the shaders need {needed}; request the device with at least that"
            )))
        };
        for shader in &SHADERS {
            needs(
                "max_storage_buffers_per_shader_stage",
                limits.max_storage_buffers_per_shader_stage,
                shader.bindings.len() as u32,
            )?;
            needs(
                "max_compute_invocations_per_workgroup",
                limits.max_compute_invocations_per_workgroup,
                shader.workgroup_size,
            )?;
            needs(
                "max_compute_workgroup_storage_size",
                limits.max_compute_workgroup_storage_size,
                shader.workgroup_bytes,
            )?;
        }
        let shared = Shared::new(device, queue, loss, None)?;
        let limits = Limits {
            binding_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
            groups: limits.max_compute_workgroups_per_dimension,
            shares_factors: false,
            ..Limits::NONE
        };
        Ok(Self { shared: Arc::new(shared), limits })
    }

    /// The same device with smaller passes, for a caller that wants to bound how long one dispatch holds the GPU. What
    /// WebGPU does not promise, [`Limits::forward_progress`], stays so, and [`Limits::shares_factors`] stays false.
    pub fn with_limits(self, limits: Limits) -> Self {
        let limits = Limits {
            binding_bytes: limits.binding_bytes.min(self.limits.binding_bytes),
            groups: limits.groups.min(self.limits.groups),
            shares_factors: false,
            ..Limits::NONE
        };
        Self { limits, ..self }
    }

    /// The device, to create buffers that work is done in.
    pub fn device(&self) -> &wgpu::Device {
        &self.shared.device
    }

    /// Its queue.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.shared.queue
    }

    /// The adapter, its driver and the API.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Whether the adapter is software on the CPU.
    pub fn is_software(&self) -> bool {
        self.shared.software
    }

    /// What bounds a single pass.
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

impl std::fmt::Debug for Wgpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wgpu").field("name", &self.shared.name).field("limits", &self.limits).finish()
    }
}
