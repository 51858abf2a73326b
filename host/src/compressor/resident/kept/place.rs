//! What a part works on in a step, and its tensors packed.

use std::ops::Range;

use crate::compressor::part::Part;
use crate::compressor::resident::memory::Queue;
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::Error;
use crate::plan::DecodeMode;
use crate::seed::Seed;

/// What a part works on in a step.
pub(in crate::compressor::resident) struct Place<'p, D: DeviceMemory> {
    pub(in crate::compressor::resident) device: &'p Device,
    /// What is sent: the gradient, or the momentum.
    pub(in crate::compressor::resident) input: D::Slice,
    pub(in crate::compressor::resident) residual: Option<D::Slice>,
    pub(in crate::compressor::resident) gradient: D::Slice,
}

/// Where payloads are decoded, of which ranks, and how.
pub(in crate::compressor::resident) struct Onto<'o, D: DeviceMemory> {
    pub(in crate::compressor::resident) output: &'o D::Slice,
    pub(in crate::compressor::resident) ranks: Range<usize>,
    /// Not [`DecodeMode::Write`].
    pub(in crate::compressor::resident) mode: DecodeMode,
    /// The seed of the step.
    pub(in crate::compressor::resident) step: Seed,
}

/// Room for bodies of ranks one after another, as soon as their number is known.
pub(super) struct Bodies<D: DeviceMemory>(Option<(u32, D::Room)>);

impl<D: DeviceMemory> Bodies<D> {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    /// Memory for `count` bodies, of `each` bytes each.
    pub(super) fn room(&mut self, queue: &Queue<'_, D>, count: u32, each: u64) -> Result<D::Slice, Error> {
        Ok(queue.all(match &self.0 {
            Some((room_for, bodies)) if *room_for >= count => bodies,
            _ => &self.0.insert((count, queue.room(u64::from(count).saturating_mul(each))?)).1,
        }))
    }
}

/// Room for the tensors of a part one after another.
pub(super) struct Packed<D: DeviceMemory> {
    pub(super) input: D::Room,
    pub(super) residual: Option<D::Room>,
}

impl<D: DeviceMemory> Packed<D> {
    pub(super) fn new(queue: &Queue<'_, D>, elements: u64, feedback: bool) -> Result<Self, Error> {
        let room = || queue.room(4 * elements);
        Ok(Self { input: room()?, residual: if feedback { Some(room()?) } else { None } })
    }
}

/// What entries are taken from, packed if it has to be: gradient and residual.
pub(super) fn taken<D: DeviceMemory>(
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

/// Copies ranges, 4 bytes per element, out of a flat buffer one after another.
pub(in crate::compressor::resident) fn pack<D: DeviceMemory>(
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
pub(in crate::compressor::resident) fn unpack<D: DeviceMemory>(
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
