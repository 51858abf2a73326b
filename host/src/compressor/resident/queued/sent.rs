//! What goes between the ranks, and the memory that it takes.

use super::ranks::{Ranks, scaling};
use crate::backend::cuda::{Cuda, CudaRoom, DeviceSlice};
use crate::compressor::mean;
use crate::compressor::part::{Method, Part};
use crate::compressor::planes::Held;
use crate::compressor::resident::ground::Resident;
use crate::compressor::resident::kept::{Kept, unpack};
use crate::compressor::resident::memory::Queue;
use crate::compressor::whole::Whole;
use crate::embed::{DecodeBuffers, DecodeModel, EncodeModel, Put, Scatter, Select, Work};
use crate::error::{Error, RecipeError};
use crate::plan::{DecodeMode, Pass};
use crate::seed::Seed;
use crate::stream_collective::StreamCollective;

/// What a part sends.
pub(super) enum Sent {
    /// Bodies of all ranks, of `each` bytes each, one after another.
    Bodies { all: CudaRoom, each: u64 },
    /// Entries of this rank, and of all: of each rank its indices, and then as many values. With momentum, zeros for as
    /// many.
    Entries { mine: CudaRoom, all: CudaRoom, count: u64, zeros: Option<CudaRoom> },
    /// Scratch memory for a factor, or for entries that the seed draws, and its bytes.
    Sums { sums: CudaRoom, bytes: u64 },
}

impl Sent {
    pub(super) fn new(queue: &Queue<'_, Cuda>, kept: &Kept<Cuda>, part: &Part, ranks: u32) -> Result<Self, Error> {
        let of_all = |bytes: u64| queue.room(bytes.saturating_mul(ranks.into()));
        match (kept, &part.method) {
            (Kept::Dense(kept), Method::Dense { plan, .. }) => {
                let each = plan.body_bytes();
                // What lies between scalars and codes is never written, and goes along.
                queue.clear(&queue.all(kept.body()), 0, each)?;
                Ok(Self::Bodies { all: of_all(each)?, each })
            }
            (Kept::Sparse(kept), _) => {
                let Some(count) = kept.steps().fixed() else { return Err(unfixed()) };
                let zeros = match part.recipe.memory().masks() {
                    true => {
                        let zeros = queue.room(4 * count)?;
                        queue.clear(&queue.all(&zeros), 0, 4 * count)?;
                        Some(zeros)
                    }
                    false => None,
                };
                Ok(Self::Entries { mine: queue.room(8 * count)?, all: of_all(8 * count)?, count, zeros })
            }
            (Kept::LowRank(kept), _) => {
                let bytes = kept.steps().factor_bytes();
                Ok(Self::Sums { sums: queue.room(bytes)?, bytes })
            }
            (Kept::Random(kept), _) => {
                let bytes = kept.bytes();
                Ok(Self::Sums { sums: queue.room(bytes)?, bytes })
            }
            _ => Err(unfixed()),
        }
    }

