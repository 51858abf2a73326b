//! Errors of this backend, and whether a thread may wait.

use crate::error::Error;
use crate::kind::BackendKind;

/// Whether a thread may wait for the device. A browser's may not.
pub(super) const WAITS: bool = cfg!(not(target_arch = "wasm32"));

/// What to do if it may not.
pub(super) fn no_wait(instead: &str) -> String {
    format!("a browser's thread may not wait for the device; use {instead}")
}

pub(super) fn unavailable(reason: String) -> Error {
    Error::Unavailable { backend: BackendKind::Wgpu, reason }
}

pub(super) fn failed(reason: String) -> Error {
    Error::Backend { backend: BackendKind::Wgpu, reason }
}
