//! What all values of a context share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::driver::Driver;
use super::modules::Modules;
use crate::plan::Limits;

pub(super) struct Shared {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) modules: Modules,
    pub(super) name: String,
    /// Whether a kernel may begin while the one before it in a call drains.
    pub(super) overlapping: AtomicBool,
}

impl Shared {
    /// What bounds a pass.
    pub(super) fn limits(&self) -> Limits {
        let forward_progress = self.driver.info().compute_capability >= (7, 0);
        Limits { forward_progress, ..Limits::NONE }
    }
}
