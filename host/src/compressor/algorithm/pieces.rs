//! How a part is cut into pieces, one for each rank, where buckets end.

use std::ops::Range;

use super::super::mean;
use super::super::part::{Method, Part};
use crate::error::{Error, RecipeError};
use crate::plan::EncodePlan;
use crate::wire::Bucket;

/// Elements of one tensor that belong to one piece.
#[derive(Clone, Debug)]
pub(in super::super) struct Sub {
    /// The tensor, among those of the part.
    pub(in super::super) tensor: usize,
    /// Where they lie in the gradient.
    pub(in super::super) range: Range<usize>,
}

impl Part {
    /// What rank `owner` owns: with its tensors one after another, what lies between `owner / ranks` and
    /// `(owner + 1) / ranks` of the elements, each end moved up to where a bucket ends. Nothing where quantizers have
    /// no part in it.
    pub(in super::super) fn piece(&self, owner: u32, ranks: u32) -> Vec<Sub> {
        let (from, to) = (self.end(owner, ranks), self.end(owner.saturating_add(1), ranks));
        let (mut piece, mut before) = (Vec::new(), 0);
        for (tensor, range) in self.ranges().enumerate() {
            let inner = from.max(before)..to.min(before + range.len());
            if !inner.is_empty() {
                let range = range.start + inner.start - before..range.start + inner.end - before;
                piece.push(Sub { tensor, range });
            }
            before += range.len();
        }
        piece
    }

    /// Where the pieces of the first `owners` of `ranks` ranks end.
    fn end(&self, owners: u32, ranks: u32) -> usize {
        let Method::Dense { plan, .. } = &self.method else { return 0 };
        let all = self.elements();
        let at = (all as u128 * u128::from(owners) / u128::from(ranks.max(1))).min(all as u128) as usize;
        let mut before = 0;
        for (span, plan) in self.spans.iter().zip(plan.tensors()) {
            let elements = span.elements as usize;
            if at <= before + elements {
                let inner = match plan.header().bucket {
                    Bucket::Of(bucket) => (at - before).next_multiple_of(bucket as usize),
                    Bucket::Whole if at == before => 0,
                    Bucket::Whole => elements,
                };
                return before + inner.min(elements);
            }
            before += elements;
        }
        all
    }

    /// Adds what the owner's residual of a place stands for of the sum over the ranks, to numbers for the elements of
    /// the gradient.
    pub(in super::super) fn add_owner(&self, (place, mut kept): (Option<(u32, u32)>, &[f32]), to: &mut [f32]) {
        let Some((rank, ranks)) = place else { return };
        let power = mean::power(ranks);
        for sub in self.piece(rank, ranks) {
            let Some((mine, rest)) = kept.split_at_checked(sub.range.len()) else { return };
            to[sub.range].iter_mut().zip(mine).for_each(|(to, value)| *to += power * value);
            kept = rest;
        }
    }

    /// How a piece of a tensor is encoded, memory included.
    pub(super) fn plan_of(&self, sub: &Sub) -> Result<EncodePlan, Error> {
        let stages = RecipeError::Stages { what: "there is no quantizer", remedy: "name one" };
        self.recipe.dense().ok_or(stages)?.plan(sub.range.len())
    }
}