    /// Bytes of a message, or the most of several.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Bodies { each, .. } => *each,
            Self::Entries { count, .. } => 8 * count,
            Self::Sums { bytes, .. } => *bytes,
        }
    }

    /// Has the kernels compiled that a step needs, so that no step waits for that.
    pub(super) fn compile(&self, cuda: &Cuda, kept: &Kept<Cuda>, part: &Part, ranks: u32) -> Result<(), Error> {
        let limits = cuda.limits();
        let ready = |passes: &[Pass]| cuda.warm_up_passes(passes);
        match (kept, &part.method) {
            (Kept::Dense(_), Method::Dense { plan, .. }) => {
                ready(&EncodeModel { plan, seed: Seed::new(0) }.passes(&limits)?)?;
                let mode = DecodeMode::Sum(1.0 / ranks as f32);
                ready(&DecodeModel { plan, mode, payloads: ranks }.passes(&limits)?)
            }
            (Kept::Sparse(kept), _) => {
                let selection = kept.steps().selection();
                let (entries, elements) = (selection.entries(), kept.elements());
                ready(&Select(selection).passes(&limits)?)?;
                ready(&Scatter { entries, elements, weight: Some(1.0) }.passes(&limits)?)?;
                ready(&Put { entries, elements }.passes(&limits)?)
            }
            (Kept::LowRank(kept), _) => {
                kept.steps().passes_of_step(&limits)?.iter().try_for_each(|passes| ready(passes))
            }
            (Kept::Random(kept), _) => ready(&kept.passes(&limits)?),
            (
                Kept::Dense(_),
                Method::Sparse { .. } | Method::Rotated { .. } | Method::LowRank { .. } | Method::Random { .. },
            )
            | (Kept::Rotated(_), _) => Err(unfixed()),
        }
    }

    /// Queues a part of a step: the gradient becomes the mean over the ranks. What is sent is formed before.
    pub(super) fn step<G: StreamCollective + ?Sized>(
        &self,
        ground: &mut Resident<'_, Cuda>,
        index: usize,
        part: &Part,
        ranks: &mut Ranks<'_, G>,
        seed: Seed,
    ) -> Result<(), Error> {
        let momentum = ground.state.plane(Held::Momentum).map(|plane| ground.queue.all(&plane.now));
        let (queue, place, kept) = ground.place(index, part);
        match (self, kept, &part.method) {
            (Self::Bodies { all, each }, Kept::Dense(kept), Method::Dense { plan, .. }) => {
                kept.queue_encode(queue, &place, part, seed)?;
                let bodies = queue.all(all);
                ranks.gather(&queue.all(kept.body()), &bodies, *each)?;
                let buffers = DecodeBuffers { bodies, output: place.gradient };
                kept.queue_decode(queue, plan, DecodeMode::Sum(ranks.weight), ranks.ranks, buffers)
            }
            (Self::Entries { mine, all, count, zeros }, Kept::Sparse(kept), _) => {
                let lists = |of: &DeviceSlice, at: u64| [0, 4 * count].map(|to| queue.part(of, at + to, 4 * count));
                let (mine, all) = (queue.all(mine), queue.all(all));
                let (gradient, residual) = kept.taken(queue, &place, part)?;
                kept.queue_select(queue, gradient, residual, lists(&mine, 0))?;
                kept.leave(queue, &place, part, residual)?;
                ranks.gather(&mine, &all, 8 * count)?;
                if let (Some(zeros), Some(momentum)) = (zeros, momentum) {
                    let [indices, _] = lists(&mine, 0);
                    kept.queue_mask(queue, part, [indices, queue.all(zeros)], &momentum)?;
                }
                let of_ranks = (0..u64::from(ranks.ranks)).map(|rank| lists(&all, 8 * count * rank));
                kept.queue_sum(queue, part, of_ranks, ranks.weight, &place.gradient)
            }
            (Self::Sums { sums, .. }, Kept::LowRank(kept), _) => {
                let sums = queue.all(sums);
                kept.step_by(queue, &place, part, |steps, factors| {
                    ranks.mean(queue, factors, &sums, steps.given_len() as u64)
                })
            }
            (Self::Sums { sums, bytes }, Kept::Random(kept), _) => {
                let sums = queue.all(sums);
                let values = kept.queue_take(queue, &place, part, seed)?;
                ranks.sum(queue, &values, &sums, bytes / 4)?;
                kept.queue_spread(queue, &place, part, seed, values, mean::weight(ranks.ranks))
            }
            _ => Err(unfixed()),
        }
    }
}

/// What no recipe that was let in gives.
fn unfixed() -> Error {
    let what = "what a tensor sends has no fixed size on the device";
    RecipeError::Stages { what, remedy: "use ResidentCompressor::exchange" }.into()
}

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
        ground: &Resident<'_, Cuda>,
        tensors: &[Whole],
        ranks: &mut Ranks<'_, G>,
    ) -> Result<(), Error> {
        let queue = &ground.queue;
        let [values, sums] = [&self.values, &self.sums].map(|room| queue.all(room));
        let mut at = 0;
        for tensor in tensors {
            let bytes = 4 * tensor.span.elements;
            queue.copy((&ground.sent(tensor), 4 * tensor.span.offset), (&values, at), bytes)?;
            at += bytes;
        }
        ranks.mean(queue, &values, &sums, self.elements)
    }

    /// Queues what puts it into the gradient.
    pub(super) fn put(&self, ground: &Resident<'_, Cuda>, tensors: &[Whole]) -> Result<(), Error> {
        let queue = &ground.queue;
        unpack(queue, tensors.iter().map(Whole::range), &queue.all(&self.values), &ground.gradient)
    }
}

/// The passes of momentum and of means.
pub(super) fn common(cuda: &Cuda) -> Result<(), Error> {
    cuda.warm_up_passes(&scaling(1, 1.0).passes(&cuda.limits())?)
}
