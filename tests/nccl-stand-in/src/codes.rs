//! Codes of `nccl.h`, their words, and what happened last.

use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const UNHANDLED_CUDA: i32 = 1;
pub(crate) const INVALID_ARGUMENT: i32 = 4;
pub(crate) const INVALID_USAGE: i32 = 5;
pub(crate) const REMOTE: i32 = 6;
pub(crate) const IN_PROGRESS: i32 = 7;

static LAST: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps the words of an error, and gives its code.
pub(crate) fn because(code: i32, words: &str) -> i32 {
    // Leaked, since a caller may still read the one before.
    LAST.store(CString::new(words).unwrap_or_default().into_raw(), SeqCst);
    code
}

/// The words for a code.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ncclGetErrorString(code: i32) -> *const c_char {
    let words = match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    words.as_ptr()
}

/// What happened last, in any communicator.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    let last = LAST.load(SeqCst);
    if last.is_null() { c"".as_ptr() } else { last }
}
