//! The memory in which a step is made.

use std::ops::Range;

use super::clip;
use super::failure::Failure;
use super::frame::Writer;
use super::host::Host;
use super::method::{Part, Received, Target, Values, Way, undecodable};
use super::planes::{Held, Sides};
use super::stamp::Stamp;
use super::whole::Whole;
use super::witness::Witness;
use crate::error::Error;
use crate::plan::{DecodeMode, NonFinite};
use crate::recipe::Algorithm;
use crate::seed::Seed;

/// The memory in which a step is made: the host's, or a device's. `index` is the number of a part among the parts.
pub(super) trait Memory {
    /// Checks the gradient, makes plans for a device's limits, clips the gradient, transforms it to coefficients, adds
    /// it to momenta, and forms the values to encode, in state buffers, if the recipe forms them.
    fn begin(&mut self, parts: &mut [Part], whole: &[Whole]) -> Result<(), Error>;

    /// Refuses non-finite values of a part whose messages the ranks sum, before the first message: the other ranks
    /// would wait.
    fn refuse(&mut self, index: usize, part: &mut Part) -> Result<(), Error>;

    /// Writes this rank's payloads, and into the residual the values that they leave out. Nothing for a part that this
    /// step does not gather.
    fn encode(&mut self, index: usize, part: &Part, seed: Seed, message: &mut Writer<'_>) -> Result<(), Error>;

    /// Appends the values to send of a tensor that goes uncompressed.
    fn read(&mut self, tensor: &Whole, to: &mut Vec<f32>) -> Result<(), Error>;

    /// The messages of a part that the step does not gather: factors, entries that the seed draws, or another algorithm
    /// than a gather. The gradient becomes the mean. Returns the bytes that were sent; 0 for a gathered part.
    fn exchange(
        &mut self,
        index: usize,
        part: &mut Part,
        seed: Seed,
        ranks: &mut Witness<'_>,
        weight: f32,
    ) -> Result<u64, Failure>;

    /// Writes the mean over the ranks into the gradient. If the payloads were formed in a state buffer, updates it by
    /// the values that this rank has sent: a residual loses them, an estimate takes up a share, and so does the mean of
    /// estimates.
    fn decode(&mut self, index: usize, part: &Part, received: &Received<'_>, mean: Mean) -> Result<(), Error>;

    /// Refuses a non-finite gradient: [`Error::NotFinite`].
    fn expect_finite_means(&mut self) -> Result<(), Error>;

    /// Writes a range of the gradient.
    fn write(&mut self, at: usize, values: &[f32]) -> Result<(), Error>;

    /// Transforms the means of coefficients back.
    fn end(&mut self, parts: &[Part]) -> Result<(), Error>;

    /// Makes the momentum of elements zero, by their numbers in the gradient: this rank has sent it.
    fn mask(&mut self, index: usize, part: &Part, sent: &[u32]) -> Result<(), Error>;
}

/// A mean over the ranks.
#[derive(Clone, Copy)]
pub(super) struct Mean {
    /// This rank.
    pub(super) rank: usize,
    /// The factor of each rank's payload.
    pub(super) weight: f32,
    /// The seed of the step.
    pub(super) seed: Seed,
}

impl Memory for Host<'_> {
    fn begin(&mut self, parts: &mut [Part], whole: &[Whole]) -> Result<(), Error> {
        Error::expect_len("gradient", "elements", self.gradient.len(), self.elements)?;
        parts.iter_mut().try_for_each(|part| part.fit(&self.device.limits()))?;
        for Part { group, .. } in parts.iter() {
            if let Some(limit) = group.limit {
                clip::clip(group.ranges(), limit, self.gradient)?;
            }
            if let Some(dct) = group.recipe.dct {
                if group.recipe.policy() == NonFinite::Error {
                    group.refuse_not_finite(self.gradient)?;
                }
                let mut blocks = group.pack(self.gradient)?;
                if let Some(tiles) = &group.order {
                    blocks = tiles.order(&blocks)?;
                }
                let coefficients = self.device.dct(dct.of_order(), &blocks)?;
                group.unpack(&coefficients, self.gradient);
            }
            let memory = group.recipe.memory();
            if let Some(factor) = memory.momentum {
                self.add_momentum(group.ranges(), factor, memory.nesterov);
            }
            if let (Some(formed), Some(held)) = (group.formed, group.forms()) {
                let mut plane = std::mem::replace(self.planes.of(held), Sides::none());
                let input = self.input(group);
                group.ranges().for_each(|range| plane.gather(range, [formed.factor, formed.gain], input));
                *self.planes.of(held) = plane;
            }
        }
        for tensor in whole {
            if let Some(factor) = tensor.momentum {
                self.add_momentum(std::iter::once(tensor.range()), factor, tensor.nesterov);
            }
        }
        Ok(())
    }

    fn refuse(&mut self, _: usize, Part { group, method }: &mut Part) -> Result<(), Error> {
        match method.way() {
            Way::Summed(method) => method.refuse(group, self.input(group)),
            Way::Gathered(_) => Ok(()),
        }
    }

    fn encode(&mut self, _: usize, part: &Part, seed: Seed, message: &mut Writer<'_>) -> Result<(), Error> {
        let Some(method) = part.gathered() else { return Ok(()) };
        let mut residual = std::mem::replace(self.planes.of(Held::Residual), Sides::none());
        let mut none = Sides::none();
        let (input, residual_of_codec) = match part.group.forms() {
            Some(Held::Residual) => (&*residual.behind, &mut none),
            Some(held) => (self.planes.behind(held), &mut none),
            None => (self.input(&part.group), &mut residual),
        };
        let values = Values { device: self.device, input, residual: residual_of_codec, seed };
        let done = method.encode(&part.group, values, message);
        *self.planes.of(Held::Residual) = residual;
        done
    }

    fn read(&mut self, tensor: &Whole, to: &mut Vec<f32>) -> Result<(), Error> {
        let from = if tensor.sends_momentum() { self.planes.behind(Held::Momentum) } else { &*self.gradient };
        to.extend_from_slice(&from[tensor.range()]);
        Ok(())
    }

    fn exchange(
        &mut self,
        _: usize,
        Part { group, method }: &mut Part,
        seed: Seed,
        ranks: &mut Witness<'_>,
        weight: f32,
    ) -> Result<u64, Failure> {
        let (step, model) = self.stamp;
        let stamp = Stamp { step, model, seed, policy: group.recipe.non_finite };
        match method.way() {
            Way::Gathered(_) if group.via == Algorithm::Gather => Ok(0),
            Way::Gathered(method) => method.exchange(group, self, stamp, ranks, weight),
            Way::Summed(method) => {
                let stamp = Stamp { seed: group.seed_of(seed), ..stamp };
                method.exchange(group, self, stamp, ranks, weight)
            }
        }
    }

    fn decode(
        &mut self,
        _: usize,
        Part { group, method }: &Part,
        received: &Received<'_>,
        Mean { rank, weight, seed }: Mean,
    ) -> Result<(), Error> {
        let Some(method) = method.gathered() else { return Err(undecodable()) };
        let (device, all, mine) = (self.device, 0..received.ranks(), rank..rank + 1);
        let add = |output: &mut [f32], ranks: Range<usize>, mode: DecodeMode| {
            method.decode(group, device, received, Target { output, ranks, mode, seed })
        };
        let (Some(formed), Some(held)) = (group.formed, group.forms()) else {
            return add(self.gradient, all, DecodeMode::Sum(weight));
        };
        let plane = self.planes.of(held);
        if !formed.starts_over {
            add(plane.behind, mine, DecodeMode::Add(formed.weight))?;
            return add(self.gradient, all, DecodeMode::Sum(weight));
        }
        group.ranges().for_each(|range| plane.start_over(range));
        add(plane.behind, mine, DecodeMode::Add(formed.weight))?;
        let mean = self.planes.of(Held::Mean);
        for range in group.ranges() {
            mean.start_over(range.clone());
            self.gradient[range.clone()].copy_from_slice(&mean.before[range]);
        }
        add(self.gradient, all.clone(), DecodeMode::Add(weight))?;
        if formed.weight == 1.0 {
            group.ranges().for_each(|range| mean.behind[range.clone()].copy_from_slice(&self.gradient[range]));
            return Ok(());
        }
        add(mean.behind, all, DecodeMode::Add(weight * formed.weight))
    }

    fn expect_finite_means(&mut self) -> Result<(), Error> {
        let wrong = self.gradient.iter().position(|mean| !mean.is_finite());
        wrong.map_or(Ok(()), |index| Err(Error::NotFinite { index: index as u64 }))
    }

    fn write(&mut self, at: usize, values: &[f32]) -> Result<(), Error> {
        self.gradient[at..at + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn end(&mut self, parts: &[Part]) -> Result<(), Error> {
        for Part { group, .. } in parts {
            if let Some(dct) = group.recipe.dct {
                let mut mean = self.device.inverse_dct(dct.of_order(), &group.pack(self.gradient)?)?;
                if let Some(tiles) = &group.order {
                    mean = tiles.put_back(&mean)?;
                }
                group.unpack(&mean, self.gradient);
            }
        }
        Ok(())
    }

    fn mask(&mut self, _: usize, _: &Part, sent: &[u32]) -> Result<(), Error> {
        let momentum = self.planes.of(Held::Momentum);
        sent.iter().for_each(|index| momentum.behind[*index as usize] = 0.0);
        Ok(())
    }
}
