//! The treatment of non-finite values by an encode.

use crate::error::Error;

/// What an encode does with NaN and infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NonFinite {
    /// A bucket that holds one decodes to NaN, all of it, and keeps its residual. No other bucket is touched.
    /// Selections and random-k send it as it is, and keep the whole residual.
    #[default]
    Propagate,
    /// The encode fails with [`Error::NotFinite`](crate::Error::NotFinite) and leaves the residual as it was. Costs one
    /// more read.
    Error,
}

/// The error that a status word stands for.
pub(crate) fn refuse_not_finite(status: u32) -> Result<(), Error> {
    if status == 0 { Ok(()) } else { Err(Error::NotFinite { index: u64::from(!status) }) }
}
