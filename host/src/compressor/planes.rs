//! What a compressor keeps of every element from step to step.

use std::ops::Range;

use gradwire_kernels::arith::memory::momentum;
use rayon::prelude::*;

use crate::error::Error;

/// Elements that a thread takes at a time.
const TAKEN: usize = 1 << 16;

/// A number for each element of the gradient, and room for what it is behind the next step.
#[derive(Clone, Debug, Default)]
struct Plane {
    now: Vec<f32>,
    other: Vec<f32>,
}

impl Plane {
    fn zeros(elements: usize) -> Result<Self, Error> {
        Ok(Self { now: zeros(elements)?, other: zeros(elements)? })
    }

    fn step(&mut self) -> Sides<'_> {
        Sides { before: &mut self.now, behind: &mut self.other }
    }

    fn commit(&mut self) {
        std::mem::swap(&mut self.now, &mut self.other);
    }
}

/// The planes: residual and momentum, each empty where no recipe needs it. A step writes each anew beside what it was,
/// where any recipe has it, and is then kept or forgotten. Elements of other recipes are zero on both sides.
#[derive(Clone, Debug, Default)]
pub(super) struct Planes {
    residual: Plane,
    momentum: Plane,
}

/// The planes in a step.
#[derive(Debug)]
pub(super) struct InStep<'p> {
    pub(super) residual: Sides<'p>,
    pub(super) momentum: Sides<'p>,
}

/// A plane before a step, and behind it.
#[derive(Debug)]
pub(super) struct Sides<'p> {
    pub(super) before: &'p mut [f32],
    pub(super) behind: &'p mut [f32],
}

impl Sides<'_> {
    /// Writes the momentum behind this step, of the elements in `range`.
    pub(super) fn gather(&mut self, range: Range<usize>, factor: f32, gradient: &[f32]) {
        let gradient = gradient[range.clone()].par_chunks(TAKEN);
        let before = self.before[range.clone()].par_chunks(TAKEN);
        let pieces = self.behind[range].par_chunks_mut(TAKEN).zip(before).zip(gradient);
        pieces.for_each(|((next, before), gradient)| {
            for ((next, before), gradient) in next.iter_mut().zip(before).zip(gradient) {
                *next = momentum(*before, factor, *gradient);
            }
        });
    }

    /// A range of both.
    pub(super) fn part(&mut self, range: Range<usize>) -> Sides<'_> {
        Sides { before: &mut self.before[range.clone()], behind: &mut self.behind[range] }
    }
}

impl Planes {
    /// Planes of so many elements.
    pub(super) fn new(elements: usize, feedback: bool, momentum: bool) -> Result<Self, Error> {
        let plane = |needed| if needed { Plane::zeros(elements) } else { Ok(Plane::default()) };
        Ok(Self { residual: plane(feedback)?, momentum: plane(momentum)? })
    }

    /// A step begins.
    pub(super) fn begin(&mut self) -> InStep<'_> {
        InStep { residual: self.residual.step(), momentum: self.momentum.step() }
    }

    /// Keeps the step.
    pub(super) fn commit(&mut self) {
        self.residual.commit();
        self.momentum.commit();
    }

    /// Residual and momentum, between steps.
    pub(super) fn kept(&self) -> [&[f32]; 2] {
        [&self.residual.now, &self.momentum.now]
    }

    /// Both anew, of the same lengths.
    pub(super) fn set(&mut self, [residual, momentum]: [Vec<f32>; 2]) {
        for (plane, now) in [(&mut self.residual, residual), (&mut self.momentum, momentum)] {
            plane.other.copy_from_slice(&now);
            plane.now = now;
        }
    }

    /// Makes the residual zero.
    pub(super) fn clear_residual(&mut self) {
        let Plane { now, other } = &mut self.residual;
        [now, other].into_iter().for_each(|side| side.fill(0.0));
    }
}

/// Room for numbers, all zero.
pub(super) fn zeros(count: usize) -> Result<Vec<f32>, Error> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).map_err(|_| Error::no_memory("the state of a compressor", 4 * count as u64))?;
    room.resize(count, 0.0);
    Ok(room)
}
