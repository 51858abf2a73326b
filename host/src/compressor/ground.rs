//! What a step does where gradient and state lie.

use std::ops::Range;

use super::algorithm::{self, Means, OnHost};
use super::clip;
use super::failure::{Failure, expect_finite};
use super::frame::Writer;
use super::mean;
use super::part::{Method, Part, Received};
use super::planes::{Held, InStep, Sides, add_onto};
use super::whole::Whole;
use super::witness::Witness;
use crate::collective::Collective;
use crate::device::Device;
use crate::error::Error;
use crate::plan::NonFinite;
use crate::random::RandomK;
use crate::recipe::Algorithm;
use crate::seed::Seed;
use crate::view::are_finite;

/// The memory in which a step is made: the host's, or a device's. A part goes by its number among the parts.
pub(super) trait Ground {
    /// Checks the gradient, makes what is planned by a device's limits, clips the gradient, takes it to coefficients,
    /// and adds it to momenta.
    fn begin(&mut self, parts: &mut [Part], whole: &[Whole]) -> Result<(), Error>;

    /// Refuses what is not finite of a gradient that goes as factors, with the residual, before the first of them is
    /// summed: the other ranks would wait.
    fn refuse_of_factors(&mut self, index: usize, part: &mut Part) -> Result<(), Error>;

    /// Writes the payloads of this rank, and leaves in the residual what they do not hold.
    fn encode(&mut self, index: usize, part: &Part, seed: Seed, message: &mut Writer<'_>) -> Result<(), Error>;

    /// Appends what is sent of a tensor that goes uncompressed.
    fn read(&mut self, tensor: &Whole, to: &mut Vec<f32>) -> Result<(), Error>;

    /// A step of factors, of entries that the seed draws, or by another algorithm than a gather, with all its messages;
    /// bytes that were handed over. The gradient becomes the mean.
    fn summed(
        &mut self,
        index: usize,
        part: &mut Part,
        seed: Seed,
        group: &mut Witness<'_, impl Collective + ?Sized>,
        weight: f32,
    ) -> Result<u64, Failure>;

    /// Writes the mean over the ranks into the gradient. Where what was sent had been formed, this rank's plane takes
    /// up what the rank has sent.
    fn decode(&mut self, index: usize, part: &Part, received: &Received<'_>, own: Own) -> Result<(), Error>;

    /// Refuses a gradient that is not finite: [`Error::NotFinite`].
    fn expect_finite_means(&mut self) -> Result<(), Error>;

    /// Writes a range of the gradient.
    fn write(&mut self, at: usize, values: &[f32]) -> Result<(), Error>;

    /// Takes the means of coefficients back.
    fn end(&mut self, parts: &[Part]) -> Result<(), Error>;

    /// Makes the momentum of elements zero, by their numbers in the gradient: this rank has sent it.
    fn mask(&mut self, index: usize, sent: &[u32]) -> Result<(), Error>;
}

/// This rank's place among the ranks, and what the payload of each counts.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub(super) rank: usize,
    pub(super) weight: f32,
    /// The seed of the step.
    pub(super) step: Seed,
}

/// Gradient and state in the host's memory.
pub(super) struct Host<'s> {
    pub(super) device: &'s Device,
    pub(super) gradient: &'s mut [f32],
    /// Elements that it should have.
    pub(super) elements: u64,
    pub(super) planes: InStep<'s>,
    /// The number of the step, and the model's checksum.
    pub(super) stamp: (u64, u32),
}

