//! Who knows of a failure within a step.

use super::mean::PIECE;
use crate::error::{Error, ExchangeError};
use crate::plan::NonFinite;
use crate::threads;

/// Why a part's own messages of a step came to nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether this rank alone knows, and the others go on to the next part's messages.
    pub(crate) alone: bool,
}

impl Failure {
    /// After the part's last message: what every message says is known to all, and anything else to this rank alone.
    pub(crate) fn behind(error: Error) -> Self {
        let known = matches!(&error, Error::Exchange(error) if error.is_known_to_all());
        Self { error, alone: !known }
    }
}

/// All ranks know, or none can be told.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, alone: false }
    }
}

/// The error of NaN or infinity that a rank sent.
pub(crate) fn not_finite(rank: u32, policy: NonFinite) -> ExchangeError {
    match policy {
        NonFinite::Error => ExchangeError::NotFinite { rank },
        NonFinite::Propagate => ExchangeError::Skipped { rank },
    }
}

/// The error of a non-finite sum.
pub(crate) fn not_finite_sum(index: u64, policy: NonFinite) -> ExchangeError {
    match policy {
        NonFinite::Error => ExchangeError::NotFiniteSum { index },
        NonFinite::Propagate => ExchangeError::Skipped { rank: 0 },
    }
}

/// Refuses a sum over the ranks that is not finite. All ranks have the same sum.
pub(crate) fn expect_finite(sums: &[f32], policy: NonFinite) -> Result<(), ExchangeError> {
    match first_not_finite(sums) {
        Some(index) => Err(not_finite_sum(index as u64, policy)),
        None => Ok(()),
    }
}

/// The first place of a value that is not finite.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<usize> {
    let wrong = |(number, piece): (usize, &[f32])| {
        // A whole piece at once, which has no branch for each value.
        let all = piece.iter().fold(true, |all, sum| all & sum.is_finite());
        let found = if all { None } else { piece.iter().position(|sum| !sum.is_finite()) };
        found.map(|place| number * PIECE + place)
    };
    threads::chunks(values, PIECE).enumerate().find_map_first(wrong)
}
