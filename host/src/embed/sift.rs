//! A selection whose entries become the host's.

use std::borrow::Cow;
use std::ops::Range;

use super::work::word;
use super::{Piece, Work, residual, sealed};
use crate::codec::topk::{Select, SparsePlan};
use crate::error::Error;
use crate::plan::{Limits, Pass, Role};
use crate::sparse::passes::{refuse_stuck, waits};
use crate::sparse::select::SelectPlan;

/// The entries that a plan keeps, of a gradient or of gradient + residual.
pub(crate) struct Sift<'p> {
    pub(crate) plan: &'p SparsePlan,
    /// How a device selects them; the CPU looks at the plan.
    pub(crate) select: &'p SelectPlan,
}

/// How many elements reach a plan's threshold: the word [`SelectPlan::total_at`] of the workspace.
pub(crate) struct CountAbove<'p> {
    pub(crate) plan: &'p SparsePlan,
    pub(crate) select: &'p SelectPlan,
}

/// The memory of [`Sift`].
pub(crate) struct SiftBuffers<B> {
    pub(crate) source: SourceBuffers<B>,
    /// The indices of the entries that are kept, rising. Written, as many as there are.
    pub(crate) indices: B,
    /// Their values, f32. Written, as many as there are.
    pub(crate) values: B,
}

/// The memory that entries are selected from.
pub(crate) struct SourceBuffers<B> {
    /// The gradient. Read.
    pub(crate) gradient: B,
    /// The residual, f32, with feedback. Read and written: it becomes gradient + residual, but zero may stand where an
    /// entry is kept that is sent as it is.
    pub(crate) residual: Option<B>,
    /// Scratch, whose first bytes hold [`SelectPlan::table`].
    pub(crate) workspace: B,
}

impl sealed::Sealed for Sift<'_> {
    fn asks(&self, passes: &[Pass]) -> Vec<(Role, Range<u64>)> {
        let word = |at: u64| (Role::Workspace, at..at + 4);
        let stuck = waits(passes).then(|| word(self.select.stuck_at()));
        let total = self.is_counted().then(|| word(self.select.total_at()));
        stuck.into_iter().chain(total).collect()
    }

    fn judge(&self, passes: &[Pass], answers: &[Vec<u8>]) -> Result<u64, Error> {
        let waits = waits(passes);
        refuse_stuck(if waits { word(answers, 0) } else { 0 })?;
        Ok(if self.is_counted() { word(answers, waits.into()).into() } else { self.select.entries() })
    }
}

impl Sift<'_> {
    /// Whether the number of entries is not known before.
    fn is_counted(&self) -> bool {
        matches!(self.plan.select, Select::Above(_))
    }
}

impl Work for Sift<'_> {
    type Buffers<B> = SiftBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        self.select.passes(limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: SiftBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let sizes = self.select.sizes();
        let mut pieces = of_source(self.plan, self.select, buffers.source)?;
        let indices = Piece::new("list of indices", buffers.indices, sizes.of(Role::Indices), role(Role::Indices));
        pieces.extend([
            indices,
            Piece::new("list of values", buffers.values, sizes.of(Role::Values), role(Role::Values)),
        ]);
        Ok(pieces)
    }
}

impl sealed::Sealed for CountAbove<'_> {}

impl Work for CountAbove<'_> {
    type Buffers<B> = SourceBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        self.select.counting_passes(limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: SourceBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        of_source(self.plan, self.select, buffers)
    }
}

/// What entries are selected from, and the workspace of the selection.
fn of_source<B>(plan: &SparsePlan, select: &SelectPlan, buffers: SourceBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
    let sizes = select.sizes();
    let workspace = Piece::new("workspace", buffers.workspace, sizes.of(Role::Workspace), role(Role::Workspace));
    // Its first bytes hold the table, and may be all that is handed over.
    let workspace = Piece { alignment: 256, ..workspace.scratch(4 * select.table().len() as u64, 0) };
    let mut pieces = vec![Piece::gradient(buffers.gradient, plan.n, select.dtype()), workspace];
    pieces.extend(residual(sizes.of(Role::Residual) > 0, buffers.residual, plan.n)?);
    Ok(pieces)
}

fn role(role: Role) -> [Option<(Role, u64)>; 2] {
    [Some((role, 0)), None]
}
