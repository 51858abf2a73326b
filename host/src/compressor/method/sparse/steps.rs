//! Selections, one a step, of a gradient and a residual that stay on a device.

use std::ops::Range;

use crate::codec::topk::{Select, SparsePlan, TopK};
use crate::device::Device;
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::plan::{EncodePlan, Limits, Role};
use crate::seed::Seed;
use crate::sparse::estimate::{self, Search};
use crate::sparse::selection::Selection;
use crate::sparse::values::{everything, is_more_than_all, rest};
use crate::sparse::{Entries, SparsePayload};

/// A selection of any kind, and the payload of its entries.
#[derive(Debug)]
pub(crate) struct SparseSteps {
    plan: SparsePlan,
    selection: Selection,
    feedback: bool,
    /// Where the number of entries is, of a threshold.
    count_at: Option<u64>,
    /// Whether the passes leave zeros in the residual where an entry is kept.
    zeroes: bool,
    /// Of what a search starts, if there is one.
    statistics: Vec<EncodePlan>,
    limits: Limits,
}

/// The selection of a step.
pub(crate) struct Selected {
    pub(crate) payload: SparsePayload,
    /// The rest of each entry, if the passes leave that to the host.
    pub(crate) rests: Option<Vec<f32>>,
}

impl SparseSteps {
    pub(crate) fn new(codec: &TopK, n: usize, feedback: bool, limits: &Limits) -> Result<Self, Error> {
        let plan = codec.plan(n, Dtype::F32, feedback)?;
        let zeroes = plan.is_exact() && !matches!(plan.select, Select::Above(_));
        let (selection, total) = Selection::of_plan(&plan, feedback, zeroes, false, limits)?;
        let count_at = matches!(plan.select, Select::Above(_)).then_some(total);
        let statistics = match plan.sought {
            Some(sought) => estimate::plans(sought, n, Dtype::F32, feedback)?,
            None => Vec::new(),
        };
        Ok(Self { plan, selection, feedback, count_at, zeroes, statistics, limits: *limits })
    }

    /// The plans of whose partial statistics a search starts; none if there is none.
    pub(crate) fn statistics(&self) -> &[EncodePlan] {
        &self.statistics
    }

    /// The search, from those statistics; none if there is none.
    pub(crate) fn search(&self, partials: &[Vec<u32>]) -> Option<Search> {
        self.plan.sought.map(|sought| estimate::search(sought, self.plan.n, partials))
    }

    /// The selection of what reaches a threshold, or with `counts` of how many elements do, in the same memory: from
    /// gradient and residual, or from one of both that holds the sums.
    pub(crate) fn above(&self, threshold: f32, feedback: bool, counts: bool) -> Result<Selection, Error> {
        let (selection, _) =
            Selection::of_plan(&self.plan.above(threshold), feedback, self.zeroes, false, &self.limits)?;
        Ok(if counts { selection.counting() } else { selection })
    }

    pub(crate) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Entries, where their number is known beforehand and the passes leave values as they are sent, in f32.
    #[cfg(feature = "cuda")]
    pub(crate) fn fixed(&self) -> Option<u64> {
        (self.count_at.is_none() && self.plan.is_exact()).then(|| self.selection.entries())
    }

    /// Bytes of the workspace that hold the number of entries; none if it is known beforehand.
    pub(crate) fn count_bytes(&self) -> Range<u64> {
        self.count_at.map_or(0..0, |at| at..at + 4)
    }

    /// Entries that were kept, by those bytes: no more than there is room for.
    pub(crate) fn count(&self, bytes: &[u8]) -> u64 {
        match bytes.first_chunk() {
            Some(count) => u64::from(u32::from_le_bytes(*count)).min(self.selection.sizes().of(Role::Indices) / 4),
            None => self.selection.entries(),
        }
    }

    /// Makes the payload of entries. `all` reads all elements that were selected from: a threshold may keep so many
    /// that all are sent.
    pub(crate) fn seal(
        &self,
        device: &Device,
        mut entries: Entries,
        seed: Seed,
        all: impl FnOnce() -> Result<Vec<f32>, Error>,
    ) -> Result<Selected, Error> {
        if is_more_than_all(&self.plan, &entries) {
            entries = everything(Gradient::F32(&all()?).into())?;
        }
        let values = device.write_values(&self.plan, &entries.bits, self.feedback, seed)?;
        let payload = SparsePayload::seal(self.plan.header(entries.indices.len()), entries.indices, &values)?;
        let left = |(bits, sent): (&u32, f32)| rest(*bits, sent);
        let rests = match self.feedback && !self.zeroes {
            true => Some(entries.bits.iter().zip(device.sparse_values(&payload)?).map(left).collect()),
            false => None,
        };
        Ok(Selected { payload, rests })
    }
}
