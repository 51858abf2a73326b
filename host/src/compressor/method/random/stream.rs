//! The seed draws the entries that are sent, on a stream.

use super::device::Resident;
use crate::backend::cuda::Cuda;
use crate::compressor::group::Group;
use crate::compressor::mean;
use crate::compressor::method::stream::{Streamed, unfixed};
use crate::compressor::queue::{Place, Queue, Ranks};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::seed::Seed;
use crate::stream_collective::StreamCollective;

impl Streamed for Resident<Cuda> {
    fn reserve(&mut self, queue: &Queue<'_, Cuda>, _: &Group, _: u32) -> Result<u64, Error> {
        let bytes = self.bytes();
        self.queued = Some(queue.room(bytes)?);
        Ok(bytes)
    }

    fn passes(&self, limits: &Limits, _: u32) -> Result<Vec<Pass>, Error> {
        Self::passes(self, limits)
    }

    fn step<G: StreamCollective + ?Sized>(
        &mut self,
        queue: &Queue<'_, Cuda>,
        place: &Place<'_, Cuda>,
        group: &Group,
        ranks: &mut Ranks<'_, G>,
        seed: Seed,
    ) -> Result<(), Error> {
        let Some(sums) = self.queued.as_ref().map(|room| queue.all(room)) else { return Err(unfixed()) };
        let seed = group.seed_of(seed);
        let values = self.queue_take(queue, place, group, seed)?;
        ranks.sum(queue, &values, &sums, self.bytes() / 4)?;
        self.queue_spread(queue, place, group, seed, values, mean::weight(ranks.ranks))
    }
}
