//! The selection of a group's entries.

use std::ops::Range;

use super::segments::{of_spans, segments};
use crate::codec::topk::TopK;
use crate::compressor::group::{Group, VALUES};
use crate::device::Device;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::recipe::Recipe;
use crate::sparse::SparsePayload;
use crate::wire::PayloadError;
use crate::words::zeros;

/// Entries are selected, from all tensors of the group at once.
#[derive(Clone, Debug)]
pub(crate) struct Sparse {
    pub(super) codec: TopK,
    /// Whether the selection takes the group's tensors concatenated, and not the whole gradient.
    pub(super) packed: bool,
    /// The number of elements that are selected from.
    pub(super) elements: usize,
}

impl Sparse {
    /// `all` is the number of the gradient's elements; `alone`, whether all other tensors go uncompressed.
    pub(crate) fn new(group: &Group, codec: &TopK, all: u64, alone: bool) -> Result<Self, Error> {
        let (recipe, spans) = (&group.recipe, &group.spans);
        let own = spans.iter().map(|span| span.elements).sum::<u64>();
        let packed = !alone || own != all && segments(codec, spans, all, true).is_none();
        let elements = if packed { own } else { all };
        let codec = of_spans(codec, spans, packed, elements);
        check(&codec, elements, recipe)?;
        let quarters = (1..=4).map(|quarter| (u128::from(recipe.warm_up) * quarter).div_ceil(4) as u64);
        for later in quarters.filter_map(|step| recipe.sparse_at(step)) {
            check(&of_spans(&later, spans, packed, elements), elements, recipe)?;
        }
        Ok(Self { codec, packed, elements: elements as usize })
    }

    /// The checked entries that a rank sent.
    pub(super) fn entries(&self, group: &Group, rank: u32, bytes: &[u8]) -> Result<SparsePayload, Error> {
        let payload = SparsePayload::from_bytes_of(bytes, self.elements as u64).map_err(|source| match source {
            PayloadError::Elements { .. } => group.differs(rank, 0, "length"),
            source => group.damaged(rank, 0, source),
        })?;
        group.expect_finite(rank, payload.is_finite())?;
        Ok(payload)
    }

    /// Writes the sum of selections, times the weight, into the gradient.
    pub(super) fn write(
        &self,
        group: &Group,
        device: &Device,
        payloads: &[SparsePayload],
        weight: f32,
        gradient: &mut [f32],
    ) -> Result<(), Error> {
        if !self.packed {
            return device.decode_sparse_sum(payloads, weight, gradient);
        }
        let mut sum = zeros(group.elements() as u64, VALUES)?;
        device.decode_sparse_sum(payloads, weight, &mut sum)?;
        group.unpack(&sum, gradient);
        Ok(())
    }
}

/// Refuses a selection or quantizer that this number of elements does not admit.
pub(super) fn check(codec: &TopK, elements: u64, recipe: &Recipe) -> Result<(), Error> {
    let plan = codec.plan(elements as usize, Dtype::F32, recipe.memory().adds_residual())?;
    let values = plan.quantizer(plan.most() as usize, false)?;
    values.map_or(Ok(()), |values| recipe.memory().check_feedback(&values))
}

/// The gaps between ascending ranges, up to `end`.
pub(super) fn gaps(ranges: impl Iterator<Item = Range<usize>>, end: usize) -> impl Iterator<Item = Range<usize>> {
    let mut before = 0;
    ranges.chain(std::iter::once(end..end)).map(move |range| {
        let gap = before..range.start;
        before = range.end;
        gap
    })
}
