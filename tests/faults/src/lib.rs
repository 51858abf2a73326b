//! Counts the calls of a driver's interface, and fails one of them.
//!
//! A library that stands in for a driver, or before one, asks [`fault`] at each call. What drives the test has the
//! `extern "C"` functions, which that library exports.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

static CALLS: AtomicU64 = AtomicU64::new(0);
static ARMED: AtomicU64 = AtomicU64::new(0);
static MODE: AtomicU32 = AtomicU32::new(MEMORY);
static HIT: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
static DEAD: AtomicI32 = AtomicI32::new(0);
/// Of each call that was counted, whether it may tell of a lost device.
static MAY_LOSE: Mutex<Vec<bool>> = Mutex::new(Vec::new());

/// The call finds no memory, and the device goes on.
pub const MEMORY: u32 = 0;
/// The call finds the device lost where it can, and so do all that follow.
pub const LOST: u32 = 1;

/// What a function returns when it fails.
#[derive(Clone, Copy)]
pub struct Codes {
    /// Of [`MEMORY`].
    pub memory: i32,
    /// Of [`LOST`]; zero for a function that never tells of a lost device.
    pub lost: i32,
}

/// Counts a call of a function; its failure, where it is to fail, and whether the device is lost from here on.
pub fn fault(name: &'static CStr, codes: Codes) -> Option<(i32, bool)> {
    // The vector is whole after every statement, so a thread that panicked left nothing half done.
    MAY_LOSE.lock().unwrap_or_else(PoisonError::into_inner).push(codes.lost != 0);
    let call = CALLS.fetch_add(1, SeqCst) + 1;
    let dead = DEAD.load(SeqCst);
    if dead != 0 && codes.lost != 0 {
        return Some((dead, false));
    }
    if call != ARMED.load(SeqCst) {
        return None;
    }
    HIT.store(name.as_ptr().cast_mut(), SeqCst);
    if MODE.load(SeqCst) == LOST && codes.lost != 0 {
        DEAD.store(codes.lost, SeqCst);
        return Some((codes.lost, true));
    }
    Some((codes.memory, false))
}

/// Counts from zero, and fails the `nth` call from now on; none if that is zero.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_faults_arm(nth: u64, mode: u32) {
    ARMED.store(0, SeqCst);
    MODE.store(mode, SeqCst);
    HIT.store(ptr::null_mut(), SeqCst);
    CALLS.store(0, SeqCst);
    MAY_LOSE.lock().unwrap_or_else(PoisonError::into_inner).clear();
    ARMED.store(nth, SeqCst);
}

/// The calls that were counted.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_faults_calls() -> u64 {
    CALLS.load(SeqCst)
}

/// Whether a call that was counted, from 1 on, may tell of a lost device.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_faults_may_lose(nth: u64) -> bool {
    let calls = MAY_LOSE.lock().unwrap_or_else(PoisonError::into_inner);
    nth.checked_sub(1).and_then(|at| calls.get(at as usize)).copied().unwrap_or(false)
}

/// The name of the function that failed; null where none did.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_faults_hit() -> *const c_char {
    HIT.load(SeqCst)
}

/// A device that was lost is there again, as in a new process.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_faults_revive() {
    DEAD.store(0, SeqCst);
}