impl Host<'_> {
    /// A step of entries that the seed draws, with its all-reduce.
    fn random(
        &mut self,
        codec: &RandomK,
        part: &Part,
        seed: Seed,
        group: &mut (impl Collective + ?Sized),
    ) -> Result<u64, Failure> {
        let (device, seed, mut packed) = (self.device, part.seed_of(seed), part.pack(self.gradient)?);
        let (mut values, finite) = if part.recipe.memory().feedback {
            let residual = self.planes.of(Held::Residual);
            let (values, left, finite) = device.take_random(codec, &packed, &part.pack(residual.before)?, seed)?;
            part.unpack(&left, residual.behind);
            (values, finite)
        } else {
            (device.encode_random(codec, &packed, seed)?, are_finite(bytemuck::cast_slice(&packed)))
        };
        if !finite {
            // An entry that is not drawn would stay hidden from the other ranks.
            values.fill(f32::NAN);
        }
        let weight = mean::all_reduce(group, &mut values).map_err(Error::from)?;
        expect_finite(&values, part.recipe.non_finite).map_err(Error::from)?;
        packed.fill(0.0);
        device.decode_random_add(codec, &values, weight, &mut packed, seed).map_err(Failure::behind)?;
        part.unpack(&packed, self.gradient);
        Ok(4 * values.len() as u64)
    }

    /// Adds the gradient to momenta.
    fn add_momentum(&mut self, ranges: impl Iterator<Item = Range<usize>>, factor: f32, nesterov: bool) {
        let momentum = self.planes.of(Held::Momentum);
        for range in ranges {
            momentum.gather(range.clone(), [factor, 1.0], self.gradient);
            if nesterov {
                // What is kept is u + g, so that the next u is m times it.
                add_onto(&mut self.gradient[range.clone()], factor, &momentum.behind[range]);
            }
        }
    }

    /// What a part takes its payloads or factors of, before anything is formed of it.
    fn input(&self, part: &Part) -> &[f32] {
        if part.recipe.memory().sends_momentum() { self.planes.behind(Held::Momentum) } else { self.gradient }
    }
}

