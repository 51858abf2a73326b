//! Errors of this backend.

use super::driver::DriverError;
use crate::error::Error;
use crate::kind::BackendKind;

pub(super) fn unavailable(reason: String) -> Error {
    Error::Unavailable { backend: BackendKind::Cuda, reason }
}

pub(super) fn failed(error: DriverError) -> Error {
    Error::Backend { backend: BackendKind::Cuda, reason: error.to_string() }
}
