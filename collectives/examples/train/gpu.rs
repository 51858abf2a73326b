//! A rank's GPU under NCCL, and the exchange of gradients in its memory.

use std::sync::Arc;

use gradwire::backend::cuda::driver::{DevicePtr, Driver, DriverError, StreamId};
use gradwire::backend::cuda::{Cuda, DeviceSlice, RealDriver};
use gradwire::{BackendKind, Compressor, Device, Error, QueuedCompressor, ResidentCompressor, StreamCollective};
use gradwire_collectives::{Collective, CollectiveError, Mpi, Nccl, Sent, Threads};

/// A group of ranks that the example trains on.
pub(crate) trait Group: Collective + Send + 'static {
    /// The same, for what is queued in the memory of GPUs, where the engine can do that.
    fn queues(&mut self) -> Option<&mut dyn StreamCollective> {
        None
    }

    /// The bytes that this rank sends, where the engine counts them.
    fn sent(&self) -> Option<Sent> {
        None
    }

    /// Ends the group, on every rank.
    fn end(self) -> Result<(), CollectiveError>;
}

impl Group for Threads {
    fn sent(&self) -> Option<Sent> {
        Some(Threads::sent(self))
    }

    fn end(self) -> Result<(), CollectiveError> {
        Ok(())
    }
}

impl Group for Mpi {
    fn sent(&self) -> Option<Sent> {
        Some(Mpi::sent(self))
    }

    fn end(self) -> Result<(), CollectiveError> {
        self.finish()
    }
}

impl Group for Nccl {
    fn queues(&mut self) -> Option<&mut dyn StreamCollective> {
        Some(self)
    }

    fn end(self) -> Result<(), CollectiveError> {
        self.finish()
    }
}

/// What compresses the gradients of a rank.
pub(crate) enum By<'d> {
    /// A device that works on gradients of the host's memory.
    Device(&'d Device),
    /// The GPU of this rank, in whose memory gradients are exchanged.
    Gpu(Gpu),
}

impl By<'_> {
    /// The device, for work in the host's memory.
    pub(crate) fn device(&self) -> &Device {
        match self {
            Self::Device(device) => device,
            Self::Gpu(gpu) => &gpu.device,
        }
    }

    /// The same device, to be kept.
    pub(crate) fn another(&self) -> Result<Device, Error> {
        match self {
            Self::Device(device) => Device::of(device.kind()),
            Self::Gpu(gpu) => Ok(Device::from(gpu.cuda.clone())),
        }
    }
}

/// A GPU, with a stream of this program's.
pub(crate) struct Gpu {
    driver: Arc<RealDriver>,
    cuda: Cuda,
    device: Device,
}

impl Gpu {
    /// The GPU of this number, as CUDA counts them.
    pub(crate) fn open(number: u32) -> Result<Self, Error> {
        let unavailable = |error: DriverError| {
            let reason = error.to_string();
            Error::Unavailable { backend: BackendKind::Cuda, reason }
        };
        let driver = Arc::new(RealDriver::open(number).map_err(unavailable)?);
        let cuda = Cuda::with_driver(driver.clone(), None)?;
        Ok(Self { driver, device: Device::from(cuda.clone()), cuda })
    }
}

/// Room for a gradient in a GPU's memory.
pub(crate) struct Memory {
    driver: Arc<RealDriver>,
    at: DevicePtr,
    bytes: u64,
    /// Whether no work that may use it is queued.
    idle: bool,
}

impl Memory {
    fn new(gpu: &Gpu, elements: usize) -> Result<Self, Error> {
        let bytes = 4 * elements as u64;
        let at = gpu.driver.alloc(bytes).map_err(failed)?;
        Ok(Self { driver: gpu.driver.clone(), at, bytes, idle: true })
    }

    /// Puts a gradient of this length there, for work that changes it.
    fn put(&mut self, gradient: &[f32]) -> Result<DeviceSlice, Error> {
        let (found, expected) = (gradient.len() as u64, self.bytes / 4);
        if found != expected {
            return Err(Error::Length { what: "gradient", found, expected, unit: "elements" });
        }
        self.idle = false;
        // SAFETY: the memory is as long, nothing else uses it, and the stream is waited for.
        unsafe { self.driver.copy_in(self.at, bytemuck::cast_slice(gradient), StreamId::OWN) }
            .and_then(|()| self.driver.synchronize(StreamId::OWN))
            .map_err(failed)?;
        Ok(DeviceSlice::new(self.at.0, self.bytes))
    }

