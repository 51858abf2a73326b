//! Memory of a WGPU device in which a state stays.

use super::device::Wgpu;
use super::session::{PASSES_PER_SUBMIT, STAGING};
use super::shared::storage_buffer;
use crate::embed::ops::Ops;
use crate::embed::{DeviceMemory, Piece};
use crate::error::Error;
use crate::plan::{Limits, Pass, Role};
use crate::session::room_for;

/// A piece of a buffer.
#[derive(Clone, Debug)]
pub struct WgpuSlice {
    buffer: wgpu::Buffer,
    offset: u64,
    bytes: u64,
}

impl From<wgpu::BufferSlice<'_>> for WgpuSlice {
    fn from(slice: wgpu::BufferSlice<'_>) -> Self {
        Self { buffer: slice.buffer().clone(), offset: slice.offset(), bytes: slice.size() }
    }
}

impl Wgpu {
    /// Records commands, and submits them.
    fn at_once(&self, what: &'static str, record: impl FnOnce(&mut wgpu::CommandEncoder)) -> Result<(), Error> {
        self.shared.scoped(what, || {
            let mut encoder = self.shared.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            record(&mut encoder);
            self.shared.queue.submit([encoder.finish()]);
        })
    }
}

impl DeviceMemory for Wgpu {}

impl Ops for Wgpu {
    type Room = wgpu::Buffer;
    type Slice = WgpuSlice;

    fn limits(&self) -> Limits {
        Wgpu::limits(self)
    }

    fn room(&self, bytes: u64) -> Result<wgpu::Buffer, Error> {
        let found = self.shared.device.limits().max_buffer_size / 4 * 4;
        if bytes > found {
            return Err(Error::Limit { limit: "max_buffer_size", found, needed: bytes });
        }
        self.shared.scoped("creating a buffer", || storage_buffer(&self.shared.device, Role::Workspace, bytes))
    }

    fn all(&self, room: &wgpu::Buffer) -> WgpuSlice {
        WgpuSlice { buffer: room.clone(), offset: 0, bytes: room.size() }
    }

    fn part(&self, of: &WgpuSlice, from: u64, bytes: u64) -> WgpuSlice {
        WgpuSlice { buffer: of.buffer.clone(), offset: of.offset + from, bytes }
    }

    /// wgpu has its own.
    fn staged(&self) -> Self {
        self.clone()
    }

    fn check(&self, what: &'static str, slice: &WgpuSlice, bytes: u64) -> Result<(), Error> {
        if slice.bytes != bytes {
            return Err(Error::Length { what, found: slice.bytes, expected: bytes, unit: "bytes" });
        }
        let needed = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let alignment = self.shared.device.limits().min_storage_buffer_offset_alignment;
        let problem = match slice.buffer.usage() {
            usage if !usage.contains(needed) => {
                format!("is in a buffer of usage {usage:?}: create it with {needed:?} as well")
            }
            _ if !slice.offset.is_multiple_of(alignment.into()) => {
                format!("is not aligned: a slice has to begin at a multiple of {alignment} bytes")
            }
            _ => return Ok(()),
        };
        Err(Error::Memory { what, address: slice.offset, problem })
    }

    unsafe fn write(&self, to: &WgpuSlice, bytes: &[u8]) -> Result<(), Error> {
        for (part, at) in bytes.chunks(STAGING).zip((to.offset..).step_by(STAGING)) {
            self.shared.scoped("writing", || {
                self.shared.queue.write_buffer(&to.buffer, at, part);
                // Submitting now keeps the queue's own staging memory from growing to the tensor's size.
                self.shared.queue.submit([]);
            })?;
        }
        Ok(())
    }

    unsafe fn read(&self, from: &WgpuSlice, out: &mut [u8]) -> Result<(), Error> {
        // The device may be lost between two parts: `out` is written once all of them are here.
        let mut whole = room_for(out.len())?;
        for (part, at) in whole.chunks_mut(STAGING).zip((from.offset..).step_by(STAGING)) {
            self.shared.read_words(&from.buffer, at, part)?;
        }
        out.copy_from_slice(&whole);
        Ok(())
    }

    unsafe fn copy(&self, from: &WgpuSlice, to: &WgpuSlice, bytes: u64) -> Result<(), Error> {
        self.at_once("copying", |encoder| {
            encoder.copy_buffer_to_buffer(&from.buffer, from.offset, &to.buffer, to.offset, bytes);
        })
    }

    unsafe fn clear(&self, at: &WgpuSlice, bytes: u64) -> Result<(), Error> {
        self.at_once("clearing", |encoder| encoder.clear_buffer(&at.buffer, at.offset, Some(bytes)))
    }

    unsafe fn queue(&self, passes: &[Pass], pieces: Vec<Piece<WgpuSlice>>) -> Result<(), Error> {
        let pieces: Vec<_> = pieces
            .iter()
            .filter(|piece| piece.buffer.bytes > 0)
            .map(|piece| {
                let WgpuSlice { buffer, offset, bytes } = &piece.buffer;
                piece.clone().map(|_| buffer.slice(*offset..offset + bytes))
            })
            .collect();
        let new = || self.shared.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        passes.chunks(PASSES_PER_SUBMIT).try_for_each(|some| {
            let mut encoder = self.shared.scoped("beginning passes", new)?;
            self.record_checked(some, &mut encoder, &pieces)?;
            self.shared.scoped("running passes", || {
                self.shared.queue.submit([encoder.finish()]);
            })
        })
    }
}
