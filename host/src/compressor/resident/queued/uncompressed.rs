//! Tensors that go uncompressed, on a stream.

use crate::backend::cuda::{Cuda, CudaRoom};
use crate::compressor::queue::{Queue, Ranks, scaling, unpack};
use crate::compressor::resident::device::Resident;
use crate::compressor::whole::Whole;
use crate::embed::Work;
use crate::error::Error;
use crate::stream_collective::StreamCollective;

/// Memory for the tensors that go uncompressed, contiguous, and for their sums.
pub(super) struct Uncompressed {
    elements: u64,
    values: CudaRoom,
    sums: CudaRoom,
}

impl Uncompressed {
    pub(super) fn new(queue: &Queue<'_, Cuda>, tensors: &[Whole]) -> Result<Option<Self>, Error> {
        let elements = tensors.iter().map(|tensor| tensor.span.elements).sum::<u64>();
        if elements == 0 {
            return Ok(None);
        }
        let room = || queue.room(4 * elements);
        Ok(Some(Self { elements, values: room()?, sums: room()? }))
    }

    pub(super) fn size(&self) -> u64 {
        4 * self.elements
    }

    /// Queues the mean over the ranks, beside the gradient.
    pub(super) fn mean<G: StreamCollective + ?Sized>(
        &self,
        memory: &Resident<'_, Cuda>,
        tensors: &[Whole],
        ranks: &mut Ranks<'_, G>,
    ) -> Result<(), Error> {
        let queue = &memory.queue;
        let [values, sums] = [&self.values, &self.sums].map(|room| queue.all(room));
        let mut at = 0;
        for tensor in tensors {
            let bytes = 4 * tensor.span.elements;
            queue.copy((&memory.sent(tensor), 4 * tensor.span.offset), (&values, at), bytes)?;
            at += bytes;
        }
        ranks.mean(queue, &values, &sums, self.elements)
    }

    /// Queues what puts it into the gradient.
    pub(super) fn put(&self, memory: &Resident<'_, Cuda>, tensors: &[Whole]) -> Result<(), Error> {
        let queue = &memory.queue;
        unpack(queue, tensors.iter().map(Whole::range), &queue.all(&self.values), &memory.gradient)
    }
}

/// The passes of momentum and of means.
pub(super) fn common(cuda: &Cuda) -> Result<(), Error> {
    cuda.warm_up_passes(&scaling(1, 1.0).passes(&cuda.limits())?)
}
