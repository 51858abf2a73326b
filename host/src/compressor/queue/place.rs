//! The device memory of a group in a step, and its tensors concatenated.

use std::ops::Range;

use super::memory::Queue;
use crate::compressor::group::Group;
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::Error;

/// The device memory of a group in a step.
pub(crate) struct Place<'p, D: DeviceMemory> {
    pub(crate) device: &'p Device,
    /// The values to send: the gradient, the momentum, or a state buffer in which they are formed.
    pub(crate) input: D::Slice,
    pub(crate) residual: Option<D::Slice>,
    pub(crate) gradient: D::Slice,
    /// The momentum of the model, if there is one.
    pub(crate) momentum: Option<D::Slice>,
}

/// Memory for bodies of ranks, contiguous, as soon as their number is known.
pub(crate) struct Bodies<D: DeviceMemory>(Option<(u32, D::Room)>);

impl<D: DeviceMemory> Bodies<D> {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Memory for `count` bodies, of `each` bytes each.
    pub(crate) fn room(&mut self, queue: &Queue<'_, D>, count: u32, each: u64) -> Result<D::Slice, Error> {
        Ok(queue.all(match &self.0 {
            Some((room_for, bodies)) if *room_for >= count => bodies,
            _ => &self.0.insert((count, queue.room(u64::from(count).saturating_mul(each))?)).1,
        }))
    }
}

/// Memory for the tensors of a group, concatenated.
pub(crate) struct Packed<D: DeviceMemory> {
    pub(crate) input: D::Room,
    pub(crate) residual: Option<D::Room>,
}

impl<D: DeviceMemory> Packed<D> {
    pub(crate) fn new(queue: &Queue<'_, D>, elements: u64, feedback: bool) -> Result<Self, Error> {
        let room = || queue.room(4 * elements);
        Ok(Self { input: room()?, residual: if feedback { Some(room()?) } else { None } })
    }
}

/// The gradient and residual that entries are taken from, packed if they have to be.
pub(crate) fn taken<D: DeviceMemory>(
    queue: &Queue<'_, D>,
    packed: Option<&Packed<D>>,
    place: &Place<'_, D>,
    group: &Group,
) -> Result<(D::Slice, Option<D::Slice>), Error> {
    let Some(Packed { input, residual: own }) = packed else {
        return Ok((place.input.clone(), place.residual.clone()));
    };
    pack(queue, group.ranges(), &place.input, &queue.all(input))?;
    let residual = match (&place.residual, own) {
        (Some(plane), Some(own)) => {
            pack(queue, group.ranges(), plane, &queue.all(own))?;
            Some(queue.all(own))
        }
        (plane, _) => plane.clone(),
    };
    Ok((queue.all(input), residual))
}

/// Concatenates ranges of a buffer, 4 bytes per element.
pub(crate) fn pack<D: DeviceMemory>(
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

/// The inverse of [`pack`].
pub(crate) fn unpack<D: DeviceMemory>(
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
