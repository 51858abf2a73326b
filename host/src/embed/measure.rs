//! Statistics in a device's memory.

use std::borrow::Cow;

use super::{Piece, ScanBuffers, Work, present, sealed};
use crate::error::Error;
use crate::plan::{EncodePlan, Limits, Pass, Role};

/// The partial statistics of a plan whose tensor is one bucket, over [`EncodePlan::scratch_bytes`] of a workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure<'p>(pub(crate) &'p EncodePlan);

impl sealed::Sealed for Measure<'_> {}

impl Work for Measure<'_> {
    type Buffers<B> = ScanBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        self.0.statistics(limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: ScanBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let (plan, header) = (self.0, self.0.header());
        let roles = [Some((Role::Workspace, 0)), None];
        let workspace = Piece::new("workspace", buffers.workspace, plan.scratch_bytes() as u64, roles);
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
