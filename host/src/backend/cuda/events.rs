//! The order of two streams.

use super::device::Cuda;
use super::driver::EventId;
use super::fail::failed;
use crate::error::Error;

/// An event of a device, by which one of its streams waits for another.
pub(crate) struct Event {
    cuda: Cuda,
    id: EventId,
}

impl Event {
    pub(crate) fn new(cuda: &Cuda) -> Result<Self, Error> {
        let id = cuda.shared.driver.event().map_err(failed)?;
        Ok(Self { cuda: cuda.clone(), id })
    }

    /// Puts it after what is queued on the stream of a [`Cuda`] of the same device.
    pub(crate) fn record(&self, on: &Cuda) -> Result<(), Error> {
        self.check(on)?;
        // SAFETY: the event is there.
        unsafe { self.cuda.shared.driver.record(self.id, on.stream) }.map_err(failed)
    }

    /// Lets what is queued on that stream from now on wait for it.
    pub(crate) fn hold(&self, on: &Cuda) -> Result<(), Error> {
        self.check(on)?;
        // SAFETY: as above.
        unsafe { self.cuda.shared.driver.wait_for(self.id, on.stream) }.map_err(failed)
    }

    fn check(&self, on: &Cuda) -> Result<(), Error> {
        if std::sync::Arc::ptr_eq(&self.cuda.shared, &on.shared) {
            return Ok(());
        }
        let problem = "is of another device than the compressor's: make both with Cuda::on_stream of one Cuda";
        Err(Error::Stream { address: on.stream.to_u64(), problem: problem.to_owned() })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was made here, and is freed once.
        unsafe { self.cuda.shared.driver.free_event(self.id) };
    }
}
