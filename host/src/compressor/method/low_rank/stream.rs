//! The tensors go as PowerSGD's factors, on a stream.

use super::device::Resident;
use crate::backend::cuda::Cuda;
use crate::compressor::group::Group;
use crate::compressor::method::stream::{Streamed, unfixed};
use crate::compressor::queue::{Place, Queue, Ranks};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::seed::Seed;
use crate::stream_collective::StreamCollective;

impl Streamed for Resident<Cuda> {
    fn reserve(&mut self, queue: &Queue<'_, Cuda>, _: &Group, _: u32) -> Result<u64, Error> {
        let bytes = self.steps.factor_bytes();
        self.sums = Some(queue.room(bytes)?);
        Ok(bytes)
    }

    fn passes(&self, limits: &Limits, _: u32) -> Result<Vec<Pass>, Error> {
        Ok(self.steps.passes_of_step(limits)?.into_iter().flatten().collect())
    }

    fn step<G: StreamCollective + ?Sized>(
        &mut self,
        queue: &Queue<'_, Cuda>,
        place: &Place<'_, Cuda>,
        group: &Group,
        ranks: &mut Ranks<'_, G>,
        _: Seed,
    ) -> Result<(), Error> {
        let Some(sums) = self.sums.as_ref().map(|room| queue.all(room)) else { return Err(unfixed()) };
        self.step_by(queue, place, group, |steps, factors| ranks.mean(queue, factors, &sums, steps.given_len() as u64))
    }
}