impl Ground for Host<'_> {
    fn begin(&mut self, parts: &mut [Part], whole: &[Whole]) -> Result<(), Error> {
        Error::expect_len("gradient", "elements", self.gradient.len(), self.elements)?;
        parts.iter_mut().try_for_each(|part| part.fit(&self.device.limits()))?;
        for part in parts.iter() {
            if let Some(limit) = part.limit {
                clip::clip(part.ranges(), limit, self.gradient)?;
            }
            if let Some(dct) = part.recipe.dct {
                if part.recipe.policy() == NonFinite::Error {
                    part.refuse_not_finite(self.gradient)?;
                }
                let mut blocks = part.pack(self.gradient)?;
                if let Some(tiles) = &part.order {
                    blocks = tiles.order(&blocks)?;
                }
                let coefficients = self.device.dct(dct.of_order(), &blocks)?;
                part.unpack(&coefficients, self.gradient);
            }
            let memory = part.recipe.memory();
            if let Some(factor) = memory.momentum {
                self.add_momentum(part.ranges(), factor, memory.nesterov);
            }
            if let (Some(formed), Some(held)) = (part.formed, part.forms()) {
                let mut plane = std::mem::replace(self.planes.of(held), Sides::none());
                let input = self.input(part);
                part.ranges().for_each(|range| plane.gather(range, [formed.factor, formed.gain], input));
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

    fn refuse_of_factors(&mut self, _: usize, part: &mut Part) -> Result<(), Error> {
        part.refuse_of_factors(self.input(part))
    }

    fn encode(&mut self, _: usize, part: &Part, seed: Seed, message: &mut Writer<'_>) -> Result<(), Error> {
        if part.via != Algorithm::Gather {
            return Ok(());
        }
        let mut residual = std::mem::replace(self.planes.of(Held::Residual), Sides::none());
        let mut none = Sides::none();
        let (input, residual_of_codec) = match part.forms() {
            Some(Held::Residual) => (&*residual.behind, &mut none),
            Some(held) => (self.planes.behind(held), &mut none),
            None => (self.input(part), &mut residual),
        };
        let done = part.encode(self.device, input, residual_of_codec, seed, message);
        *self.planes.of(Held::Residual) = residual;
        done
    }

    fn read(&mut self, tensor: &Whole, to: &mut Vec<f32>) -> Result<(), Error> {
        let from = if tensor.sends_momentum() { self.planes.behind(Held::Momentum) } else { &*self.gradient };
        to.extend_from_slice(&from[tensor.range()]);
        Ok(())
    }

    fn summed(
        &mut self,
        _: usize,
        part: &mut Part,
        seed: Seed,
        group: &mut Witness<'_, impl Collective + ?Sized>,
        weight: f32,
    ) -> Result<u64, Failure> {
        if part.via != Algorithm::Gather {
            let (step, model) = self.stamp;
            let mut place = algorithm::Place { device: self.device, gradient: self.gradient, planes: &mut self.planes };
            return algorithm::run(
                &mut place,
                part,
                algorithm::Step { step, model, seed, policy: part.recipe.non_finite },
                group,
                weight,
            );
        }
        if let Method::Random { codec } = part.method {
            return self.random(&codec, part, seed, group);
        }
        let momentum = part.recipe.memory().sends_momentum().then(|| self.planes.behind(Held::Momentum));
        let mut packed = match &part.method {
            Method::LowRank { packed: true, .. } => Some(part.pack(self.input(part))?),
            Method::LowRank { .. } => None,
            _ => return Ok(0),
        };
        let (step, model) = self.stamp;
        let step = algorithm::Step { step, model, seed: part.seed_of(seed), policy: part.recipe.non_finite };
        let Method::LowRank { state, through, .. } = &mut part.method else { return Ok(0) };
        let sides = (1..=state.rounds()).map(|round| state.side(round)).collect();
        let (device, mut own) = (self.device, Vec::new());
        let mut means = Means::new(device, group, weight, step, through.as_deref(), sides);
        let mean = |factor: &mut [f32]| means.mean(&mut OnHost { device, factor, from: 0, own: &mut own });
        let done = match (&mut packed, momentum) {
            (Some(packed), _) => self.device.low_rank_step_in_place(state, packed, mean),
            (None, Some(momentum)) => self.device.low_rank_step(state, momentum, self.gradient, mean),
            (None, None) => self.device.low_rank_step_in_place(state, self.gradient, mean),
        };
        let bytes = means.end(done)?;
        if !own.is_empty() {
            // What this rank has not sent stays with it.
            state.keep_own(&own);
        }
        if let Some(packed) = packed {
            part.unpack(&packed, self.gradient);
        }
        Ok(bytes)
    }

    fn decode(&mut self, _: usize, part: &Part, received: &Received<'_>, own: Own) -> Result<(), Error> {
        let Own { rank, weight, step } = own;
        let (Some(formed), Some(held)) = (part.formed, part.forms()) else {
            return part.decode(self.device, received, weight, step, self.gradient);
        };
        let plane = self.planes.of(held);
        if !formed.starts_over {
            part.add(self.device, received, rank..rank + 1, formed.weight, plane.behind)?;
            return part.decode(self.device, received, weight, step, self.gradient);
        }
        part.ranges().for_each(|range| plane.start_over(range));
        part.add(self.device, received, rank..rank + 1, formed.weight, plane.behind)?;
        let mean = self.planes.of(Held::Mean);
        let all = 0..received.ranks();
        for range in part.ranges() {
            mean.start_over(range.clone());
            self.gradient[range.clone()].copy_from_slice(&mean.before[range]);
        }
        part.add(self.device, received, all.clone(), weight, self.gradient)?;
        if formed.weight == 1.0 {
            part.ranges().for_each(|range| mean.behind[range.clone()].copy_from_slice(&self.gradient[range]));
            return Ok(());
        }
        part.add(self.device, received, all, weight * formed.weight, mean.behind)
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
        for part in parts {
            if let Some(dct) = part.recipe.dct {
                let mut mean = self.device.inverse_dct(dct.of_order(), &part.pack(self.gradient)?)?;
                if let Some(tiles) = &part.order {
                    mean = tiles.put_back(&mean)?;
                }
                part.unpack(&mean, self.gradient);
            }
        }
        Ok(())
    }

    fn mask(&mut self, _: usize, sent: &[u32]) -> Result<(), Error> {
        let momentum = self.planes.of(Held::Momentum);
        sent.iter().for_each(|index| momentum.behind[*index as usize] = 0.0);
        Ok(())
    }
}
