//! Gradient and state in the host's memory, in a step.

use std::ops::Range;

use super::group::Group;
use super::planes::{Held, InStep, add_onto};
use crate::device::Device;

/// Gradient and state in the host's memory.
pub(crate) struct Host<'s> {
    /// The device that encodes and decodes.
    pub(crate) device: &'s Device,
    pub(crate) gradient: &'s mut [f32],
    /// The number of elements that the gradient should have.
    pub(crate) elements: u64,
    pub(crate) planes: InStep<'s>,
    /// The number of the step, and the model's checksum.
    pub(crate) stamp: (u64, u32),
}

impl Host<'_> {
    /// The values that a group sends, before anything is formed of them: the gradient, or the momentum.
    pub(crate) fn input(&self, group: &Group) -> &[f32] {
        if group.recipe.memory().sends_momentum() { self.planes.behind(Held::Momentum) } else { self.gradient }
    }

    /// Adds the gradient to momenta.
    pub(crate) fn add_momentum(&mut self, ranges: impl Iterator<Item = Range<usize>>, factor: f32, nesterov: bool) {
        let momentum = self.planes.of(Held::Momentum);
        for range in ranges {
            momentum.gather(range.clone(), [factor, 1.0], self.gradient);
            if nesterov {
                // The buffer holds u + g, so that the next u is m times it.
                add_onto(&mut self.gradient[range.clone()], factor, &momentum.behind[range]);
            }
        }
    }
}
