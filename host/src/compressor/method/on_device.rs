//! The operations of every method in a device's memory.

use crate::collective::Collective;
use crate::compressor::failure::Failure;
use crate::compressor::frame::Writer;
use crate::compressor::group::Group;
use crate::compressor::method::contract::{Received, Target};
use crate::compressor::queue::{Place, Queue};
use crate::compressor::stamp::Stamp;
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::Error;
use crate::seed::Seed;

/// A [`Gathered`](super::contract::Gathered) method, in a device's memory.
pub(crate) trait GatheredOn<D: DeviceMemory> {
    /// Writes this rank's payloads, and into the residual the values that they leave out. `seed` is that of the step.
    fn encode(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        seed: Seed,
        message: &mut Writer<'_>,
    ) -> Result<(), Error>;

    /// Decodes payloads of ranks over or onto a buffer with an element for each of the gradient.
    fn decode(
        &mut self,
        queue: &Queue<'_, D>,
        device: &Device,
        group: &Group,
        received: &Received<'_>,
        onto: Target<&D::Slice>,
    ) -> Result<(), Error>;

    /// Makes the momentum of elements zero, by their numbers in a gradient of `elements` elements.
    fn mask(&mut self, queue: &Queue<'_, D>, place: &Place<'_, D>, sent: &[u32], elements: u64) -> Result<(), Error>;
}

/// A [`Summed`](super::contract::Summed) method, in a device's memory.
pub(crate) trait SummedOn<D: DeviceMemory> {
    /// Refuses non-finite values, under `finite`, before the first message.
    fn refuse(&mut self, queue: &Queue<'_, D>, place: &Place<'_, D>, group: &Group) -> Result<(), Error>;

    /// A step with all its messages; bytes that were sent. The gradient becomes the mean. The seed of `stamp` is that
    /// of the group's draws.
    fn exchange(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        stamp: Stamp,
        ranks: &mut dyn Collective,
        weight: f32,
    ) -> Result<u64, Failure>;
}
