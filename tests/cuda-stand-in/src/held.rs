//! Streams on which another library has work that is not done: the stand-in for NCCL, whose ranks wait for one another.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Of each stream, how much work there is.
static HELD: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());
static FREED: Condvar = Condvar::new();

fn held() -> MutexGuard<'static, BTreeMap<usize, u64>> {
    // The map is whole after every statement.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queues work of another library's: what is called for the stream waits for it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn gradwire_stand_in_hold(stream: usize) {
    *held().entry(stream).or_default() += 1;
}

/// That work is done.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn gradwire_stand_in_release(stream: usize) {
    let mut held = held();
    if let Some(count) = held.get_mut(&stream) {
        *count -= 1;
        if *count == 0 {
            held.remove(&stream);
        }
    }
    FREED.notify_all();
}

pub(crate) fn is_held(stream: usize) -> bool {
    held().contains_key(&stream)
}

pub(crate) fn wait(stream: usize) {
    let mut held = held();
    while held.contains_key(&stream) {
        held = FREED.wait(held).unwrap_or_else(PoisonError::into_inner);
    }
}
