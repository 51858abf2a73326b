//! A step in a device's memory.

use std::ops::Range;

use super::kept::{Kept, Onto, Place};
use super::memory::{AddMomentum, MomentumBuffers, Queue};
use super::state::State;
use crate::collective::Collective;
use crate::compressor::algorithm::Step;
use crate::compressor::failure::Failure;
use crate::compressor::frame::Writer;
use crate::compressor::ground::{Ground, Own};
use crate::compressor::part::{Part, Received};
use crate::compressor::planes::Held;
use crate::compressor::whole::Whole;
use crate::compressor::witness::Witness;
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::Error;
use crate::plan::{DecodeMode, NonFinite};
use crate::seed::Seed;

/// Gradient and state in a device's memory.
pub(super) struct Resident<'s, D: DeviceMemory> {
    pub(super) queue: Queue<'s, D>,
    pub(super) device: &'s Device,
    pub(super) elements: u64,
    pub(super) gradient: D::Slice,
    /// The number of the step, and the model's checksum.
    pub(super) stamp: (u64, u32),
    pub(super) state: &'s mut State<D>,
    /// Whether there are copies of what was before the step.
    pub(super) begun: bool,
    /// Whether the gradient may have been written.
    pub(super) written: bool,
}

impl<D: DeviceMemory> Resident<'_, D> {
    /// Makes state and gradient what they were before the step, and says whether they are: where the device fails
    /// again, or has failed while it wrote a gradient of which there is no copy, they are not.
    pub(super) fn undo(&mut self) -> Result<bool, Error> {
        let Self { queue, state, gradient, .. } = self;
        if !self.begun {
            return Ok(true);
        }
        let bytes = 4 * self.elements;
        state.undo(queue, bytes)?;
        if let Some(before) = &state.gradient {
            queue.copy((&queue.all(before), 0), (gradient, 0), bytes)?;
        }
        Ok(state.gradient.is_some() || !self.written)
    }

    /// Makes the gradient NaN: the step is skipped.
    pub(super) fn spoil(&self) -> Result<(), Error> {
        let nan = vec![f32::NAN; self.elements as usize];
        self.queue.write(&self.gradient, 0, bytemuck::cast_slice(&nan))
    }

    /// Clips the gradient of a part, and queues what takes it to coefficients, and what adds it to what the part keeps
    /// of it: momentum, and what it forms.
    pub(super) fn form(&mut self, index: usize, part: &Part) -> Result<(), Error> {
        let Self { queue, state, gradient, elements, written, .. } = self;
        let elements = *elements;
        // `onto` becomes `factor` times itself, plus `gain` times `input`.
        let add = |input: &D::Slice, onto: &D::Slice, [factor, gain]: [f32; 2]| {
            part.ranges().filter(|range| !range.is_empty()).try_for_each(|range| {
                let work = AddMomentum { range: range.start as u64..range.end as u64, elements, factor, gain };
                queue.run(work, MomentumBuffers { gradient: input.clone(), momentum: onto.clone() })
            })
        };
        let norms = state.norms.get(index).and_then(Option::as_ref);
        if let (Some(norms), Some(limit), Some(before)) = (norms, part.limit, &state.gradient)
            && let Some(gain) = norms.gain(queue, gradient, limit)?
        {
            // Of finite numbers, none times itself adds a zero of the product's sign.
            *written = true;
            add(&queue.all(before), &*gradient, [0.0, gain])?;
        }
        if let Some(cosines) = state.cosines.get(index).and_then(Option::as_ref) {
            *written = true;
            cosines.there(queue, part, gradient)?;
        }
        let mut input = gradient.clone();
        let memory = part.recipe.memory();
        if let (Some(factor), Some(plane)) = (memory.momentum, state.plane(Held::Momentum)) {
            let plane = queue.all(&plane.now);
            add(&input, &plane, [factor, 1.0])?;
            if memory.nesterov {
                *written = true;
                add(&plane, &*gradient, [1.0, factor])?;
            } else {
                input = plane;
            }
        }
        if let (Some(held), Some(by)) = (part.forms(), part.formed)
            && let Some(plane) = state.plane(held)
        {
            add(&input, &queue.all(&plane.now), [by.factor, by.gain])?;
        }
        Ok(())
    }

    /// Queues what adds the gradient of tensors that go uncompressed to their momenta.
    pub(super) fn form_whole(&mut self, whole: &[Whole]) -> Result<(), Error> {
        let Self { queue, state, gradient, elements, written, .. } = self;
        let Some(momentum) = state.plane(Held::Momentum).map(|plane| queue.all(&plane.now)) else { return Ok(()) };
        for tensor in whole.iter().filter(|tensor| tensor.span.elements > 0) {
            let Some(by) = tensor.momentum else { continue };
            let add = |input: &D::Slice, onto: &D::Slice, [factor, gain]: [f32; 2]| {
                let work =
                    AddMomentum { range: tensor.span.offset..tensor.span.end(), elements: *elements, factor, gain };
                queue.run(work, MomentumBuffers { gradient: input.clone(), momentum: onto.clone() })
            };
            add(gradient, &momentum, [by, 1.0])?;
            if tensor.nesterov {
                *written = true;
                add(&momentum, gradient, [1.0, by])?;
            }
        }
        Ok(())
    }

    /// The memory that holds what is sent of a tensor that goes uncompressed.
    pub(super) fn sent(&self, tensor: &Whole) -> D::Slice {
        let momentum = self.state.plane(Held::Momentum).filter(|_| tensor.sends_momentum());
        momentum.map_or_else(|| self.gradient.clone(), |plane| self.queue.all(&plane.now))
    }

    /// What a part works on.
    pub(super) fn place(&mut self, index: usize, part: &Part) -> (&Queue<'_, D>, Place<'_, D>, &mut Kept<D>) {
        let Self { queue, device, gradient, state, .. } = self;
        let momentum = part.recipe.memory().sends_momentum().then_some(Held::Momentum);
        let input = part.forms().or(momentum).and_then(|held| state.plane(held));
        let input = input.map_or_else(|| gradient.clone(), |plane| queue.all(&plane.now));
        let feedback = part.recipe.memory().adds_residual();
        let residual = state.plane(Held::Residual).filter(|_| feedback).map(|plane| queue.all(&plane.now));
        let place = Place { device, input, residual, gradient: gradient.clone() };
        (queue, place, &mut state.parts[index])
    }
}

