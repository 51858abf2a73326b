//! A group whose operations are queued, in one step.

use std::ffi::c_void;

use crate::backend::cuda::{Cuda, DeviceSlice};
use crate::compressor::resident::memory::{AddMomentum, MomentumBuffers, Queue};
use crate::error::Error;
use crate::stream_collective::StreamCollective;

/// The ranks of a step, and the stream that all of it goes to.
pub(super) struct Ranks<'g, G: ?Sized> {
    group: &'g mut G,
    stream: *mut c_void,
    pub(super) ranks: u32,
    /// What the payload of each rank counts.
    pub(super) weight: f32,
    /// Bytes that were handed over.
    pub(super) bytes: u64,
}

impl<'g, G: StreamCollective + ?Sized> Ranks<'g, G> {
    /// # Safety
    /// The caller guarantees what [`StreamCollective`] asks of the stream, and of every piece that is handed over.
    pub(super) unsafe fn new(group: &'g mut G, stream: *mut c_void) -> Self {
        let ranks = group.ranks();
        Self { group, stream, ranks, weight: 1.0 / ranks as f32, bytes: 0 }
    }

    /// Queues a gather of so many bytes of each rank.
    pub(super) fn gather(&mut self, mine: &DeviceSlice, all: &DeviceSlice, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.bytes += bytes;
        // SAFETY: the maker answers for stream and pieces.
        unsafe { self.group.queue_all_gather(mine.address(), all.address(), bytes as usize, self.stream) }?;
        Ok(())
    }

    /// Queues the sum over the ranks of so many values.
    pub(super) fn sum(&mut self, values: &DeviceSlice, sums: &DeviceSlice, count: u64) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        self.bytes += 4 * count;
        // SAFETY: the maker answers for stream and pieces.
        unsafe { self.group.queue_all_reduce_sum(values.address(), sums.address(), count as usize, self.stream) }?;
        Ok(())
    }

    /// Queues what makes of so many values their mean over the ranks. `sums` has room for as many.
    pub(super) fn mean(
        &mut self,
        queue: &Queue<'_, Cuda>,
        values: &DeviceSlice,
        sums: &DeviceSlice,
        count: u64,
    ) -> Result<(), Error> {
        self.sum(values, sums, count)?;
        // -0 times +0 is -0, and that changes no sum it is added to: the mean is the sum times the weight, rounded
        // once.
        queue.clear(values, 0, 4 * count)?;
        let work = scaling(count, self.weight);
        queue.run(work, MomentumBuffers { gradient: *sums, momentum: *values })
    }
}

/// What makes of so many zeros as many sums times the weight.
pub(super) fn scaling(count: u64, weight: f32) -> AddMomentum {
    AddMomentum { range: 0..count, elements: count, factor: -0.0, gain: weight }
}
