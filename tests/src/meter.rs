//! A meter over the allocator: how many bytes a call holds at most, so that a test can bound what hostile bytes cost.
//!
//! A binary that wants to measure makes [`Meter`] its global allocator; without it every reading is 0.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The system's allocator, which counts what the threads of the measured group ask for.
#[derive(Clone, Copy, Debug)]
pub struct Meter;

/// Bytes that the measured group holds, from the start of the measurement on; freeing what is older takes it below zero.
static LIVE: AtomicI64 = AtomicI64::new(0);
/// The most that `LIVE` was.
static PEAK: AtomicI64 = AtomicI64::new(0);
/// Held during a measurement: there is one pair of counters.
static GATE: Mutex<()> = Mutex::new(());
/// The group that is measured now, or 0. Another test's threads may allocate meanwhile, and count nothing.
static MEASURED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // This thread's group, or 0. Constant and without a destructor, so that reading it never allocates: the allocator itself
    // reads it.
    static GROUP: Cell<u64> = const { Cell::new(0) };
}

fn note(bytes: i64) {
    // A thread that is ending has no locals any more; what it frees then is nobody's measurement.
    let group = GROUP.try_with(Cell::get).unwrap_or(0);
    if group != 0 && group == MEASURED.load(Ordering::Relaxed) {
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

/// Threads that are measured together.
#[derive(Clone, Copy, Debug)]
pub struct Group(u64);

impl Group {
    /// A group that no thread is in yet.
    pub fn fresh() -> Group {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Group(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Adds the calling thread for the rest of its life. A pool's start handler calls it.
    pub fn enlist(self) {
        GROUP.set(self.0);
    }
}

/// The measurement of a group, which ends when this is dropped, also if the measured call panics.
struct Measurement {
    before: u64,
}

impl Drop for Measurement {
    fn drop(&mut self) {
        MEASURED.store(0, Ordering::Relaxed);
        GROUP.set(self.before);
    }
}

/// Runs `call`, and tells the most bytes that this thread and the others of its [`Group`] held at a time beyond what they
/// held before. Measurements wait for each other, so a call does not contain another.
pub fn measure<T>(call: impl FnOnce() -> T) -> (T, u64) {
    // A measured call that panicked left nothing behind that the next one reads.
    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    LIVE.store(0, Ordering::Relaxed);
    PEAK.store(0, Ordering::Relaxed);
    let before = GROUP.get();
    if before == 0 {
        Group::fresh().enlist();
    }
    MEASURED.store(GROUP.get(), Ordering::Relaxed);
    let measurement = Measurement { before };
    let value = call();
    drop(measurement);
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
