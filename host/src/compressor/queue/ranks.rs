//! A group whose operations are queued, in one step.

use std::ffi::c_void;

use super::memory::{AddMomentum, MomentumBuffers, Queue};
use crate::backend::cuda::{Cuda, DeviceSlice};
use crate::compressor::mean;
use crate::error::Error;
use crate::stream_collective::StreamCollective;

/// The ranks of a step, and the stream that all of it goes to.
pub(crate) struct Ranks<'g, G: ?Sized> {
    group: &'g mut G,
    stream: *mut c_void,
    pub(crate) ranks: u32,
    /// The factor of each rank's payload.
    pub(crate) weight: f32,
    /// Bytes that were handed over.
    pub(crate) bytes: u64,
}

impl<'g, G: StreamCollective + ?Sized> Ranks<'g, G> {
    /// # Safety
    /// The caller guarantees what [`StreamCollective`] asks of the stream, and of every piece that is handed over.
    pub(crate) unsafe fn new(group: &'g mut G, stream: *mut c_void) -> Self {
        let ranks = group.ranks();
        Self { group, stream, ranks, weight: 1.0 / ranks as f32, bytes: 0 }
    }

    /// Queues a gather of `bytes` bytes of each rank.
    pub(crate) fn gather(&mut self, mine: &DeviceSlice, all: &DeviceSlice, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.bytes += bytes;
        // SAFETY: the maker answers for stream and pieces.
        unsafe { self.group.queue_all_gather(mine.address(), all.address(), bytes as usize, self.stream) }?;
        Ok(())
    }

    /// Queues the sum of values over the ranks, of each times a power of two that is at most
    /// 1/ranks. Times [`mean::weight`] it is the mean. `scratch` has memory for as many values.
    pub(crate) fn sum(
        &mut self,
        queue: &Queue<'_, Cuda>,
        values: &DeviceSlice,
        scratch: &DeviceSlice,
        count: u64,
    ) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        scaled(queue, values, scratch, count, mean::power(self.ranks).recip())?;
        self.bytes += 4 * count;
        // SAFETY: the maker answers for stream and pieces.
        unsafe { self.group.queue_all_reduce_sum(scratch.address(), values.address(), count as usize, self.stream) }?;
        Ok(())
    }

    /// Queues the mean of values over the ranks. `scratch` has memory for as many.
    pub(crate) fn mean(
        &mut self,
        queue: &Queue<'_, Cuda>,
        values: &DeviceSlice,
        scratch: &DeviceSlice,
        count: u64,
    ) -> Result<(), Error> {
        self.sum(queue, values, scratch, count)?;
        if self.ranks.is_power_of_two() {
            return Ok(());
        }
        scaled(queue, values, scratch, count, mean::weight(self.ranks))?;
        queue.copy((scratch, 0), (values, 0), 4 * count)
    }
}

/// Queues values times a factor, rounded once, into other memory.
fn scaled(
    queue: &Queue<'_, Cuda>,
    values: &DeviceSlice,
    to: &DeviceSlice,
    count: u64,
    factor: f32,
) -> Result<(), Error> {
    // -0 times +0 is -0, and that changes no sum it is added to.
    queue.clear(to, 0, 4 * count)?;
    queue.run(scaling(count, factor), MomentumBuffers { gradient: *values, momentum: *to })
}

/// What turns `count` zeros into as many sums times the weight.
pub(crate) fn scaling(count: u64, weight: f32) -> AddMomentum {
    AddMomentum { range: 0..count, elements: count, factor: -0.0, gain: weight }
}
