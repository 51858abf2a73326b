//! A meter over the allocator: how many bytes a call holds at most, so that a test can bound what hostile bytes cost.
//!
//! A binary that wants to measure makes [`Meter`] its global allocator; without it every reading is 0.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The system's allocator, which counts what the metered threads ask for.
#[derive(Clone, Copy, Debug)]
pub struct Meter;

/// Bytes that metered threads hold, from the start of the measurement on; freeing what is older takes it below zero.
static LIVE: AtomicI64 = AtomicI64::new(0);
/// The most that `LIVE` was.
static PEAK: AtomicI64 = AtomicI64::new(0);
/// Held during a measurement: there is one pair of counters.
static GATE: Mutex<()> = Mutex::new(());

thread_local! {
    // Constant and without a destructor, so that reading it never allocates: the allocator itself reads it.
    static METERED: Cell<bool> = const { Cell::new(false) };
}

fn note(bytes: i64) {
    // A thread that is ending has no locals any more; what it frees then is nobody's measurement.
    if METERED.try_with(Cell::get).unwrap_or(false) {
        let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the arguments it came with; counting allocates nothing.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Counted before it is granted: what is asked for is what an attacker controls, granted or not.
        note(layout.size() as i64);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: the caller's pointer came from this allocator, so it came from the system's with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
    // The default `realloc` goes through `alloc` and `dealloc`, so that both blocks count while both are held.
}

/// Meters this thread for the rest of its life. For the threads of a pool: give it to them as their start handler.
pub fn enlist() {
    METERED.set(true);
}

/// Ends the calling thread's metering, also where the measured call panics.
struct Metered;

impl Drop for Metered {
    fn drop(&mut self) {
        METERED.set(false);
    }
}

/// Runs `call`, and tells the most bytes that this thread and the enlisted ones held at a time beyond what they held
/// before. Measurements wait for each other, so a call does not contain another.
pub fn measure<T>(call: impl FnOnce() -> T) -> (T, u64) {
    // A measured call that panicked left nothing behind that the next one reads.
    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    LIVE.store(0, Ordering::Relaxed);
    PEAK.store(0, Ordering::Relaxed);
    METERED.set(true);
    let metered = Metered;
    let value = call();
    drop(metered);
    (value, PEAK.load(Ordering::Relaxed).max(0) as u64)
}

/// Runs `call`, which may hold up to `allowed` bytes.
///
/// # Panics
/// Where it held more; the text names `what`.
pub fn bounded<T>(what: &str, allowed: u64, call: impl FnOnce() -> T) -> T {
    let (value, held) = measure(call);
    assert!(held <= allowed, "{what} held {held} bytes, and {allowed} are justified: look for an unchecked length");
    value
}
