//! The allocator of this program, which can refuse: what stands for a driver where the CPU is the backend.
//!
//! Only allocations that can be as long as a gradient are counted and refused. Rust's collections end a process that
//! gets no memory for a few words, and so does the library: for a list of tasks, of segments or of blocks, and for what
//! a thread has for itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// The fewest bytes that count. The tensors of the operations are longer. What a thread has for itself, whatever the
/// tensor's length, is shorter in these operations, and so is what rayon allocates. (PowerSGD of rank 8 and up takes
/// 66 KiB for each thread if a right factor has 16,384 entries.)
const LEAST: usize = 1 << 16;

/// The system's allocator, but for the allocation that is to be refused.
pub(super) struct Allocator;

/// Allocations since [`arm`].
static CALLS: AtomicU64 = AtomicU64::new(0);
/// The one that is refused; none for zero.
static ARMED: AtomicU64 = AtomicU64::new(0);
/// The bytes of the one that was refused; zero before.
static HIT: AtomicUsize = AtomicUsize::new(0);
/// Set while what is asked for is not the library's.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Counts from zero, and refuses the `nth` allocation from now on; none if that is zero.
pub(super) fn arm(nth: u64) {
    ARMED.store(0, SeqCst);
    HIT.store(0, SeqCst);
    CALLS.store(0, SeqCst);
    PAUSED.store(false, SeqCst);
    ARMED.store(nth, SeqCst);
}

/// Counts and refuses nothing until [`arm`].
pub(super) fn over() {
    PAUSED.store(true, SeqCst);
}

/// Allocations that were counted.
pub(super) fn calls() -> u64 {
    CALLS.load(SeqCst)
}

/// What was refused.
pub(super) fn hit() -> Option<String> {
    let bytes = HIT.load(SeqCst);
    (bytes != 0).then(|| format!("{bytes} bytes"))
}

/// Does what counts no allocation: an engine's work, not the library's. No other thread works for the library then.
pub(super) fn paused<T>(work: impl FnOnce() -> T) -> T {
    let before = PAUSED.swap(true, SeqCst);
    let done = work();
    PAUSED.store(before, SeqCst);
    done
}

/// Counts an allocation; whether it is to be refused.
fn is_refused(bytes: usize) -> bool {
    if bytes < LEAST || PAUSED.load(SeqCst) || CALLS.fetch_add(1, SeqCst) + 1 != ARMED.load(SeqCst) {
        return false;
    }
    HIT.store(bytes, SeqCst);
    true
}

// SAFETY: every call goes to the system's allocator with the arguments it came with, or is refused as the contract
// allows; counting allocates nothing.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if bytes > layout.size() && is_refused(bytes) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on, and the pointer came from the system's allocator.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's pointer came from this allocator, so it came from the system's with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
