//! Tensors of which the seed draws the entries that are sent.

use super::place::{Packed, Place, taken, unpack};
use crate::collective::Collective;
use crate::compressor::failure::{Failure, expect_finite};
use crate::compressor::mean;
use crate::compressor::part::Part;
use crate::compressor::planes::zeros;
use crate::compressor::resident::finite::Finite;
use crate::compressor::resident::memory::Queue;
use crate::embed::{DecodeRandom, DecodeRandomBuffers, DeviceMemory, EncodeRandom, EncodeRandomBuffers, Work};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::random::RandomK;
use crate::seed::Seed;

pub(in crate::compressor::resident) struct Random<D: DeviceMemory> {
    codec: RandomK,
    /// Elements of the part.
    elements: u64,
    feedback: bool,
    /// What is sent.
    values: D::Room,
    /// The same on its way between the ranks.
    sums: Vec<f32>,
    packed: Option<Packed<D>>,
    finite: Finite<D>,
}

impl<D: DeviceMemory> Random<D> {
    pub(super) fn new(queue: &Queue<'_, D>, codec: RandomK, part: &Part, packed: bool) -> Result<Self, Error> {
        let (elements, feedback) = (part.elements() as u64, part.recipe.memory().adds_residual());
        let entries = codec.entries(elements)?;
        let kept = Self {
            codec,
            elements,
            feedback,
            values: queue.room(4 * entries)?,
            sums: zeros(entries as usize)?,
            packed: if packed { Some(Packed::new(queue, elements, feedback)?) } else { None },
            finite: Finite::new(queue)?,
        };
        // A device that is too small is refused here, and in no step.
        kept.passes(&queue.memory().limits()).map(|_| kept)
    }

    /// The passes of a step.
    pub(in crate::compressor::resident) fn passes(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.encode(Seed::new(0)).passes(limits)?.into_owned();
        passes.extend_from_slice(&self.decode(Seed::new(0), 1.0).passes(limits)?);
        Ok(passes)
    }

    /// Bytes of what is sent.
    #[cfg(feature = "cuda")]
    pub(in crate::compressor::resident) fn bytes(&self) -> u64 {
        4 * self.sums.len() as u64
    }

    fn encode(&self, seed: Seed) -> EncodeRandom {
        EncodeRandom { codec: self.codec, elements: self.elements, feedback: self.feedback, seed }
    }

    fn decode(&self, seed: Seed, weight: f32) -> DecodeRandom {
        DecodeRandom { codec: self.codec, elements: self.elements, weight: Some(weight), seed }
    }

    /// Refuses what is not finite of the gradient.
    pub(in crate::compressor::resident) fn refuse(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
    ) -> Result<(), Error> {
        let (gradient, _) = taken(queue, self.packed.as_ref(), place, part)?;
        self.finite.refuse(queue, part, &gradient)
    }

    /// Queues what takes the entries, and leaves the rest in the residual. The seed is the step's.
    pub(in crate::compressor::resident) fn queue_take(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        seed: Seed,
    ) -> Result<D::Slice, Error> {
        let (gradient, residual) = taken(queue, self.packed.as_ref(), place, part)?;
        let values = queue.all(&self.values);
        let buffers = EncodeRandomBuffers { gradient, residual: residual.clone(), values: values.clone() };
        queue.run(self.encode(part.seed_of(seed)), buffers)?;
        if let (Some(_), Some(residual), Some(plane)) = (&self.packed, residual, &place.residual) {
            unpack(queue, part.ranges(), &residual, plane)?;
        }
        Ok(values)
    }

    /// Queues what makes the gradient zero, and the entries this weight times their sums.
    pub(in crate::compressor::resident) fn queue_spread(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        seed: Seed,
        values: D::Slice,
        weight: f32,
    ) -> Result<(), Error> {
        let packed = self.packed.as_ref().map(|packed| queue.all(&packed.input));
        let output = packed.clone().unwrap_or_else(|| place.gradient.clone());
        queue.clear(&output, 0, 4 * self.elements)?;
        queue.run(self.decode(part.seed_of(seed), weight), DecodeRandomBuffers { values, output })?;
        match packed {
            Some(packed) => unpack(queue, part.ranges(), &packed, &place.gradient),
            None => Ok(()),
        }
    }

    /// A step, with its all-reduce; bytes that were handed over.
    pub(in crate::compressor::resident) fn step(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        seed: Seed,
        group: &mut (impl Collective + ?Sized),
    ) -> Result<u64, Failure> {
        let values = self.queue_take(queue, place, part, seed)?;
        let own = self.packed.as_ref().map(|packed| (&packed.input, packed.residual.as_ref()));
        let own = own.map(|(input, residual)| queue.all(residual.unwrap_or(input)));
        let entries = own.unwrap_or_else(|| place.residual.clone().unwrap_or_else(|| place.input.clone()));
        match self.finite.refuse(queue, part, &entries) {
            Ok(()) => queue.read(&values, 0, &mut self.sums)?,
            // An entry that is not drawn would stay hidden from the other ranks.
            Err(Error::NotFinite { .. }) => self.sums.fill(f32::NAN),
            Err(error) => return Err(error.into()),
        }
        let weight = mean::all_reduce(group, &mut self.sums).map_err(Error::from)?;
        expect_finite(&self.sums, part.recipe.non_finite).map_err(Error::from)?;
        let written = queue.write(&values, 0, bytemuck::cast_slice(&self.sums));
        let spread = written.and_then(|()| self.queue_spread(queue, place, part, seed, values, weight));
        spread.map_err(Failure::behind)?;
        Ok(4 * self.sums.len() as u64)
    }
}
