//! Tensors that go uncompressed.

use std::ops::Range;

use crate::model::TensorSpan;
use crate::plan::NonFinite;
use crate::recipe::{Memory, Recipe};

/// A tensor that goes uncompressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) span: TensorSpan,
    pub(super) policy: NonFinite,
    pub(super) momentum: Option<f32>,
    pub(super) nesterov: bool,
    /// The largest norm that a rank may send.
    pub(super) bound: Option<f32>,
}

impl Whole {
    pub(super) fn new(span: TensorSpan, recipe: &Recipe) -> Self {
        let Memory { momentum, nesterov, .. } = recipe.memory();
        Self { span, policy: recipe.non_finite, momentum, nesterov, bound: recipe.peers_bound() }
    }

    /// Where it lies in the gradient.
    pub(super) fn range(&self) -> Range<usize> {
        self.span.offset as usize..self.span.end() as usize
    }

    /// Whether the momentum is sent, which Nesterov's form leaves in the gradient.
    pub(super) fn sends_momentum(&self) -> bool {
        self.momentum.is_some() && !self.nesterov
    }
}
