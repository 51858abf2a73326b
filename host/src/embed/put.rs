//! Entries that are written over those of a tensor in a device's memory.

use std::borrow::Cow;

use super::{Piece, Scatter, ScatterBuffers, Work, sealed};
use crate::error::Error;
use crate::plan::{Kernel, Limits, Pass};
use crate::sparse::passes::scatter;

/// Entries that replace elements, and leave all others as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    pub(crate) entries: u64,
    pub(crate) elements: u64,
}

impl sealed::Sealed for Put {}

impl Work for Put {
    type Buffers<B> = ScatterBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let mut passes = scatter(self.entries, None, self.elements, limits)?;
        passes.retain(|pass| pass.kernel != Kernel::Clear);
        Ok(passes.into())
    }

    fn pieces<B>(&self, buffers: ScatterBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        // Added to what is there, they would be read and written alike.
        Scatter { entries: self.entries, elements: self.elements, weight: Some(1.0) }.pieces(buffers)
    }
}
