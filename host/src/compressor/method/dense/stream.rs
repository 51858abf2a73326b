//! Every element is quantized, on a stream.

use super::device::Resident;
use crate::backend::cuda::Cuda;
use crate::compressor::group::Group;
use crate::compressor::method::stream::Streamed;
use crate::compressor::queue::{Place, Queue, Ranks};
use crate::embed::{DecodeBuffers, DecodeModel, EncodeModel, Work};
use crate::error::Error;
use crate::plan::{DecodeMode, Limits, Pass};
use crate::seed::Seed;
use crate::stream_collective::StreamCollective;

impl Streamed for Resident<Cuda> {
    fn reserve(&mut self, queue: &Queue<'_, Cuda>, _: &Group, ranks: u32) -> Result<u64, Error> {
        let each = self.plan.body_bytes();
        // Bytes between scalars and codes are never written, and are sent too.
        queue.clear(&queue.all(&self.body), 0, each)?;
        self.bodies.room(queue, ranks, each)?;
        Ok(each)
    }

    fn passes(&self, limits: &Limits, ranks: u32) -> Result<Vec<Pass>, Error> {
        let (plan, mode) = (&self.plan, DecodeMode::Sum(1.0 / ranks as f32));
        let mut passes = EncodeModel { plan, seed: Seed::new(0) }.passes(limits)?.into_owned();
        passes.extend_from_slice(&DecodeModel { plan, mode, payloads: ranks }.passes(limits)?);
        Ok(passes)
    }

    fn step<G: StreamCollective + ?Sized>(
        &mut self,
        queue: &Queue<'_, Cuda>,
        place: &Place<'_, Cuda>,
        group: &Group,
        ranks: &mut Ranks<'_, G>,
        seed: Seed,
    ) -> Result<(), Error> {
        self.queue_encode(queue, place, group, seed)?;
        let each = self.plan.body_bytes();
        let bodies = self.bodies.room(queue, ranks.ranks, each)?;
        ranks.gather(&queue.all(&self.body), &bodies, each)?;
        let buffers = DecodeBuffers { bodies, output: place.gradient };
        self.queue_decode(queue, DecodeMode::Sum(ranks.weight), ranks.ranks, buffers)
    }
}
