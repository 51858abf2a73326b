//! What was queued, for tests that ask.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A line each: a kernel's name, with a `+` in front where it may begin before the one before it is done, or the name
/// of another call that queues or waits. None if no test asks.
static QUEUED: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn queued() -> MutexGuard<'static, Option<Vec<String>>> {
    // The list is whole after every statement.
    QUEUED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes down a launch.
pub(crate) fn launch(kernel: &str, is_dependent: bool) {
    if let Some(list) = &mut *queued() {
        list.push(format!("{}{kernel}", if is_dependent { "+" } else { "" }));
    }
}

/// Takes down another call, where it queues something or waits for what is queued.
pub(crate) fn call(name: &CStr) {
    const QUEUES: [&str; 5] = ["cuMemcpy", "cuMemset", "cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize"];
    let name = name.to_str().unwrap_or_default();
    if QUEUES.iter().any(|start| name.starts_with(start)) {
        launch(name, false);
    }
}

/// Gives `take`, with what belongs to it, each line that was taken down since the last call of this, and goes on. The
/// first call begins.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn gradwire_stand_in_queued(
    take: extern "C" fn(of: *mut c_void, line: *const u8, bytes: usize),
    of: *mut c_void,
) {
    let list = queued().replace(Vec::new()).unwrap_or_default();
    list.iter().for_each(|line| take(of, line.as_ptr(), line.len()));
}
