//! What an encode does with what is not finite.

/// What an encode does with NaN and infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NonFinite {
    /// A bucket that holds one decodes to NaN, all of it, and keeps its residual. No other bucket is touched.
    #[default]
    Propagate,
    /// The encode fails with [`Error::NotFinite`](crate::Error::NotFinite) and leaves the residual as it was. Costs one more read.
    Error,
}
