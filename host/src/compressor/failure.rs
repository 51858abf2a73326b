//! Who knows of a failure within a step.

use crate::error::Error;

/// Why a part's own messages of a step came to nothing.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Whether this rank alone knows, and the others go on to the next part's messages.
    pub(super) alone: bool,
}

impl Failure {
    /// After the part's last message: what every message says is known to all, and anything else to this rank alone.
    pub(super) fn behind(error: Error) -> Self {
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
