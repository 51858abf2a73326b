//! A group of any method, on a stream.

use super::resident::AnyResident;
use super::stream::{Streamed, unfixed};
use crate::backend::cuda::Cuda;
use crate::compressor::group::Group;
use crate::compressor::queue::{Place, Queue, Ranks};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::seed::Seed;
use crate::stream_collective::StreamCollective;

impl AnyResident<Cuda> {
    /// [`Streamed::reserve`].
    pub(crate) fn reserve(&mut self, queue: &Queue<'_, Cuda>, group: &Group, ranks: u32) -> Result<u64, Error> {
        match self {
            Self::Dense(method) => method.reserve(queue, group, ranks),
            Self::Sparse(method) => method.reserve(queue, group, ranks),
            Self::LowRank(method) => method.reserve(queue, group, ranks),
            Self::Random(method) => method.reserve(queue, group, ranks),
            Self::Rotated(_) => Err(unfixed()),
        }
    }

    /// [`Streamed::passes`].
    pub(crate) fn passes(&self, limits: &Limits, ranks: u32) -> Result<Vec<Pass>, Error> {
        match self {
            Self::Dense(method) => Streamed::passes(&**method, limits, ranks),
            Self::Sparse(method) => Streamed::passes(&**method, limits, ranks),
            Self::LowRank(method) => Streamed::passes(&**method, limits, ranks),
            Self::Random(method) => Streamed::passes(&**method, limits, ranks),
            Self::Rotated(_) => Err(unfixed()),
        }
    }

    /// [`Streamed::step`].
    pub(crate) fn step<G: StreamCollective + ?Sized>(
        &mut self,
        queue: &Queue<'_, Cuda>,
        place: &Place<'_, Cuda>,
        group: &Group,
        ranks: &mut Ranks<'_, G>,
        seed: Seed,
    ) -> Result<(), Error> {
        match self {
            Self::Dense(method) => method.step(queue, place, group, ranks, seed),
            Self::Sparse(method) => method.step(queue, place, group, ranks, seed),
            Self::LowRank(method) => method.step(queue, place, group, ranks, seed),
            Self::Random(method) => method.step(queue, place, group, ranks, seed),
            Self::Rotated(_) => Err(unfixed()),
        }
    }

    /// Refuses a selection of the last step that did not come to its end.
    pub(crate) fn check_end(&self, queue: &Queue<'_, Cuda>) -> Result<(), Error> {
        if let Self::Sparse(method) = self { method.check_end(queue) } else { Ok(()) }
    }
}
