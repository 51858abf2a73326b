//! What a compressor keeps of every element from step to step.

use rayon::prelude::*;

use crate::error::Error;

/// Elements that a thread takes at a time.
const TAKEN: usize = 1 << 16;

/// A number for each element of the gradient, and room for it before the step or behind it.
#[derive(Debug, Default)]
struct Plane {
    now: Vec<f32>,
    other: Vec<f32>,
}

impl Plane {
    fn zeros(elements: usize) -> Result<Self, Error> {
        Ok(Self { now: zeros(elements)?, other: zeros(elements)? })
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.now, &mut self.other);
    }
}

/// The planes: residual and momentum, each empty where no recipe needs it. A step is made on the planes and then kept or undone.
#[derive(Debug, Default)]
pub(super) struct Planes {
    residual: Plane,
    momentum: Plane,
}

impl Planes {
    pub(super) fn new(elements: usize, feedback: bool, momentum: bool) -> Result<Self, Error> {
        let plane = |needed| if needed { Plane::zeros(elements) } else { Ok(Plane::default()) };
        Ok(Self { residual: plane(feedback)?, momentum: plane(momentum)? })
    }

    /// Keeps a copy of the residual, which the step changes.
    pub(super) fn begin(&mut self) {
        let Plane { now, other } = &mut self.residual;
        let pieces = other.par_chunks_mut(TAKEN).zip(now.par_chunks(TAKEN));
        pieces.for_each(|(to, from)| to.copy_from_slice(from));
    }

    /// The momentum behind this step, of the elements in `range`: factor * momentum + gradient, each rounded to f32.
    pub(super) fn gather(&mut self, range: std::ops::Range<usize>, factor: f32, gradient: &[f32]) {
        let Plane { now, other } = &mut self.momentum;
        let gradient = gradient[range.clone()].par_chunks(TAKEN);
        let pieces = other[range.clone()].par_chunks_mut(TAKEN).zip(now[range].par_chunks(TAKEN)).zip(gradient);
        pieces.for_each(|((next, before), gradient)| {
            for ((next, before), gradient) in next.iter_mut().zip(before).zip(gradient) {
                *next = factor * before + gradient;
            }
        });
    }

    /// The residual, and the momentum that [`Planes::gather`] left.
    pub(super) fn parts(&mut self) -> (&mut [f32], &mut [f32]) {
        (&mut self.residual.now, &mut self.momentum.other)
    }

    /// Keeps the step.
    pub(super) fn commit(&mut self) {
        self.momentum.swap();
    }

    /// Undoes the step: the residual is the copy.
    pub(super) fn undo(&mut self) {
        self.residual.swap();
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
