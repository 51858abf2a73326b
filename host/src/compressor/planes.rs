//! The state buffers of a compressor: numbers of every element, from step to step.

use std::ops::Range;

use gradwire_kernels::arith::memory::momentum;

use crate::error::Error;
use crate::threads;
use crate::words;

/// Elements that a thread takes at a time.
pub(crate) const TAKEN: usize = 1 << 16;

/// A number for each element of the gradient, and memory for its value after the next step.
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

/// The contents of the state buffers, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    Residual,
    Momentum,
    /// The estimate of this rank's gradient.
    Shift,
    /// The mean of all ranks' estimates.
    Mean,
}

/// The state buffers, each empty if no recipe needs it. A step writes each again beside its old values,
/// if any recipe has it, and is then kept or forgotten. Elements of other recipes are zero on both sides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Planes([Plane; 4]);

/// The planes in a step.
#[derive(Debug)]
pub(crate) struct InStep<'p>([Sides<'p>; 4]);

impl<'p> InStep<'p> {
    pub(crate) fn of(&mut self, held: Held) -> &mut Sides<'p> {
        &mut self.0[held as usize]
    }

    /// The same for reading.
    pub(crate) fn behind(&self, held: Held) -> &[f32] {
        self.0[held as usize].behind
    }
}

/// A plane before a step, and after it.
#[derive(Debug)]
pub(crate) struct Sides<'p> {
    pub(crate) before: &'p mut [f32],
    pub(crate) behind: &'p mut [f32],
}

impl Sides<'_> {
    /// Writes the new values of the elements in `range`: `factor` times the old ones, plus `gain` times the gradient.
    pub(crate) fn gather(&mut self, range: Range<usize>, [factor, gain]: [f32; 2], gradient: &[f32]) {
        let gradient = threads::chunks(&gradient[range.clone()], TAKEN);
        let before = threads::chunks(&self.before[range.clone()], TAKEN);
        let pieces = threads::chunks_mut(&mut self.behind[range], TAKEN).zip(before).zip(gradient);
        pieces.for_each(|((next, before), gradient)| {
            for ((next, before), gradient) in next.iter_mut().zip(before).zip(gradient) {
                *next = momentum(*before, factor, *gradient, gain);
            }
        });
    }

    /// Copies the old values over the new ones, of the elements in `range`.
    pub(crate) fn start_over(&mut self, range: Range<usize>) {
        self.behind[range.clone()].copy_from_slice(&self.before[range]);
    }

    /// None of both.
    pub(crate) fn none() -> Sides<'static> {
        Sides { before: &mut [], behind: &mut [] }
    }

    /// A range of both.
    pub(crate) fn part(&mut self, range: Range<usize>) -> Sides<'_> {
        Sides { before: &mut self.before[range.clone()], behind: &mut self.behind[range] }
    }
}

/// Adds `gain` times a momentum onto a gradient.
pub(crate) fn add_onto(gradient: &mut [f32], gain: f32, plane: &[f32]) {
    let pieces = threads::chunks_mut(gradient, TAKEN).zip(threads::chunks(plane, TAKEN));
    pieces.for_each(|(gradient, plane)| {
        for (gradient, plane) in gradient.iter_mut().zip(plane) {
            *gradient = momentum(*gradient, 1.0, *plane, gain);
        }
    });
}

impl Planes {
    /// Planes of `elements` elements, of those that there are.
    pub(crate) fn new(elements: usize, needed: [bool; 4]) -> Result<Self, Error> {
        let mut planes = Self::default();
        for (plane, _) in planes.0.iter_mut().zip(needed).filter(|(_, needed)| *needed) {
            *plane = Plane::zeros(elements)?;
        }
        Ok(planes)
    }

    /// A step begins.
    pub(crate) fn begin(&mut self) -> InStep<'_> {
        InStep(self.0.each_mut().map(Plane::step))
    }

    /// Keeps the step.
    pub(crate) fn commit(&mut self) {
        self.0.iter_mut().for_each(Plane::commit);
    }

    /// The planes between steps.
    pub(crate) fn kept(&self) -> [&[f32]; 4] {
        self.0.each_ref().map(|plane| plane.now.as_slice())
    }

    /// All anew, of the same lengths.
    pub(crate) fn set(&mut self, all: [Vec<f32>; 4]) {
        for (plane, now) in self.0.iter_mut().zip(all) {
            plane.other.copy_from_slice(&now);
            plane.now = now;
        }
    }

    /// Makes the residual zero.
    pub(crate) fn clear_residual(&mut self) {
        let Plane { now, other } = &mut self.0[Held::Residual as usize];
        [now, other].into_iter().for_each(|side| side.fill(0.0));
    }
}

/// Room for numbers, all zero.
pub(crate) fn zeros(count: usize) -> Result<Vec<f32>, Error> {
    words::zeros(count as u64, "the state of a compressor")
}
