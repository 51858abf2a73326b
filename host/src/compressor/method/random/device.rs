//! The seed draws the entries that are sent, in a device's memory.

use super::host::Random;
use crate::collective::Collective;
use crate::compressor::failure::{Failure, expect_finite};
use crate::compressor::group::Group;
use crate::compressor::mean;
use crate::compressor::method::on_device::SummedOn;
use crate::compressor::planes::zeros;
use crate::compressor::queue::{Finite, Packed, Place, Queue, taken, unpack};
use crate::compressor::stamp::Stamp;
use crate::embed::{DecodeRandom, DecodeRandomBuffers, DeviceMemory, EncodeRandom, EncodeRandomBuffers, Work};
use crate::error::Error;
use crate::plan::{Limits, NonFinite, Pass};
use crate::random::RandomK;
use crate::seed::Seed;

/// The seed draws the entries that are sent, in a device's memory.
pub(crate) struct Resident<D: DeviceMemory> {
    codec: RandomK,
    /// Elements of the group.
    elements: u64,
    feedback: bool,
    /// The values to send.
    values: D::Room,
    /// The same in the host's memory.
    sums: Vec<f32>,
    /// Memory for sums that are queued, from [`Streamed::reserve`](crate::compressor::method::stream::Streamed).
    #[cfg(feature = "cuda")]
    pub(super) queued: Option<D::Room>,
    packed: Option<Packed<D>>,
    finite: Finite<D>,
}

impl<D: DeviceMemory> Resident<D> {
    /// `packed` is whether the model has other tensors.
    pub(crate) fn of(queue: &Queue<'_, D>, random: &Random, group: &Group, packed: bool) -> Result<Self, Error> {
        let codec = random.0;
        let (elements, feedback) = (group.elements() as u64, group.recipe.memory().adds_residual());
        let entries = codec.entries(elements)?;
        let kept = Self {
            codec,
            elements,
            feedback,
            values: queue.room(4 * entries)?,
            sums: zeros(entries as usize)?,
            #[cfg(feature = "cuda")]
            queued: None,
            packed: if packed { Some(Packed::new(queue, elements, feedback)?) } else { None },
            finite: Finite::new(queue)?,
        };
        // A device that is too small is refused here, and in no step.
        kept.passes(&queue.memory().limits()).map(|_| kept)
    }

    /// The passes of a step.
    pub(super) fn passes(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.encode(Seed::new(0)).passes(limits)?.into_owned();
        passes.extend_from_slice(&self.decode(Seed::new(0), 1.0).passes(limits)?);
        Ok(passes)
    }

    /// Bytes of the values to send.
    #[cfg(feature = "cuda")]
    pub(super) fn bytes(&self) -> u64 {
        4 * self.sums.len() as u64
    }

    fn encode(&self, seed: Seed) -> EncodeRandom {
        EncodeRandom { codec: self.codec, elements: self.elements, feedback: self.feedback, seed }
    }

    fn decode(&self, seed: Seed, weight: f32) -> DecodeRandom {
        DecodeRandom { codec: self.codec, elements: self.elements, weight: Some(weight), seed }
    }

    /// Queues an encode: the entries are read, and the rest is written into the residual. The seed is that of the
    /// draws.
    pub(super) fn queue_take(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        seed: Seed,
    ) -> Result<D::Slice, Error> {
        let (gradient, residual) = taken(queue, self.packed.as_ref(), place, group)?;
        let values = queue.all(&self.values);
        let buffers = EncodeRandomBuffers { gradient, residual: residual.clone(), values: values.clone() };
        queue.run(self.encode(seed), buffers)?;
        if let (Some(_), Some(residual), Some(plane)) = (&self.packed, residual, &place.residual) {
            unpack(queue, group.ranges(), &residual, plane)?;
        }
        Ok(values)
    }

    /// Queues a decode: the entries of the gradient become their sums times the weight, and the others zero.
    pub(super) fn queue_spread(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        seed: Seed,
        values: D::Slice,
        weight: f32,
    ) -> Result<(), Error> {
        let packed = self.packed.as_ref().map(|packed| queue.all(&packed.input));
        let output = packed.clone().unwrap_or_else(|| place.gradient.clone());
        queue.clear(&output, 0, 4 * self.elements)?;
        queue.run(self.decode(seed, weight), DecodeRandomBuffers { values, output })?;
        match packed {
            Some(packed) => unpack(queue, group.ranges(), &packed, &place.gradient),
            None => Ok(()),
        }
    }
}

impl<D: DeviceMemory> SummedOn<D> for Resident<D> {
    fn refuse(&mut self, queue: &Queue<'_, D>, place: &Place<'_, D>, group: &Group) -> Result<(), Error> {
        if group.recipe.non_finite != NonFinite::Error {
            return Ok(());
        }
        let (gradient, _) = taken(queue, self.packed.as_ref(), place, group)?;
        self.finite.refuse(queue, group, &gradient)
    }

    fn exchange(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        stamp: Stamp,
        ranks: &mut dyn Collective,
        _: f32,
    ) -> Result<u64, Failure> {
        let values = self.queue_take(queue, place, group, stamp.seed)?;
        let own = self.packed.as_ref().map(|packed| (&packed.input, packed.residual.as_ref()));
        let own = own.map(|(input, residual)| queue.all(residual.unwrap_or(input)));
        let entries = own.unwrap_or_else(|| place.residual.clone().unwrap_or_else(|| place.input.clone()));
        match self.finite.refuse(queue, group, &entries) {
            Ok(()) => queue.read(&values, 0, &mut self.sums)?,
            // An entry that is not drawn would stay hidden from the other ranks.
            Err(Error::NotFinite { .. }) => self.sums.fill(f32::NAN),
            Err(error) => return Err(error.into()),
        }
        let weight = mean::all_reduce(ranks, &mut self.sums).map_err(Error::from)?;
        expect_finite(&self.sums, group.recipe.non_finite).map_err(Error::from)?;
        let written = queue.write(&values, 0, bytemuck::cast_slice(&self.sums));
        let spread = written.and_then(|()| self.queue_spread(queue, place, group, stamp.seed, values, weight));
        spread.map_err(Failure::behind)?;
        Ok(4 * self.sums.len() as u64)
    }
}
