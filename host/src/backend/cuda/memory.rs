//! Memory of a CUDA device in which a state stays.

use std::sync::Arc;

use super::device::Cuda;
use super::driver::{DevicePtr, DriverError};
use super::embed::DeviceSlice;
use super::fail::failed;
use super::staging::Staging;
use crate::embed::ops::Ops;
use crate::embed::{Access, DeviceMemory, Piece};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::session::room_for;

/// Memory of a device, which is freed when this is dropped.
pub struct CudaRoom {
    cuda: Cuda,
    at: DevicePtr,
    bytes: u64,
}

impl Drop for CudaRoom {
    fn drop(&mut self) {
        // What still runs may use it. An error here is one of the device, and freeing is all that is left to do.
        let _ = self.cuda.shared.driver.synchronize(self.cuda.stream);
        // SAFETY: the memory is this room's own, nothing that uses it runs any more, and it is freed once.
        unsafe { self.cuda.shared.driver.free(self.at) };
    }
}

impl DeviceMemory for Cuda {}

impl Ops for Cuda {
    type Room = CudaRoom;
    type Slice = DeviceSlice;

    fn limits(&self) -> Limits {
        Cuda::limits(self)
    }

    fn room(&self, bytes: u64) -> Result<CudaRoom, Error> {
        let bytes = bytes.checked_next_multiple_of(4).ok_or(DriverError::TooLarge { bytes }).map_err(failed)?;
        let at = self.shared.driver.alloc(bytes).map_err(failed)?;
        Ok(CudaRoom { cuda: self.clone(), at, bytes })
    }

    fn all(&self, room: &CudaRoom) -> DeviceSlice {
        DeviceSlice::new(room.at.0, room.bytes)
    }

    fn part(&self, of: &DeviceSlice, from: u64, bytes: u64) -> DeviceSlice {
        DeviceSlice::new(of.address() + from, bytes)
    }

    fn check(&self, what: &'static str, slice: &DeviceSlice, bytes: u64) -> Result<(), Error> {
        if slice.bytes() != bytes {
            return Err(Error::Length { what, found: slice.bytes(), expected: bytes, unit: "bytes" });
        }
        let piece = Piece { alignment: 4, access: Access::Write, ..Piece::new(what, *slice, bytes, [None, None]) };
        if bytes > 0 { self.check_piece(&piece) } else { Ok(()) }
    }

    fn staged(&self) -> Self {
        Self { staging: Some(Arc::new(Staging::new(self.shared.clone(), self.stream))), ..self.clone() }
    }

    unsafe fn write(&self, to: &DeviceSlice, bytes: &[u8]) -> Result<(), Error> {
        if let Some(staging) = &self.staging {
            // SAFETY: the caller answers for the memory.
            return unsafe { staging.write(DevicePtr(to.address()), bytes) }.map_err(failed);
        }
        let (driver, to) = (&self.shared.driver, DevicePtr(to.address()));
        // SAFETY: the caller answers for the memory; the stream is waited for before `bytes` can change.
        unsafe { driver.copy_in(to, bytes, self.stream) }.and_then(|()| driver.synchronize(self.stream)).map_err(failed)
    }

    unsafe fn read(&self, from: &DeviceSlice, out: &mut [u8]) -> Result<(), Error> {
        if let Some(staging) = &self.staging {
            // SAFETY: the caller answers for the memory.
            return unsafe { staging.read(DevicePtr(from.address()), out) }.map_err(failed);
        }
        // A copy that fails may have written some of its bytes: `out` is written once all of them are here.
        let mut whole = room_for(out.len())?;
        // SAFETY: the caller answers for the memory; the call waits.
        unsafe { self.shared.driver.copy_out(&mut whole, DevicePtr(from.address()), self.stream) }.map_err(failed)?;
        out.copy_from_slice(&whole);
        Ok(())
    }

    unsafe fn copy(&self, from: &DeviceSlice, to: &DeviceSlice, bytes: u64) -> Result<(), Error> {
        let (from, to) = (DevicePtr(from.address()), DevicePtr(to.address()));
        // SAFETY: the caller answers for the memory.
        unsafe { self.shared.driver.copy_within(to, from, bytes, self.stream) }.map_err(failed)
    }

    unsafe fn clear(&self, at: &DeviceSlice, bytes: u64) -> Result<(), Error> {
        // SAFETY: the caller answers for the memory.
        unsafe { self.shared.driver.fill_zero(DevicePtr(at.address()), bytes, self.stream) }.map_err(failed)
    }

    unsafe fn queue(&self, passes: &[Pass], pieces: Vec<Piece<DeviceSlice>>) -> Result<(), Error> {
        // SAFETY: the caller answers for the memory.
        unsafe { self.queue_pieces(passes, &pieces) }
    }
}
