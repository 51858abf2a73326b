//! Memory of a part of any method.

use super::dense::Dense;
use super::low_rank::LowRank;
use super::place::Onto;
use super::random::Random;
use super::rotated::Rotated;
use super::sparse::Sparse;
use crate::compressor::Compressor;
use crate::compressor::part::{Method, Part, Received};
use crate::compressor::resident::memory::Queue;
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::Error;

/// Memory of a part, by what becomes of its tensors.
pub(in crate::compressor::resident) enum Kept<D: DeviceMemory> {
    Dense(Dense<D>),
    Sparse(Box<Sparse<D>>),
    LowRank(Box<LowRank<D>>),
    Random(Random<D>),
    Rotated(Box<Rotated<D>>),
}

impl<D: DeviceMemory> Kept<D> {
    pub(in crate::compressor::resident) fn new(
        queue: &Queue<'_, D>,
        of: &Compressor,
        part: &Part,
    ) -> Result<Self, Error> {
        Ok(match &part.method {
            Method::Dense { plan, .. } => Self::Dense(Dense::new(queue, plan)?),
            Method::Sparse { codec, packed, elements } => {
                let feedback = part.recipe.memory().adds_residual();
                Self::Sparse(Box::new(Sparse::new(queue, codec, *packed, *elements, feedback)?))
            }
            Method::LowRank { state, packed, .. } => {
                Self::LowRank(Box::new(LowRank::new(queue, of, part, state, *packed)?))
            }
            Method::Rotated { rotation, plan } => {
                let packed = part.elements() != of.elements();
                Self::Rotated(Box::new(Rotated::new(queue, (*rotation, plan), part, packed)?))
            }
            Method::Random { codec } => {
                let packed = part.elements() != of.elements();
                Self::Random(Random::new(queue, *codec, part, packed)?)
            }
        })
    }

    /// Decodes payloads of ranks over or onto numbers for the elements of the gradient.
    pub(in crate::compressor::resident) fn decode(
        &mut self,
        queue: &Queue<'_, D>,
        device: &Device,
        part: &Part,
        received: &Received<'_>,
        onto: Onto<'_, D>,
    ) -> Result<(), Error> {
        match (self, received) {
            (Self::Dense(kept), Received::Dense(ranks)) => kept.decode(queue, device, part, ranks, onto),
            (Self::Sparse(kept), Received::Sparse(payloads)) => kept.decode(queue, device, part, payloads, onto),
            (Self::Rotated(kept), Received::Rotated(payloads)) => kept.decode(queue, device, part, payloads, onto),
            (Self::Dense(_) | Self::Sparse(_) | Self::Rotated(_) | Self::LowRank(_) | Self::Random(_), received) => {
                part.unread(&part.method, received)
            }
        }
    }

    /// Keeps what a step changes, beside the planes.
    pub(in crate::compressor::resident) fn keep(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        if let Self::LowRank(kept) = self { kept.keep(queue) } else { Ok(()) }
    }

    /// Puts back what [`Kept::keep`] kept.
    pub(in crate::compressor::resident) fn undo(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        if let Self::LowRank(kept) = self { kept.undo(queue) } else { Ok(()) }
    }
}
