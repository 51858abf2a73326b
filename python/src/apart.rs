//! A gradient's copy in a CUDA device's memory, which nobody frees during an exchange.

use std::sync::Arc;

use gradwire::backend::cuda::driver::{DevicePtr, Driver, DriverError, MemoryAt, StreamId};
use gradwire::backend::cuda::{DeviceSlice, RealDriver};
use gradwire::{BackendKind, Error};

/// Memory of a device, with work on one stream.
pub struct Apart {
    driver: Arc<RealDriver>,
    stream: StreamId,
    at: DevicePtr,
    bytes: u64,
}

fn failed(error: DriverError) -> Error {
    Error::Backend { backend: BackendKind::Cuda, reason: error.to_string() }
}

impl Apart {
    /// Allocates this many bytes.
    pub fn new(driver: Arc<RealDriver>, stream: StreamId, bytes: u64) -> Result<Self, Error> {
        let at = driver.alloc(bytes).map_err(failed)?;
        Ok(Self { driver, stream, at, bytes })
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its memory.
    pub const fn slice(&self) -> DeviceSlice {
        DeviceSlice::new(self.at.0, self.bytes)
    }

    /// Queues a copy of a tensor's memory.
    ///
    /// # Safety
    /// The caller guarantees that no other thread frees the memory during the call. CUDA and the allocators over it
    /// reuse memory after the work that was queued on the stream before the memory was freed.
    pub unsafe fn read(&self, from: DeviceSlice) -> Result<(), Error> {
        self.check(from)?;
        // SAFETY: both have as many bytes, checked above.
        unsafe { self.driver.copy_within(self.at, DevicePtr(from.address()), self.bytes, self.stream) }.map_err(failed)
    }

    /// Queues a copy into a tensor's memory.
    ///
    /// # Safety
    /// As [`Apart::read`].
    pub unsafe fn write(&self, to: DeviceSlice) -> Result<(), Error> {
        self.check(to)?;
        // SAFETY: both have as many bytes, checked above.
        unsafe { self.driver.copy_within(DevicePtr(to.address()), self.at, self.bytes, self.stream) }.map_err(failed)
    }

    /// Asks the driver whether a tensor's memory is the device's, and as long as this.
    fn check(&self, tensor: DeviceSlice) -> Result<(), Error> {
        let found = self.driver.memory_at(DevicePtr(tensor.address())).map_err(failed)?;
        let problem = match found {
            _ if self.bytes == 0 => return Ok(()),
            MemoryAt::Device { left } if left.is_none_or(|left| left >= self.bytes) => return Ok(()),
            MemoryAt::Device { left } => {
                let left = left.unwrap_or_default();
                format!("has {left} bytes to the end of its allocation, and the tensor {}: allocate more", self.bytes)
            }
            MemoryAt::Host => "is host memory, and the tensor names a device: copy it there".into(),
            MemoryAt::OtherDevice(other) => format!("is memory of device {other}, and the tensor names another one"),
            MemoryAt::Unknown => "is no memory that the driver knows: hand the tensor over before it is freed".into(),
        };
        Err(Error::Memory { what: "gradient", address: tensor.address(), problem })
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // A stream that fails may still use the memory, which is then not freed.
        if self.driver.synchronize(self.stream).is_ok() {
            // SAFETY: it was allocated here, and the stream has done its work.
            unsafe { self.driver.free(self.at) };
        }
    }
}
