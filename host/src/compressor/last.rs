//! The state that the last step has replaced.

use super::method::Part;
use crate::error::Error;
use crate::low_rank::Step as FactorStep;

/// The state that the last step has replaced, as far as the state buffers do not hold it.
#[derive(Debug, Default)]
pub(super) struct LastStep(pub(super) Option<Replaced>);

#[derive(Debug)]
pub(super) struct Replaced {
    /// Of each part with factors, in the order of the parts.
    pub(super) factors: Vec<FactorStep>,
    /// Bytes that were handed over in the step before.
    pub(super) bytes: u64,
    /// The digest of the step before.
    pub(super) digest: u32,
    /// Whether the step was skipped, and has replaced nothing.
    pub(super) skipped: bool,
}

/// A copy has no memory for the state before the step, and so nothing to take back.
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
        let factors = |part: &Part| part.method.low_rank().map(|factors| factors.state.begin_undo());
        let factors = parts.iter().filter_map(factors).collect::<Result<_, _>>()?;
        Ok(Self(Some(Replaced { factors, bytes, digest, skipped: false })))
    }

    /// The step was skipped.
    pub(super) fn skipped(self) -> Self {
        Self(self.0.map(|replaced| Replaced { skipped: true, ..replaced }))
    }
}
