//! The WGPU backend: runs passes as WGSL compute shaders on Vulkan, Metal or DX12.

mod pipelines;
mod session;

use std::sync::Arc;

use gradwire_shaders::SHADERS;
use pollster::block_on;

use self::pipelines::Pipelines;
pub use self::session::WgpuSession;
use crate::device::BackendKind;
use crate::error::Error;
use crate::plan::Limits;

/// A WGPU device and its queue.
///
/// The shaders use integer operations only, because WGSL leaves rounding, contraction and subnormal numbers to the
/// implementation; so the bytes are the CPU's on every driver. PowerSGD alone has sums of `f32`, and is within rounding of it.
#[derive(Clone)]
pub struct Wgpu {
    shared: Arc<Shared>,
    limits: Limits,
}

struct Shared {
    device: wgpu::Device,
    queue: wgpu::Queue,
    name: String,
    software: bool,
    pipelines: Pipelines,
}

fn unavailable(reason: String) -> Error {
    Error::Unavailable { backend: BackendKind::Wgpu, reason }
}

fn failed(reason: String) -> Error {
    Error::Backend { backend: BackendKind::Wgpu, reason }
}

/// The environment variable that chooses an adapter by part of its name.
const ADAPTER_VARIABLE: &str = "WGPU_ADAPTER_NAME";

impl Wgpu {
    /// Opens the best adapter: a discrete GPU before an integrated one before a virtual one before software.
    ///
    /// The environment variable `WGPU_ADAPTER_NAME` chooses by a part of the name instead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no adapter, none of that name, or none with the limits that the shaders need.
    pub fn open() -> Result<Self, Error> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
        let wanted = std::env::var(ADAPTER_VARIABLE).unwrap_or_default().to_lowercase();
        let found: Vec<String> = adapters.iter().map(|a| a.get_info().name).collect();
        let adapter = adapters
            .into_iter()
            .filter(|a| a.get_info().name.to_lowercase().contains(&wanted))
            .min_by_key(|a| preference(a.get_info().device_type));
        let Some(adapter) = adapter else {
            return Err(unavailable(match (found.is_empty(), wanted.is_empty()) {
                (true, _) => {
                    "no Vulkan, Metal or DX12 adapter was found; install the GPU's driver, or on Debian and Ubuntu \
                              mesa-vulkan-drivers for one in software"
                        .to_owned()
                }
                (false, _) => {
                    format!("{ADAPTER_VARIABLE}={wanted} is part of no adapter's name; there are: {}", found.join(", "))
                }
            }));
        };
        // The adapter's own limits, so that a large tensor takes few passes; no optional feature.
        let descriptor =
            wgpu::DeviceDescriptor { label: Some("gradwire"), required_limits: adapter.limits(), ..Default::default() };
        let name = adapter.get_info().name;
        let (device, queue) = block_on(adapter.request_device(&descriptor))
            .map_err(|e| unavailable(format!("{name} refused a device ({e}); update its driver")))?;
        Self::on(&device, &queue)
    }

    /// A caller's device and queue, as they are: no feature is asked of them, and nothing of theirs is destroyed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the device's limits are below what a shader needs, with both numbers.
    pub fn on(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Self, Error> {
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
        let info = device.adapter_info();
        let shared = Shared {
            device: device.clone(),
            queue: queue.clone(),
            name: format!("{} ({}, {:?})", info.name, info.driver_info, info.backend),
            software: info.device_type == wgpu::DeviceType::Cpu,
            pipelines: Pipelines::default(),
        };
        let limits = Limits {
            binding_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
            groups: limits.max_compute_workgroups_per_dimension,
        };
        Ok(Self { shared: Arc::new(shared), limits })
    }

    /// The same device with smaller passes, for a caller that wants to bound how long one dispatch holds the GPU.
    pub fn with_limits(self, limits: Limits) -> Self {
        let limits = Limits {
            binding_bytes: limits.binding_bytes.min(self.limits.binding_bytes),
            groups: limits.groups.min(self.limits.groups),
        };
        Self { limits, ..self }
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

impl Shared {
    /// Runs `work` so that what the device objects to comes back as an error.
    fn scoped<T>(&self, what: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        let scopes = [Validation, OutOfMemory, Internal].map(|filter| self.device.push_error_scope(filter));
        let value = work();
        // Scopes are a stack: the last one pushed is popped first.
        for scope in scopes.into_iter().rev() {
            if let Some(error) = block_on(scope.pop()) {
                return Err(failed(format!("{what} on {}: {error}", self.name)));
            }
        }
        Ok(value)
    }

    /// Waits for all that was submitted.
    fn wait(&self) -> Result<(), Error> {
        match self.device.poll(wgpu::PollType::wait_indefinitely()) {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(format!("waiting for {}: {error}", self.name))),
        }
    }
}
