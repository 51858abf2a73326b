//! How a group's elements are cut into pieces, one for each rank, where buckets end.

use std::ops::Range;

use super::quantizer::Dense;
use crate::compressor::group::Group;
use crate::compressor::mean;
use crate::error::{Error, RecipeError};
use crate::plan::EncodePlan;
use crate::wire::Bucket;

/// Elements of one tensor that belong to one piece.
#[derive(Clone, Debug)]
pub(crate) struct Sub {
    /// The tensor, among those of the group.
    pub(crate) tensor: usize,
    /// Their range in the gradient.
    pub(crate) range: Range<usize>,
}

impl Dense {
    /// The piece of rank `owner`: of the concatenated tensors, the elements from `owner / ranks` to
    /// `(owner + 1) / ranks` of all, each end moved up to the end of a bucket.
    pub(crate) fn piece(&self, group: &Group, owner: u32, ranks: u32) -> Vec<Sub> {
        let (from, to) = (self.end(group, owner, ranks), self.end(group, owner.saturating_add(1), ranks));
        let (mut piece, mut before) = (Vec::new(), 0);
        for (tensor, range) in group.ranges().enumerate() {
            let inner = from.max(before)..to.min(before + range.len());
            if !inner.is_empty() {
                let range = range.start + inner.start - before..range.start + inner.end - before;
                piece.push(Sub { tensor, range });
            }
            before += range.len();
        }
        piece
    }

    /// The end of the pieces of the first `owners` of `ranks` ranks.
    fn end(&self, group: &Group, owners: u32, ranks: u32) -> usize {
        let all = group.elements();
        let at = (all as u128 * u128::from(owners) / u128::from(ranks.max(1))).min(all as u128) as usize;
        let mut before = 0;
        for (span, plan) in group.spans.iter().zip(self.plan.tensors()) {
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

    /// Adds an owner's residual, as a part of the sum over the ranks, to an output with an element for each of the
    /// gradient. `kept` is a rank, the number of ranks, and the residual of that rank's piece.
    pub(crate) fn add_owner(&self, group: &Group, (place, mut kept): (Option<(u32, u32)>, &[f32]), to: &mut [f32]) {
        let Some((rank, ranks)) = place else { return };
        let power = mean::power(ranks);
        for sub in self.piece(group, rank, ranks) {
            let Some((mine, rest)) = kept.split_at_checked(sub.range.len()) else { return };
            to[sub.range].iter_mut().zip(mine).for_each(|(to, value)| *to += power * value);
            kept = rest;
        }
    }
}

/// How a piece of a tensor is encoded, memory included.
pub(crate) fn plan_of(group: &Group, sub: &Sub) -> Result<EncodePlan, Error> {
    let stages = RecipeError::Stages { what: "there is no quantizer", remedy: "name one" };
    group.recipe.dense().ok_or(stages)?.plan(sub.range.len())
}
