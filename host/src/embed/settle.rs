//! A residual from which the sent values are subtracted.

use std::borrow::Cow;

use super::{Piece, SettleBuffers, Work, sealed};
use crate::error::Error;
use crate::plan::{Limits, Pass, Role};
use crate::sparse::select::Sent;

/// Subtracts the sent values from a residual: [`Device::settle`](crate::Device::settle).
pub(crate) struct TakeOff<'s> {
    pub(crate) sent: &'s [Sent],
    /// Elements of the residual.
    pub(crate) elements: u64,
    /// Those of [`settle`](crate::sparse::settle::settle) for the device.
    pub(crate) passes: Vec<Pass>,
    /// Bytes of the table that [`settle`](crate::sparse::settle::settle) makes for the device; the CPU takes none.
    pub(crate) table_bytes: u64,
}

impl sealed::Sealed for TakeOff<'_> {}

impl Work for TakeOff<'_> {
    type Buffers<B> = SettleBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        limits.check(&self.passes).map(|()| Cow::Borrowed(&self.passes[..]))
    }

    fn pieces<B>(&self, buffers: SettleBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let table = Piece::new("workspace", buffers.workspace, self.table_bytes, [Some((Role::Workspace, 0)), None]);
        let residual = Piece::floats("residual", buffers.residual, self.elements, Role::Residual).updated();
        Ok(vec![table.scratch(self.table_bytes, 0), residual])
    }
}
