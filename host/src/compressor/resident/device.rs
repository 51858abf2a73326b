//! A step in a device's memory.

use std::ops::Range;

use super::state::State;
use crate::compressor::failure::Failure;
use crate::compressor::frame::Writer;
use crate::compressor::group::Group;
use crate::compressor::memory::{Mean, Memory};
use crate::compressor::method::{AnyResident, Part, Received, Target, WayOn, undecodable};
use crate::compressor::planes::Held;
use crate::compressor::queue::{AddMomentum, MomentumBuffers, Place, Queue};
use crate::compressor::stamp::Stamp;
use crate::compressor::whole::Whole;
use crate::compressor::witness::Witness;
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::Error;
use crate::plan::DecodeMode;
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
    /// Whether there are copies of the state before the step.
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

    /// Clips the gradient of a group, and queues its transform to coefficients, and its sums with momentum and with the
    /// state buffer in which values are formed.
    pub(super) fn form(&mut self, index: usize, group: &Group) -> Result<(), Error> {
        let Self { queue, state, gradient, elements, written, .. } = self;
        let elements = *elements;
        // `onto` becomes `factor` times itself, plus `gain` times `input`.
        let add = |input: &D::Slice, onto: &D::Slice, [factor, gain]: [f32; 2]| {
            group.ranges().filter(|range| !range.is_empty()).try_for_each(|range| {
                let work = AddMomentum { range: range.start as u64..range.end as u64, elements, factor, gain };
                queue.run(work, MomentumBuffers { gradient: input.clone(), momentum: onto.clone() })
            })
        };
        let norms = state.norms.get(index).and_then(Option::as_ref);
        if let (Some(norms), Some(limit), Some(before)) = (norms, group.limit, &state.gradient)
            && let Some(gain) = norms.gain(queue, gradient, limit)?
        {
            // Of finite numbers, none times itself adds a zero of the product's sign.
            *written = true;
            add(&queue.all(before), &*gradient, [0.0, gain])?;
        }
        if let Some(cosines) = state.cosines.get(index).and_then(Option::as_ref) {
            *written = true;
            cosines.there(queue, group, gradient)?;
        }
        let mut input = gradient.clone();
        let memory = group.recipe.memory();
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
        if let (Some(held), Some(by)) = (group.forms(), group.formed)
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

    /// The memory of the values to send of a tensor that goes uncompressed.
    pub(super) fn sent(&self, tensor: &Whole) -> D::Slice {
        let momentum = self.state.plane(Held::Momentum).filter(|_| tensor.sends_momentum());
        momentum.map_or_else(|| self.gradient.clone(), |plane| self.queue.all(&plane.now))
    }

    /// The memory of a group in this step, and its method.
    pub(super) fn place(&mut self, index: usize, group: &Group) -> (&Queue<'_, D>, Place<'_, D>, &mut AnyResident<D>) {
        let Self { queue, device, gradient, state, .. } = self;
        let sent = group.recipe.memory().sends_momentum().then_some(Held::Momentum);
        let input = group.forms().or(sent).and_then(|held| state.plane(held));
        let input = input.map_or_else(|| gradient.clone(), |plane| queue.all(&plane.now));
        let now = |held: Held| state.plane(held).map(|plane| queue.all(&plane.now));
        let residual = now(Held::Residual).filter(|_| group.recipe.memory().adds_residual());
        let place = Place { device, input, residual, gradient: gradient.clone(), momentum: now(Held::Momentum) };
        (queue, place, &mut state.methods[index])
    }
}

impl<D: DeviceMemory> Memory for Resident<'_, D> {
    fn begin(&mut self, parts: &mut [Part], whole: &[Whole]) -> Result<(), Error> {
        let Self { queue, state, gradient, elements, .. } = self;
        let bytes = 4 * *elements;
        queue.memory().check("gradient", gradient, bytes)?;
        state.keep(queue, bytes)?;
        if let Some(before) = &state.gradient {
            queue.copy((gradient, 0), (&queue.all(before), 0), bytes)?;
        }
        self.begun = true;
        parts.iter().enumerate().try_for_each(|(index, part)| self.form(index, &part.group))?;
        self.form_whole(whole)
    }

    fn refuse(&mut self, index: usize, Part { group, .. }: &mut Part) -> Result<(), Error> {
        let (queue, place, method) = self.place(index, group);
        match method.way() {
            WayOn::Summed(method) => method.refuse(queue, &place, group),
            WayOn::Gathered(_) => Ok(()),
        }
    }

    fn encode(&mut self, index: usize, part: &Part, seed: Seed, message: &mut Writer<'_>) -> Result<(), Error> {
        let (queue, place, method) = self.place(index, &part.group);
        match method.way() {
            WayOn::Gathered(method) => method.encode(queue, &place, &part.group, seed, message),
            WayOn::Summed(_) => Ok(()),
        }
    }

    fn read(&mut self, tensor: &Whole, to: &mut Vec<f32>) -> Result<(), Error> {
        let (from, range) = (to.len(), tensor.range());
        to.resize(from + range.len(), 0.0);
        self.queue.read(&self.sent(tensor), 4 * range.start as u64, &mut to[from..])
    }

    fn exchange(
        &mut self,
        index: usize,
        Part { group, .. }: &mut Part,
        seed: Seed,
        ranks: &mut Witness<'_>,
        weight: f32,
    ) -> Result<u64, Failure> {
        let (step, model) = self.stamp;
        let stamp = Stamp { step, model, seed: group.seed_of(seed), policy: group.recipe.non_finite };
        let (queue, place, method) = self.place(index, group);
        let done = match method.way() {
            WayOn::Summed(method) => method.exchange(queue, &place, group, stamp, ranks, weight),
            WayOn::Gathered(_) => return Ok(0),
        };
        self.written |= matches!(done, Ok(_) | Err(Failure { error: Error::Backend { .. }, .. }));
        done
    }

    fn decode(
        &mut self,
        index: usize,
        Part { group, .. }: &Part,
        received: &Received<'_>,
        Mean { rank, weight, seed }: Mean,
    ) -> Result<(), Error> {
        self.written = true;
        let Self { queue, device, gradient, state, .. } = self;
        let State { planes, methods, .. } = &mut **state;
        let WayOn::Gathered(method) = methods[index].way() else { return Err(undecodable()) };
        let (all, mine) = (0..received.ranks(), rank..rank + 1);
        let mut add = |output: &D::Slice, ranks: Range<usize>, mode: DecodeMode| {
            method.decode(queue, device, group, received, Target { output, ranks, mode, seed })
        };
        let (Some(formed), Some(held)) = (group.formed, group.forms()) else {
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
            group.ranges().try_for_each(|range| {
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
            .try_for_each(|(part, cosines)| cosines.back(queue, &part.group, gradient))
    }

    fn mask(&mut self, index: usize, part: &Part, sent: &[u32]) -> Result<(), Error> {
        let elements = self.elements;
        let (queue, place, method) = self.place(index, &part.group);
        match method.way() {
            WayOn::Gathered(method) => method.mask(queue, &place, sent, elements),
            WayOn::Summed(_) => Err(undecodable()),
        }
    }
}
