//! What a compressor keeps of every element from step to step.

use std::ops::Range;

use gradwire_kernels::arith::memory::momentum;
use rayon::prelude::*;

use crate::error::Error;

/// Elements that a thread takes at a time.
const TAKEN: usize = 1 << 16;

/// A number for each element of the gradient, and room for it before the step or behind it.
#[derive(Clone, Debug, Default)]
struct Plane {
    now: Vec<f32>,
    other: Vec<f32>,
}

impl Plane {
    fn zeros(elements: usize) -> Result<Self, Error> {
        Ok(Self { now: zeros(elements)?, other: zeros(elements)? })
    }
}

/// The planes: residual and momentum, each empty where no recipe needs it. A step is made on the planes and then kept
/// or undone.
#[derive(Clone, Debug, Default)]
pub(super) struct Planes {
    residual: Plane,
    momentum: Plane,
    /// Where the step under way has changed the residual.
    changed: Vec<Range<usize>>,
    /// Whether each step writes all of the residual anew, so that both may change places.
    apart: bool,
    /// Whether the step under way has done so.
    moved: bool,
}

/// The planes in a step.
#[derive(Debug)]
pub(super) struct InStep<'p> {
    pub(super) residual: Residual<'p>,
    pub(super) momentum: Momentum<'p>,
}

/// The residual in a step, with a copy of what the step changes.
#[derive(Debug)]
pub(super) struct Residual<'p> {
    now: &'p mut [f32],
    before: &'p mut [f32],
    changed: &'p mut Vec<Range<usize>>,
    apart: bool,
    moved: &'p mut bool,
}

/// The momentum before a step, and behind it.
#[derive(Debug)]
pub(super) struct Momentum<'p> {
    before: &'p [f32],
    pub(super) now: &'p mut [f32],
}

impl Momentum<'_> {
    /// The momentum behind this step, of the elements in `range`.
    pub(super) fn gather(&mut self, range: Range<usize>, factor: f32, gradient: &[f32]) {
        let gradient = gradient[range.clone()].par_chunks(TAKEN);
        let before = self.before[range.clone()].par_chunks(TAKEN);
        let pieces = self.now[range].par_chunks_mut(TAKEN).zip(before).zip(gradient);
        pieces.for_each(|((next, before), gradient)| {
            for ((next, before), gradient) in next.iter_mut().zip(before).zip(gradient) {
                *next = momentum(*before, factor, *gradient);
            }
        });
    }
}

impl Residual<'_> {
    /// All of it, after copies were made of the ranges that are about to change. No range may be named twice in a step.
    pub(super) fn change(&mut self, ranges: impl Iterator<Item = Range<usize>>) -> &mut [f32] {
        for range in ranges {
            let now = self.now[range.clone()].par_chunks(TAKEN);
            self.before[range.clone()].par_chunks_mut(TAKEN).zip(now).for_each(|(to, from)| to.copy_from_slice(from));
            self.changed.push(range);
        }
        self.now
    }

    /// A range that is changed by work, which leaves the residual in the first memory as it is where it is given a
    /// second one, and writes the new one there.
    pub(super) fn change_by<E>(
        &mut self,
        range: Range<usize>,
        work: impl FnOnce(&mut [f32], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.apart {
            *self.moved = true;
            return work(&mut self.now[range.clone()], &mut self.before[range]);
        }
        let now = self.change(std::iter::once(range.clone()));
        work(&mut now[range], &mut [])
    }
}

impl Planes {
    /// Planes of so many elements. `apart` where every part writes all of its residual in each step, beside the old one.
    pub(super) fn new(elements: usize, feedback: bool, momentum: bool, apart: bool) -> Result<Self, Error> {
        let plane = |needed| if needed { Plane::zeros(elements) } else { Ok(Plane::default()) };
        let (residual, momentum) = (plane(feedback)?, plane(momentum)?);
        Ok(Self { residual, momentum, changed: Vec::new(), apart, moved: false })
    }

    /// A step begins.
    pub(super) fn begin(&mut self) -> InStep<'_> {
        self.changed.clear();
        self.moved = false;
        let Plane { now, other } = &mut self.residual;
        let (apart, moved) = (self.apart, &mut self.moved);
        let residual = Residual { now, before: other, changed: &mut self.changed, apart, moved };
        InStep { residual, momentum: Momentum { before: &self.momentum.now, now: &mut self.momentum.other } }
    }

    /// Keeps the step.
    pub(super) fn commit(&mut self) {
        if self.moved {
            std::mem::swap(&mut self.residual.now, &mut self.residual.other);
        }
        std::mem::swap(&mut self.momentum.now, &mut self.momentum.other);
    }

    /// Undoes the step. What was written beside the residual needs nothing.
    pub(super) fn undo(&mut self) {
        for range in self.changed.drain(..) {
            self.residual.now[range.clone()].copy_from_slice(&self.residual.other[range]);
        }
    }

    /// Residual and momentum, between steps.
    pub(super) fn kept(&self) -> [&[f32]; 2] {
        [&self.residual.now, &self.momentum.now]
    }

    pub(super) fn kept_mut(&mut self) -> [&mut Vec<f32>; 2] {
        [&mut self.residual.now, &mut self.momentum.now]
    }
}

/// Room for numbers, all zero.
pub(super) fn zeros(count: usize) -> Result<Vec<f32>, Error> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).map_err(|_| Error::no_memory("the state of a compressor", 4 * count as u64))?;
    room.resize(count, 0.0);
    Ok(room)
}
