//! What the last step has replaced.

use super::part::{Method, Part};
use crate::error::Error;
use crate::low_rank::Step as FactorStep;

/// What the last step has replaced, and memory beside it does not hold.
#[derive(Debug, Default)]
pub(super) struct LastStep(pub(super) Option<Replaced>);

#[derive(Debug)]
pub(super) struct Replaced {
    /// Of each part with factors, in the order of the parts.
    pub(super) factors: Vec<FactorStep>,
    /// Bytes that were handed over in the step before.
    pub(super) bytes: u64,
    /// What was taken of it.
    pub(super) digest: u32,
    /// Whether the step was skipped, and has replaced nothing.
    pub(super) skipped: bool,
}

/// A copy has no room for what was before the step, and so nothing to take back.
impl Clone for LastStep {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl LastStep {
    /// A step begins, of these parts.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for copies of factors.
    pub(super) fn begin(parts: &[Part], bytes: u64, digest: u32) -> Result<Self, Error> {
        let factors = |part: &Part| match &part.method {
            Method::LowRank { state, .. } => Some(state.begin_undo()),
            _ => None,
        };
        let factors = parts.iter().filter_map(factors).collect::<Result<_, _>>()?;
        Ok(Self(Some(Replaced { factors, bytes, digest, skipped: false })))
    }

    /// The step was skipped.
    pub(super) fn skipped(self) -> Self {
        Self(self.0.map(|replaced| Replaced { skipped: true, ..replaced }))
    }
}
