//! Where a compressor's state is: in the host's memory, or in that of the CUDA device whose gradients it gets.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use gradwire::backend::cuda::{Cuda, DeviceSlice, RealDriver};
use gradwire::{BackendKind, Compressor, Device, Error, ResidentCompressor};

use crate::apart::Apart;
use crate::group::Group;
use crate::stream::Stream;

/// A device and its driver.
#[derive(Clone)]
struct Opened {
    driver: Arc<RealDriver>,
    cuda: Cuda,
}

/// Devices by their numbers, each opened once per process.
static OPENED: Mutex<Option<HashMap<u32, Opened>>> = Mutex::new(None);

fn device(ordinal: u32) -> Result<Opened, Error> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let all = opened.get_or_insert_default();
    if let Some(found) = all.get(&ordinal) {
        return Ok(found.clone());
    }
    let driver = RealDriver::open(ordinal)
        .map_err(|error| Error::Unavailable { backend: BackendKind::Cuda, reason: error.to_string() })?;
    let driver = Arc::new(driver);
    let found = Opened { cuda: Cuda::with_driver(driver.clone(), None)?, driver };
    all.insert(ordinal, found.clone());
    Ok(found)
}

/// A compressor, with its state where the last gradient was.
pub enum Held {
    Host(Box<Compressor>),
    Resident(Box<Resident>),
}

/// A compressor whose state is on a CUDA device.
pub struct Resident {
    inner: ResidentCompressor<Cuda>,
    driver: Arc<RealDriver>,
    ordinal: u32,
    /// The stream that its work is queued on.
    stream: Stream,
    /// Memory for a copy of the gradient, once one was asked for.
    copy: Option<Apart>,
}

impl Resident {
    pub fn inner(&self) -> &ResidentCompressor<Cuda> {
        &self.inner
    }

    pub fn inner_mut(&mut self) -> &mut ResidentCompressor<Cuda> {
        &mut self.inner
    }

    /// Queues a copy of a gradient. Its owner frees the memory later, or not at all.
    ///
    /// # Safety
    /// The caller guarantees that no other thread frees the memory during the call.
    pub unsafe fn copy_in(&mut self, gradient: DeviceSlice) -> Result<(), Error> {
        if self.copy.as_ref().is_none_or(|copy| copy.bytes() != gradient.bytes()) {
            self.copy = None;
            self.copy = Some(Apart::new(self.driver.clone(), self.stream.id(), gradient.bytes())?);
        }
        // SAFETY: the caller answers for the memory.
        self.copy.as_ref().map_or(Ok(()), |copy| unsafe { copy.read(gradient) })
    }

    /// Queues a copy of the mean into the gradient's memory.
    ///
    /// # Safety
    /// As [`Resident::copy_in`].
    pub unsafe fn copy_out(&self, gradient: DeviceSlice) -> Result<(), Error> {
        // SAFETY: the caller answers for the memory.
        self.copy.as_ref().map_or(Ok(()), |copy| unsafe { copy.write(gradient) })
    }

    /// A step of the gradient that was copied.
    pub fn exchange_copy(&mut self, group: &mut Group) -> Result<(), Error> {
        let Some(copy) = &self.copy else { return Ok(()) };
        // SAFETY: the copy lives until the stream was waited for, and nobody else knows its memory.
        unsafe { self.inner.exchange(group, copy.slice()) }
    }

    /// A step of a gradient in its own memory.
    ///
    /// # Safety
    /// Of the gradient's memory as [`ResidentCompressor::exchange`].
    pub unsafe fn exchange(&mut self, group: &mut Group, gradient: DeviceSlice) -> Result<(), Error> {
        // SAFETY: the caller answers for the memory.
        unsafe { self.inner.exchange(group, gradient) }
    }
}

impl Held {
    /// The compressor with its state on the host.
    pub fn host(&mut self) -> Result<&mut Compressor, Error> {
        if let Self::Resident(resident) = self {
            *self = Self::Host(Box::new(resident.inner.download()?));
        }
        match self {
            Self::Host(inner) => Ok(inner),
            // Replaced above.
            Self::Resident(_) => Err(Error::Backend { backend: BackendKind::Cuda, reason: "no state".into() }),
        }
    }

    /// A copy with its state on the host.
    pub fn copied(&self) -> Result<Compressor, Error> {
        match self {
            Self::Host(inner) => Ok((**inner).clone()),
            Self::Resident(resident) => resident.inner.download(),
        }
    }

    /// A step of a gradient on the host.
    pub fn exchange(&mut self, device: &Device, group: &mut Group, gradient: &mut [f32]) -> Result<(), Error> {
        self.host()?.exchange(device, group, gradient)
    }

    /// The compressor with its state on a CUDA device, whose work goes to a stream of the device's primary context.
    pub fn on_cuda(&mut self, ordinal: u32, stream: Stream) -> Result<&mut Resident, Error> {
        if let Self::Resident(resident) = self
            && (resident.ordinal != ordinal || resident.stream.handle() != stream.handle())
        {
            self.host()?;
        }
        if let Self::Host(inner) = self {
            let Opened { driver, cuda } = device(ordinal)?;
            // SAFETY: the object says that it is a stream, and is kept for as long as the compressor works on it.
            let cuda = unsafe { cuda.on_stream(stream.handle() as *mut c_void) }?;
            let inner = inner.resident(&cuda)?;
            *self = Self::Resident(Box::new(Resident { inner, driver, ordinal, stream, copy: None }));
        }
        match self {
            Self::Resident(resident) => Ok(resident),
            // Replaced above.
            Self::Host(_) => Err(Error::Backend { backend: BackendKind::Cuda, reason: "no state".into() }),
        }
    }
}