    /// Gets what is there, after the work.
    fn get(&mut self, gradient: &mut [f32]) -> Result<(), Error> {
        // SAFETY: the memory is as long as what was put there, and nothing else uses it.
        unsafe { self.driver.copy_out(bytemuck::cast_slice_mut(gradient), self.at, StreamId::OWN) }.map_err(failed)?;
        self.idle = true;
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Else it is leaked: work that waits for a rank that has ended may still use it.
        if self.idle {
            // SAFETY: it was allocated once, and no work that uses it is queued.
            unsafe { self.driver.free(self.at) };
        }
    }
}

/// How a message is exchanged on a GPU.
pub(crate) enum OnGpu {
    Queued(Box<QueuedCompressor>, Memory),
    Resident(Box<ResidentCompressor<Cuda>>, Memory, String),
    /// The recipe works in the host's memory, whatever compresses.
    Host(Box<Compressor>, String),
}

impl OnGpu {
    /// Takes the way through the GPU's memory that the recipe allows. Every rank calls it.
    pub(crate) fn new(gpu: &Gpu, compressor: Compressor, group: &mut impl Group) -> Result<Self, Error> {
        let memory = || Memory::new(gpu, compressor.elements());
        // All ranks have the same recipe, so that all refuse it.
        match compressor.queued(&gpu.cuda, group) {
            Ok(queued) => Ok(Self::Queued(Box::new(queued), memory()?)),
            Err(Error::Recipe(why)) => match compressor.resident(&gpu.cuda) {
                Ok(resident) => Ok(Self::Resident(Box::new(resident), memory()?, why.to_string())),
                Err(Error::Recipe(why)) => Ok(Self::Host(Box::new(compressor), why.to_string())),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// What becomes of a gradient, in a line.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Queued(..) => "exchanges are queued on the GPU's stream".to_owned(),
            Self::Resident(.., why) => format!("state on the GPU and payloads through the host, since {why}"),
            Self::Host(_, why) => format!("gradients in the host's memory, since {why}"),
        }
    }

    /// What the compressor keeps, between steps.
    pub(crate) fn state(&mut self, group: &mut impl Group) -> Result<Vec<u8>, Error> {
        match self {
            // SAFETY: the last exchange was waited for, with this group.
            Self::Queued(queued, _) => unsafe { queued.download(group.queues().ok_or_else(no_queue)?) }?.state(),
            Self::Resident(resident, ..) => resident.download()?.state(),
            Self::Host(compressor, _) => compressor.state(),
        }
    }

    /// A step; the bytes that this rank handed over.
    pub(crate) fn exchange(
        &mut self,
        device: &Device,
        group: &mut impl Group,
        gradient: &mut [f32],
    ) -> Result<u64, Error> {
        match self {
            Self::Queued(queued, memory) => {
                let queues = group.queues().ok_or_else(no_queue)?;
                let slice = memory.put(gradient)?;
                // SAFETY: both are of the primary context of this rank's GPU, and memory in use is not freed.
                unsafe { queued.exchange(queues, slice).and_then(|()| queued.wait(queues)) }?;
                memory.get(gradient)?;
                Ok(queued.last_bytes())
            }
            Self::Resident(resident, memory, _) => {
                let slice = memory.put(gradient)?;
                // SAFETY: as above; nothing is captured.
                unsafe { resident.exchange(group, slice) }?;
                memory.get(gradient)?;
                Ok(resident.last_bytes())
            }
            Self::Host(compressor, _) => {
                compressor.exchange(device, group, gradient)?;
                Ok(compressor.last_bytes())
            }
        }
    }
}

fn failed(error: DriverError) -> Error {
    Error::Backend { backend: BackendKind::Cuda, reason: error.to_string() }
}

fn no_queue() -> Error {
    let reason = "the engine of this group queues nothing in a GPU's memory; use --engine nccl".to_owned();
    Error::Backend { backend: BackendKind::Cuda, reason }
}
