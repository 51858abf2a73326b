//! Opening a device without a wait, for where a thread may not wait: a browser's.

use super::checked::{observed, told};
use super::device::Wgpu;
use super::fail::unavailable;
use super::loss::{Contained, Loss, QuietQueue};
use super::timing;
use crate::error::Error;

/// The environment variable that chooses an adapter by part of its name.
const ADAPTER_VARIABLE: &str = "WGPU_ADAPTER_NAME";

/// What to do if there is no adapter at all.
const NO_ADAPTER: &str = if cfg!(target_arch = "wasm32") {
    "the browser has no WebGPU adapter; it has to be Chrome or Edge 113, Safari 26, Firefox 141 or newer, the page served \
     from https or localhost, and WebGPU not switched off"
} else {
    "no Vulkan, Metal or DX12 adapter was found; install the GPU's driver, or on Debian and Ubuntu mesa-vulkan-drivers for \
     one in software"
};

impl Wgpu {
    /// As [`Wgpu::open`], without a wait: in a browser this is the way, and its adapter is the one there is.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no adapter, none of that name, or none with the limits that the shaders
    /// need.
    pub async fn open_async() -> Result<Self, Error> {
        let broken =
            |reason: String| unavailable(format!("looking for adapters failed ({reason}); update the GPU's driver"));
        let looked = Contained(Box::pin(async {
            let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
            instance.enumerate_adapters(wgpu::Backends::PRIMARY).await
        }));
        let adapters = looked.await.map_err(broken)?;
        let wanted = std::env::var(ADAPTER_VARIABLE).unwrap_or_default().to_lowercase();
        let found: Vec<String> = adapters.iter().map(|a| a.get_info().name).collect();
        let adapter = adapters
            .into_iter()
            .filter(|a| a.get_info().name.to_lowercase().contains(&wanted))
            .min_by_key(|a| preference(a.get_info().device_type));
        let Some(adapter) = adapter else {
            return Err(unavailable(if found.is_empty() {
                NO_ADAPTER.to_owned()
            } else {
                format!("{ADAPTER_VARIABLE}={wanted} is part of no adapter's name; there are: {}", found.join(", "))
            }));
        };
        // The adapter's own limits, so that a large tensor takes few passes. The one optional feature is timestamps,
        // for `Session::time`; nothing else depends on it.
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("gradwire"),
            required_limits: adapter.limits(),
            required_features: timing::wanted(adapter.features()),
            ..Default::default()
        };
        let name = adapter.get_info().name;
        let refused = |reason: String| unavailable(format!("{name} refused a device ({reason}); update its driver"));
        // Called within, since it is the call that does the work, and the future only has its outcome.
        let requested = Contained(Box::pin(async { adapter.request_device(&descriptor).await }));
        let (device, queue) = requested.await.map_err(refused)?.map_err(|e| refused(e.to_string()))?;
        let (queue, loss) = (QuietQueue::new(queue), Loss::default());
        loss.watch(&device);
        // wgpu-hal 30 destroys a semaphore twice, on Vulkan, where the first submission to a queue finds no memory for
        // the second of two: so that submission is made here, and a queue on which it fails is not let go.
        let (first, objections) = observed(&device, || loss.contain(&name, "opening", || queue.submit([])));
        let objected = told(&format!("opening {name}"), objections).await;
        if let Err(error) = objected.and(first.map(drop)).and_then(|()| loss.check(&name)) {
            queue.leak();
            return Err(error);
        }
        // What the device objects to is awaited here, where `on` may not wait.
        let (opened, objections) = observed(&device, || Self::watched(&device, &queue, loss));
        told(&format!("opening {name}"), objections).await?;
        opened
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
