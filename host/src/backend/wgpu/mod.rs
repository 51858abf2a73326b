//! The WGPU backend: runs passes as WGSL compute shaders on Vulkan, Metal, DX12, or a browser's WebGPU.

#![cfg_attr(
    target_arch = "wasm32",
    allow(
        clippy::arc_with_non_send_sync,
        reason = "a browser's handles stay on their thread, and others' do not have to"
    )
)]

mod asynchronous;
mod embed;
mod entropy;
mod loss;
mod low_rank;
mod memory;
mod pipelines;
mod record;
mod session;
mod sparse;
mod timing;

use std::sync::Arc;

use gradwire_shaders::SHADERS;
use pollster::block_on;

pub use self::asynchronous::HostSlice;
pub(crate) use self::asynchronous::{Copied, SCRATCH};
use self::loss::{Loss, QuietQueue};
pub use self::memory::WgpuSlice;
use self::pipelines::Pipelines;
pub use self::session::WgpuSession;
use crate::error::Error;
use crate::kind::BackendKind;
use crate::plan::{Limits, ROLES, Role};

/// A WGPU device and its queue.
///
/// The shaders use integer operations only, because WGSL leaves rounding, contraction and subnormal numbers to the
/// implementation; so the bytes are the CPU's on every driver. PowerSGD alone has sums of `f32`, and is within rounding
/// of it.
#[derive(Clone)]
pub struct Wgpu {
    shared: Arc<Shared>,
    limits: Limits,
}

struct Shared {
    device: wgpu::Device,
    queue: QuietQueue,
    loss: Loss,
    name: String,
    software: bool,
    pipelines: Pipelines,
    cache: Option<wgpu::PipelineCache>,
    /// What is bound where a pass uses no buffer, one a role so that no two writable bindings meet.
    unused: [wgpu::Buffer; ROLES],
}

/// Whether a thread may wait for the device. A browser's may not.
const WAITS: bool = cfg!(not(target_arch = "wasm32"));

/// What to do where it may not.
fn no_wait(instead: &str) -> String {
    format!("a browser's thread may not wait for the device; use {instead}")
}

fn unavailable(reason: String) -> Error {
    Error::Unavailable { backend: BackendKind::Wgpu, reason }
}

fn failed(reason: String) -> Error {
    Error::Backend { backend: BackendKind::Wgpu, reason }
}

impl Wgpu {
    /// Opens the best adapter: a discrete GPU before an integrated one before a virtual one before software.
    ///
    /// The environment variable `WGPU_ADAPTER_NAME` chooses by a part of the name instead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no adapter, none of that name, or none with the limits that the shaders
    /// need; in a browser always, since its threads may not wait: [`Wgpu::open_async`] is the way there.
    pub fn open() -> Result<Self, Error> {
        if WAITS { block_on(Self::open_async()) } else { Err(unavailable(no_wait("Wgpu::open_async"))) }
    }

    /// A caller's device and queue, as they are: no feature is asked of them, and nothing of theirs is destroyed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the device's limits are below what a shader needs, with both numbers.
    pub fn on(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Self, Error> {
        Self::watched(device, queue, Loss::default())
    }

    fn watched(device: &wgpu::Device, queue: &wgpu::Queue, loss: Loss) -> Result<Self, Error> {
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

fn preference(kind: wgpu::DeviceType) -> u32 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

/// A buffer that every pass may use.
fn storage_buffer(device: &wgpu::Device, role: Role, bytes: u64) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(&format!("gradwire {role:?}")),
        size: bytes.next_multiple_of(4).max(16),
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

impl Shared {
    fn new(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        loss: Loss,
        cache: Option<wgpu::PipelineCache>,
    ) -> Result<Self, Error> {
        let info = device.adapter_info();
        let name = format!("{} ({}, {:?})", info.name, info.driver_info, info.backend);
        let unused = || Role::ALL.map(|role| storage_buffer(device, role, 16));
        Ok(Self {
            unused: scoped(device, &loss, &name, "creating buffers", unused)?,
            device: device.clone(),
            queue: QuietQueue::new(queue.clone()),
            loss,
            name,
            software: info.device_type == wgpu::DeviceType::Cpu,
            pipelines: Pipelines::default(),
            cache,
        })
    }

    /// Runs `work` so that what the device objects to comes back as an error.
    fn scoped<T>(&self, what: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
        scoped(&self.device, &self.loss, &self.name, what, work)
    }

    /// Waits for all that was submitted.
    fn wait(&self) -> Result<(), Error> {
        if !WAITS {
            return Err(failed(no_wait("Wgpu::encode_async and its like, or record into an encoder")));
        }
        let poll = || self.device.poll(wgpu::PollType::wait_indefinitely());
        match self.loss.contain(&self.name, "waiting", poll)? {
            Ok(_) => self.loss.check(&self.name),
            Err(error) => Err(failed(format!("waiting for {}: {error}", self.name))),
        }
    }
}

fn scoped<T>(device: &wgpu::Device, loss: &Loss, name: &str, what: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
    // Where nobody may wait for a scope's answer, an objection goes to the scopes of `Wgpu::checked`, or of the caller.
    if !WAITS {
        return Ok(work());
    }
    use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
    loss.check(name)?;
    let mut scopes = [Validation, OutOfMemory, Internal].map(|filter| device.push_error_scope(filter));
    let value = loss.contain(name, what, work);
    // Scopes are a stack: the last one pushed is popped first, and all of them before any answer is looked at.
    scopes.reverse();
    let objections = scopes.map(|scope| block_on(scope.pop()));
    if let Some(error) = objections.into_iter().flatten().next() {
        loss.look(device, &error);
        loss.check(name)?;
        return Err(failed(format!("{what} on {name}: {error}")));
    }
    let value = value?;
    loss.check(name).map(|()| value)
}
