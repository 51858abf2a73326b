//! Page-locked memory of the host, which the device copies from and to by itself: for what crosses the bus in every
//! step of a compressor.
//!
//! Ordinary memory is copied by way of the driver's own page-locked memory, piece by piece, and a copy into the device
//! has to be waited for before the memory is used again. Here a copy into the device is queued and not waited for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{DevicePtr, DriverError, StreamId};
use super::shared::Shared;

/// Memory that is made by the first copy, kept, and used again. It has room for twice the largest copy, so that one is
/// prepared while another is under way.
pub(super) struct Staging {
    on: Queue,
    held: Mutex<Held>,
}

/// Where copies are queued. The stream is kept alive by the device that has the staging.
struct Queue {
    shared: Arc<Shared>,
    stream: StreamId,
}

struct Held {
    at: *mut u8,
    bytes: usize,
    /// Of these, from the first on, so many that queued copies may still read.
    busy: usize,
}

// SAFETY: the memory is the process's, and belongs to no thread.
unsafe impl Send for Held {}

impl Staging {
    /// For copies on a stream.
    pub(super) fn new(shared: Arc<Shared>, stream: StreamId) -> Self {
        let on = Queue { shared, stream };
        Self { on, held: Mutex::new(Held { at: std::ptr::null_mut(), bytes: 0, busy: 0 }) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // What is busy is noted before a copy is queued, so that a thread that panicked left nothing half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a copy of bytes into device memory. They are read before the call returns.
    ///
    /// # Safety
    /// As [`Ops::write`](crate::embed::ops::Ops::write).
    pub(super) unsafe fn write(&self, to: DevicePtr, bytes: &[u8]) -> Result<(), DriverError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut held = self.held();
        let room = held.room(&self.on, bytes.len())?;
        room.copy_from_slice(bytes);
        // SAFETY: the caller answers for the device memory. The room is not written before the stream was waited for.
        unsafe { self.on.shared.driver.copy_in(to, room, self.on.stream) }
    }

    /// Copies bytes out of device memory, after what is queued, and waits for them. `out` is as it was where this
    /// fails.
    ///
    /// # Safety
    /// As [`Ops::read`](crate::embed::ops::Ops::read).
    pub(super) unsafe fn read(&self, from: DevicePtr, out: &mut [u8]) -> Result<(), DriverError> {
        if out.is_empty() {
            return Ok(());
        }
        let mut held = self.held();
        let room = held.room(&self.on, out.len())?;
        // SAFETY: the caller answers for the device memory; the call waits.
        unsafe { self.on.shared.driver.copy_out(room, from, self.on.stream) }?;
        out.copy_from_slice(room);
        // The copy was the last that was queued.
        held.busy = 0;
        Ok(())
    }
}

impl Held {
    /// So many bytes, at least one, that no copy uses. What fails leaves the memory as it was.
    fn room(&mut self, on: &Queue, bytes: usize) -> Result<&mut [u8], DriverError> {
        if bytes > self.bytes - self.busy {
            self.settle(on)?;
        }
        if bytes > self.bytes {
            let driver = &on.shared.driver;
            let wanted = bytes.checked_next_power_of_two().and_then(|bytes| bytes.checked_mul(2)).unwrap_or(bytes);
            let at = driver.alloc_host(wanted)?;
            // SAFETY: it has as many bytes.
            unsafe { at.write_bytes(0, wanted) };
            let before = std::mem::replace(self, Self { at, bytes: wanted, busy: 0 });
            // SAFETY: it was allocated for as many bytes, or is null; the stream was waited for.
            unsafe { driver.free_host(before.at, before.bytes) };
        }
        let from = self.busy;
        self.busy += bytes;
        // SAFETY: there are as many bytes after those that are busy, all of them written, and nothing else uses them.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at.add(from), bytes) })
    }

    /// Waits for the copies that are queued.
    fn settle(&mut self, on: &Queue) -> Result<(), DriverError> {
        if self.busy > 0 {
            on.shared.driver.synchronize(on.stream)?;
            self.busy = 0;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Memory that a copy may still use is leaked.
        if held.settle(&self.on).is_ok() {
            // SAFETY: it was allocated for as many bytes, or is null, and no copy uses it any more.
            unsafe { self.on.shared.driver.free_host(held.at, held.bytes) };
        }
    }
}
