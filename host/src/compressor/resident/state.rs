//! What of a compressor is in a device's memory.

use super::cosines::Cosines;
use super::norms::Norms;
use crate::compressor::method::AnyResident;
use crate::compressor::planes::Held;
use crate::compressor::queue::{Finite, Plane, Queue};
use crate::embed::DeviceMemory;
use crate::error::Error;

/// What stays in the device's memory.
pub(super) struct State<D: DeviceMemory> {
    /// The planes, in the order of [`Held`].
    pub(super) planes: [Option<Plane<D::Room>>; 4],
    /// The method of each part.
    pub(super) methods: Vec<AnyResident<D>>,
    /// What finds the norms of the parts that are clipped.
    pub(super) norms: Vec<Option<Norms<D>>>,
    /// What takes the parts that go as coefficients there and back.
    pub(super) cosines: Vec<Option<Cosines<D>>>,
    /// What scans the means, where a recipe expects them to be finite.
    pub(super) finite: Option<Finite<D>>,
    /// Room for the gradient before a step, where a step writes it more than once.
    pub(super) gradient: Option<D::Room>,
}

impl<D: DeviceMemory> State<D> {
    pub(super) fn plane(&self, held: Held) -> Option<&Plane<D::Room>> {
        self.planes[held as usize].as_ref()
    }

    /// Queues copies of planes of this many bytes, and of the parts' own memory, as they are before a step.
    pub(super) fn keep(&mut self, queue: &Queue<'_, D>, bytes: u64) -> Result<(), Error> {
        self.planes.iter().flatten().try_for_each(|plane| queue.keep(plane, bytes))?;
        self.methods.iter_mut().try_for_each(|method| method.keep(queue))
    }

    /// Queues what puts planes of this many bytes, and the parts' own memory, back to before the last step.
    pub(super) fn undo(&mut self, queue: &Queue<'_, D>, bytes: u64) -> Result<(), Error> {
        self.planes.iter().flatten().try_for_each(|plane| queue.restore(plane, bytes))?;
        self.methods.iter_mut().try_for_each(|method| method.undo(queue))
    }
}
