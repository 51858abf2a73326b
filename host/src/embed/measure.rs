//! Statistics of a gradient.

use std::borrow::Cow;
use std::ops::Range;

use super::{Checked, Piece, ScanBuffers, Work, present, sealed};
use crate::error::Error;
use crate::plan::{ALIGNMENT, EncodePlan, Limits, Pass, Role};

/// The partial statistics of a gradient by each of some plans, whose tensor is one bucket. Each plan has its part of
/// the workspace: [`Measures::statistics`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measures<'p>(pub(crate) &'p [EncodePlan]);

impl Measures<'_> {
    /// Where the workspace has the scratch of each plan.
    fn scratch(&self) -> impl Iterator<Item = Range<u64>> {
        let mut at = 0;
        self.0.iter().map(move |plan| {
            let from = at;
            at += (plan.scratch_bytes() as u64).next_multiple_of(ALIGNMENT);
            from..from + plan.scratch_bytes() as u64
        })
    }

    /// Where the workspace has the statistics of each plan.
    pub(crate) fn statistics(&self) -> impl Iterator<Item = Range<u64>> {
        self.scratch().zip(self.0).map(|(scratch, plan)| {
            let bytes = plan.statistic_bytes();
            scratch.start + bytes.start..scratch.start + bytes.end
        })
    }
}

impl sealed::Sealed for Measures<'_> {}
impl Checked for Measures<'_> {}

impl Work for Measures<'_> {
    type Buffers<B> = ScanBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let mut passes = Vec::new();
        for (plan, scratch) in self.0.iter().zip(self.scratch()) {
            for mut pass in plan.statistics(limits)? {
                pass.bindings.workspace.offset += scratch.start;
                passes.push(pass);
            }
        }
        Ok(passes.into())
    }

    fn pieces<B>(&self, buffers: ScanBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let Some(plan) = self.0.first() else { return Ok(Vec::new()) };
        let header = plan.header();
        let bytes = self.scratch().last().map_or(0, |scratch| scratch.end);
        let workspace = Piece::new("workspace", buffers.workspace, bytes, [Some((Role::Workspace, 0)), None]);
        let mut pieces = vec![
            Piece::gradient(buffers.gradient, header.n, header.dtype),
            // Partial statistics are written sixteen bytes at a time.
            Piece { alignment: 16, ..workspace },
        ];
        if plan.feedback() {
            let residual = present("residual", buffers.residual, 4 * header.n)?;
            pieces.push(Piece::floats("residual", residual, header.n, Role::Residual).read());
        }
        Ok(pieces)
    }
}
