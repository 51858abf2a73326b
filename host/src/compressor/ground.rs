//! What a step does where gradient and state lie.

use std::ops::Range;

use super::frame::Writer;
use super::part::{Method, Part, Received};
use super::planes::InStep;
use crate::collective::Collective;
use crate::device::Device;
use crate::error::Error;
use crate::seed::Seed;

/// The memory in which a step is made: the host's, or a device's. A part goes by its number among the parts.
pub(super) trait Ground {
    /// Checks the gradient, makes what is planned by a device's limits, and adds the gradient to momenta.
    fn begin(&mut self, parts: &mut [Part]) -> Result<(), Error>;

    /// Refuses what is not finite of a gradient that goes as factors, with the residual, before the first of them is
    /// summed: the other ranks would wait.
    fn refuse_of_factors(&mut self, index: usize, part: &mut Part) -> Result<(), Error>;

    /// Writes the payloads of this rank, and leaves in the residual what they do not hold.
    fn encode(&mut self, index: usize, part: &Part, seed: Seed, message: &mut Writer<'_>) -> Result<(), Error>;

    /// Appends a range of the gradient.
    fn read(&mut self, range: Range<usize>, to: &mut Vec<f32>) -> Result<(), Error>;

    /// A step of factors, with its all-reduces; bytes that were handed over. The gradient becomes the mean.
    fn low_rank(
        &mut self,
        index: usize,
        part: &mut Part,
        group: &mut (impl Collective + ?Sized),
        weight: f32,
    ) -> Result<u64, Error>;

    /// Writes the mean over the ranks into the gradient.
    fn decode(&mut self, index: usize, part: &Part, received: &Received<'_>, weight: f32) -> Result<(), Error>;

    /// Writes a range of the gradient.
    fn write(&mut self, at: usize, values: &[f32]) -> Result<(), Error>;

    /// Makes the momentum of elements zero, by their numbers in the gradient: this rank has sent it.
    fn mask(&mut self, index: usize, sent: &[u32]) -> Result<(), Error>;
}

/// Gradient and state in the host's memory.
pub(super) struct Host<'s> {
    pub(super) device: &'s Device,
    pub(super) gradient: &'s mut [f32],
    /// Elements that it should have.
    pub(super) elements: u64,
    pub(super) planes: InStep<'s>,
}

impl Host<'_> {
    /// What a part takes its payloads or factors of.
    fn input<'i>(part: &Part, gradient: &'i [f32], momentum: &'i [f32]) -> &'i [f32] {
        if part.recipe.memory().momentum.is_some() { momentum } else { gradient }
    }
}

impl Ground for Host<'_> {
    fn begin(&mut self, parts: &mut [Part]) -> Result<(), Error> {
        Error::expect_len("gradient", "elements", self.gradient.len(), self.elements)?;
        parts.iter_mut().try_for_each(|part| part.fit(&self.device.limits()))?;
        for part in parts.iter() {
            if let Some(factor) = part.recipe.memory().momentum {
                part.ranges().for_each(|range| self.planes.momentum.gather(range, factor, self.gradient));
            }
        }
        Ok(())
    }

    fn refuse_of_factors(&mut self, _: usize, part: &mut Part) -> Result<(), Error> {
        part.refuse_of_factors(Self::input(part, self.gradient, self.planes.momentum.behind))
    }

    fn encode(&mut self, _: usize, part: &Part, seed: Seed, message: &mut Writer<'_>) -> Result<(), Error> {
        let input = Self::input(part, self.gradient, self.planes.momentum.behind);
        part.encode(self.device, input, &mut self.planes.residual, seed, message)
    }

    fn read(&mut self, range: Range<usize>, to: &mut Vec<f32>) -> Result<(), Error> {
        to.extend_from_slice(&self.gradient[range]);
        Ok(())
    }

    fn low_rank(
        &mut self,
        _: usize,
        part: &mut Part,
        group: &mut (impl Collective + ?Sized),
        weight: f32,
    ) -> Result<u64, Error> {
        let momentum = part.recipe.memory().momentum.map(|_| &*self.planes.momentum.behind);
        let packed = match &part.method {
            Method::LowRank { packed: true, .. } => Some(part.pack(momentum.unwrap_or(self.gradient))),
            Method::LowRank { .. } => None,
            _ => return Ok(0),
        };
        let Method::LowRank { state, .. } = &mut part.method else { return Ok(0) };
        let bytes = state.step_bytes() as u64;
        let mean = |factor: &mut [f32]| -> Result<(), Error> {
            group.all_reduce_sum(factor)?;
            factor.iter_mut().for_each(|entry| *entry *= weight);
            Ok(())
        };
        match (packed, momentum) {
            (Some(mut packed), _) => {
                self.device.low_rank_step_in_place(state, &mut packed, mean)?;
                part.unpack(&packed, self.gradient);
            }
            (None, Some(momentum)) => self.device.low_rank_step(state, momentum, self.gradient, mean)?,
            (None, None) => self.device.low_rank_step_in_place(state, self.gradient, mean)?,
        }
        Ok(bytes)
    }

    fn decode(&mut self, _: usize, part: &Part, received: &Received<'_>, weight: f32) -> Result<(), Error> {
        part.decode(self.device, received, weight, self.gradient)
    }

    fn write(&mut self, at: usize, values: &[f32]) -> Result<(), Error> {
        self.gradient[at..at + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn mask(&mut self, _: usize, sent: &[u32]) -> Result<(), Error> {
        sent.iter().for_each(|index| self.planes.momentum.behind[*index as usize] = 0.0);
        Ok(())
    }
}