impl<D: DeviceMemory> Ground for Resident<'_, D> {
    fn begin(&mut self, parts: &mut [Part], whole: &[Whole]) -> Result<(), Error> {
        let Self { queue, state, gradient, elements, .. } = self;
        let bytes = 4 * *elements;
        queue.memory().check("gradient", gradient, bytes)?;
        state.keep(queue, bytes)?;
        if let Some(before) = &state.gradient {
            queue.copy((gradient, 0), (&queue.all(before), 0), bytes)?;
        }
        self.begun = true;
        parts.iter().enumerate().try_for_each(|(index, part)| self.form(index, part))?;
        self.form_whole(whole)
    }

    fn refuse_of_factors(&mut self, index: usize, part: &mut Part) -> Result<(), Error> {
        if part.recipe.non_finite != NonFinite::Error {
            return Ok(());
        }
        // Beginning the step looks for them.
        match self.place(index, part) {
            (queue, place, Kept::LowRank(kept)) => kept.begin(queue, &place, part),
            (queue, place, Kept::Random(kept)) => kept.refuse(queue, &place, part),
            (_, _, Kept::Dense(_) | Kept::Sparse(_) | Kept::Rotated(_)) => Ok(()),
        }
    }

    fn encode(&mut self, index: usize, part: &Part, seed: Seed, message: &mut Writer<'_>) -> Result<(), Error> {
        let (queue, place, kept) = self.place(index, part);
        match kept {
            Kept::Dense(kept) => kept.encode(queue, &place, part, seed, message),
            Kept::Sparse(kept) => kept.encode(queue, &place, part, seed, message),
            Kept::Rotated(kept) => kept.encode(queue, &place, part, seed, message),
            Kept::LowRank(_) | Kept::Random(_) => Ok(()),
        }
    }

    fn read(&mut self, tensor: &Whole, to: &mut Vec<f32>) -> Result<(), Error> {
        let (from, range) = (to.len(), tensor.range());
        to.resize(from + range.len(), 0.0);
        self.queue.read(&self.sent(tensor), 4 * range.start as u64, &mut to[from..])
    }

    fn summed(
        &mut self,
        index: usize,
        part: &mut Part,
        seed: Seed,
        group: &mut Witness<'_, impl Collective + ?Sized>,
        weight: f32,
    ) -> Result<u64, Failure> {
        let (step, model) = self.stamp;
        let step = Step { step, model, seed: part.seed_of(seed), policy: part.recipe.non_finite };
        let done = match self.place(index, part) {
            (queue, place, Kept::LowRank(kept)) => kept.step(queue, &place, part, step, group, weight),
            (queue, place, Kept::Random(kept)) => kept.step(queue, &place, part, seed, group),
            (_, _, Kept::Dense(_) | Kept::Sparse(_) | Kept::Rotated(_)) => return Ok(0),
        };
        self.written |= matches!(done, Ok(_) | Err(Failure { error: Error::Backend { .. }, .. }));
        done
    }

    fn decode(&mut self, index: usize, part: &Part, received: &Received<'_>, own: Own) -> Result<(), Error> {
        let Own { rank, weight, step } = own;
        self.written |= part.payloads() > 0;
        let Self { queue, device, gradient, state, .. } = self;
        let State { planes, parts, .. } = &mut **state;
        let kept = &mut parts[index];
        let (all, mine) = (0..received.ranks(), rank..rank + 1);
        let mut add = |output: &D::Slice, ranks: Range<usize>, mode: DecodeMode| {
            kept.decode(queue, device, part, received, Onto { output, ranks, mode, step })
        };
        let (Some(formed), Some(held)) = (part.formed, part.forms()) else {
            return add(gradient, all, DecodeMode::Sum(weight));
        };
        let Some(plane) = &planes[held as usize] else { return Ok(()) };
        let now = queue.all(&plane.now);
        if !formed.starts_over {
            add(&now, mine, DecodeMode::Add(formed.weight))?;
            return add(gradient, all, DecodeMode::Sum(weight));
        }
        let Some(mean) = &planes[Held::Mean as usize] else { return Ok(()) };
        let (before, mean) = (queue.all(&plane.before), queue.all(&mean.now));
        let copy = |from: &D::Slice, to: &D::Slice| {
            part.ranges().try_for_each(|range| {
                let at = 4 * range.start as u64;
                queue.copy((from, at), (to, at), 4 * range.len() as u64)
            })
        };
        copy(&before, &now)?;
        add(&now, mine, DecodeMode::Add(formed.weight))?;
        copy(&mean, gradient)?;
        add(gradient, all.clone(), DecodeMode::Add(weight))?;
        if formed.weight == 1.0 {
            return copy(gradient, &mean);
        }
        add(&mean, all, DecodeMode::Add(weight * formed.weight))
    }

    fn expect_finite_means(&mut self) -> Result<(), Error> {
        let Some(finite) = &self.state.finite else { return Ok(()) };
        finite.refuse_of(&self.queue, self.elements, &self.gradient)
    }

    fn write(&mut self, at: usize, values: &[f32]) -> Result<(), Error> {
        self.written = true;
        self.queue.write(&self.gradient, 4 * at as u64, bytemuck::cast_slice(values))
    }

    fn end(&mut self, parts: &[Part]) -> Result<(), Error> {
        let Self { queue, state, gradient, .. } = self;
        let cosines = parts.iter().zip(&state.cosines);
        cosines
            .filter_map(|(part, cosines)| Some((part, cosines.as_ref()?)))
            .try_for_each(|(part, cosines)| cosines.back(queue, part, gradient))
    }

    fn mask(&mut self, index: usize, sent: &[u32]) -> Result<(), Error> {
        let Self { queue, state, elements, .. } = self;
        let State { parts, planes: [_, Some(momentum), ..], .. } = &mut **state else { return Ok(()) };
        match &mut parts[index] {
            Kept::Sparse(kept) => kept.put(queue, sent, None, &queue.all(&momentum.now), *elements),
            Kept::Dense(_) | Kept::Rotated(_) | Kept::LowRank(_) | Kept::Random(_) => Ok(()),
        }
    }
}
