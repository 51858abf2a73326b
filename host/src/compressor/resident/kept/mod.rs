//! What a part keeps in a device's memory.

mod dense;
mod low_rank;
mod quantized;
mod random;
mod rotated;
mod sparse;

use std::ops::Range;

use self::dense::Dense;
use self::low_rank::LowRank;
use self::random::Random;
use self::rotated::Rotated;
use self::sparse::Sparse;
use super::Compressor;
use super::memory::Queue;
use crate::compressor::part::{Method, Part, Received};
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::Error;
use crate::plan::DecodeMode;
use crate::seed::Seed;

/// What a part works on in a step.
pub(super) struct Place<'p, D: DeviceMemory> {
    pub(super) device: &'p Device,
    /// What is sent: the gradient, or the momentum.
    pub(super) input: D::Slice,
    pub(super) residual: Option<D::Slice>,
    pub(super) gradient: D::Slice,
}

/// Where payloads are decoded, of which ranks, and how.
pub(super) struct Onto<'o, D: DeviceMemory> {
    pub(super) output: &'o D::Slice,
    pub(super) ranks: Range<usize>,
    /// Not [`DecodeMode::Write`].
    pub(super) mode: DecodeMode,
    /// The seed of the step.
    pub(super) step: Seed,
}

/// Memory of a part, by what becomes of its tensors.
pub(super) enum Kept<D: DeviceMemory> {
    Dense(Dense<D>),
    Sparse(Box<Sparse<D>>),
    LowRank(Box<LowRank<D>>),
    Random(Random<D>),
    Rotated(Box<Rotated<D>>),
}

impl<D: DeviceMemory> Kept<D> {
    pub(super) fn new(queue: &Queue<'_, D>, of: &Compressor, part: &Part) -> Result<Self, Error> {
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
    pub(super) fn decode(
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
    pub(super) fn keep(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        if let Self::LowRank(kept) = self { kept.keep(queue) } else { Ok(()) }
    }

    /// Puts back what [`Kept::keep`] kept.
    pub(super) fn undo(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        if let Self::LowRank(kept) = self { kept.undo(queue) } else { Ok(()) }
    }
}

/// Room for bodies of ranks one behind the other, as soon as their number is known.
struct Bodies<D: DeviceMemory>(Option<(u32, D::Room)>);

impl<D: DeviceMemory> Bodies<D> {
    const fn new() -> Self {
        Self(None)
    }

    /// Room for so many bodies, of so many bytes each.
    fn room(&mut self, queue: &Queue<'_, D>, count: u32, each: u64) -> Result<D::Slice, Error> {
        Ok(queue.all(match &self.0 {
            Some((room_for, bodies)) if *room_for >= count => bodies,
            _ => &self.0.insert((count, queue.room(u64::from(count).saturating_mul(each))?)).1,
        }))
    }
}

/// Room for the tensors of a part one behind the other.
struct Packed<D: DeviceMemory> {
    input: D::Room,
    residual: Option<D::Room>,
}

impl<D: DeviceMemory> Packed<D> {
    fn new(queue: &Queue<'_, D>, elements: u64, feedback: bool) -> Result<Self, Error> {
        let room = || queue.room(4 * elements);
        Ok(Self { input: room()?, residual: if feedback { Some(room()?) } else { None } })
    }
}

/// What entries are taken from, packed where it has to be: gradient and residual.
fn taken<D: DeviceMemory>(
    queue: &Queue<'_, D>,
    packed: Option<&Packed<D>>,
    place: &Place<'_, D>,
    part: &Part,
) -> Result<(D::Slice, Option<D::Slice>), Error> {
    let Some(Packed { input, residual: own }) = packed else {
        return Ok((place.input.clone(), place.residual.clone()));
    };
    pack(queue, part.ranges(), &place.input, &queue.all(input))?;
    let residual = match (&place.residual, own) {
        (Some(plane), Some(own)) => {
            pack(queue, part.ranges(), plane, &queue.all(own))?;
            Some(queue.all(own))
        }
        (plane, _) => plane.clone(),
    };
    Ok((queue.all(input), residual))
}

/// Copies ranges, 4 bytes per element, out of a flat buffer one behind the other.
pub(super) fn pack<D: DeviceMemory>(
    queue: &Queue<'_, D>,
    ranges: impl Iterator<Item = Range<usize>>,
    from: &D::Slice,
    to: &D::Slice,
) -> Result<(), Error> {
    let mut at = 0;
    for range in ranges {
        let bytes = 4 * range.len() as u64;
        queue.copy((from, 4 * range.start as u64), (to, at), bytes)?;
        at += bytes;
    }
    Ok(())
}

/// [`pack`], backwards.
pub(super) fn unpack<D: DeviceMemory>(
    queue: &Queue<'_, D>,
    ranges: impl Iterator<Item = Range<usize>>,
    from: &D::Slice,
    to: &D::Slice,
) -> Result<(), Error> {
    let mut at = 0;
    for range in ranges {
        let bytes = 4 * range.len() as u64;
        queue.copy((from, at), (to, 4 * range.start as u64), bytes)?;
        at += bytes;
    }
    Ok(())
}
