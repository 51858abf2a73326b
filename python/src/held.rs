//! Where a compressor's state lies: in the host's memory, or in that of the CUDA device whose gradients it gets.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use gradwire::backend::cuda::{Cuda, RealDriver};
use gradwire::{BackendKind, Compressor, Device, Error, ResidentCompressor};

use crate::group::Group;
use crate::memory::CudaView;

/// A device by its number, opened once per process.
static OPENED: Mutex<Option<HashMap<u32, Cuda>>> = Mutex::new(None);

fn device(ordinal: u32) -> Result<Cuda, Error> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let all = opened.get_or_insert_default();
    if let Some(cuda) = all.get(&ordinal) {
        return Ok(cuda.clone());
    }
    let driver = RealDriver::open(ordinal)
        .map_err(|error| Error::Unavailable { backend: BackendKind::Cuda, reason: error.to_string() })?;
    let cuda = Cuda::with_driver(Arc::new(driver), None)?;
    all.insert(ordinal, cuda.clone());
    Ok(cuda)
}

/// A compressor, with its state where the last gradient lay.
pub enum Held {
    Host(Box<Compressor>),
    /// On the device of this number, working on this stream.
    Resident {
        inner: Box<ResidentCompressor<Cuda>>,
        place: (u32, u64),
    },
}

impl Held {
    /// The compressor with its state on the host.
    pub fn host(&mut self) -> Result<&mut Compressor, Error> {
        if let Self::Resident { inner, .. } = self {
            *self = Self::Host(Box::new(inner.download()?));
        }
        match self {
            Self::Host(inner) => Ok(inner),
            // Replaced above.
            Self::Resident { .. } => Err(Error::Backend { backend: BackendKind::Cuda, reason: "no state".into() }),
        }
    }

    /// A copy with its state on the host.
    pub fn copied(&self) -> Result<Compressor, Error> {
        match self {
            Self::Host(inner) => Ok((**inner).clone()),
            Self::Resident { inner, .. } => inner.download(),
        }
    }

    /// A step of a gradient on the host.
    pub fn exchange(&mut self, device: &Device, group: &mut Group, gradient: &mut [f32]) -> Result<(), Error> {
        self.host()?.exchange(device, group, gradient)
    }

    /// A step of a gradient in a CUDA device's memory, queued on a stream of the device's primary context.
    ///
    /// # Safety
    /// The caller guarantees that the stream is one, and lives for as long as the compressor; and of the gradient's
    /// memory what [`ResidentCompressor::exchange`] asks for.
    pub unsafe fn exchange_on_cuda(
        &mut self,
        group: &mut Group,
        gradient: &CudaView,
        stream: u64,
    ) -> Result<(), Error> {
        let place = (gradient.ordinal, stream);
        if let Self::Resident { place: there, .. } = self
            && *there != place
        {
            self.host()?;
        }
        if let Self::Host(inner) = self {
            // SAFETY: the caller answers for the stream.
            let cuda = unsafe { device(place.0)?.on_stream(stream as *mut c_void) }?;
            *self = Self::Resident { inner: Box::new(inner.resident(&cuda)?), place };
        }
        match self {
            // SAFETY: the caller answers for the memory.
            Self::Resident { inner, .. } => unsafe { inner.exchange(group, gradient.slice) },
            // Replaced above.
            Self::Host(_) => Err(Error::Backend { backend: BackendKind::Cuda, reason: "no state".into() }),
        }
    }
}
