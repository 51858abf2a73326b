//! The vocabulary on threads of this machine: a block's 256 threads are 256 threads, and lanes meet at barriers.
//!
//! Slow, and made for tests: it runs the Rust source that the PTX is compiled from, so that a wrong index, shuffle or
//! barrier shows on a machine without a GPU.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::vec::Vec;

use super::{BINS, SHARED_WORDS, STAGE, WARP};
use crate::arith::float::f16_to_f32;
use crate::params::THREADS;

/// The 32 threads of a warp.
struct Warp {
    barrier: Barrier,
    /// Two rows of words, used in turn: a lane cannot be two exchanges ahead of another.
    slots: [[AtomicU32; WARP as usize]; 2],
    /// The same for fragments of matrices, of six words a lane.
    fragments: [[[AtomicU32; WARP as usize]; 6]; 2],
}

/// The 256 threads of a block.
pub(crate) struct Block {
    barrier: Barrier,
    warps: Vec<Warp>,
    shared: [AtomicU32; SHARED_WORDS],
    bins: Vec<AtomicU32>,
    stage: Vec<AtomicU32>,
}

impl Block {
    /// A block whose threads have not started.
    pub(crate) fn new() -> Self {
        let zeros = || [const { AtomicU32::new(0) }; WARP as usize];
        let warp = || Warp {
            barrier: Barrier::new(WARP as usize),
            slots: [zeros(), zeros()],
            fragments: core::array::from_fn(|_| core::array::from_fn(|_| zeros())),
        };
        Self {
            barrier: Barrier::new(THREADS as usize),
            warps: (0..THREADS / WARP).map(|_| warp()).collect(),
            shared: [const { AtomicU32::new(0) }; SHARED_WORDS],
            bins: (0..BINS).map(|_| AtomicU32::new(0)).collect(),
            stage: (0..STAGE).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

std::thread_local! {
    static BLOCK: RefCell<Option<Arc<Block>>> = const { RefCell::new(None) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
    static INDEX: Cell<u32> = const { Cell::new(0) };
    static TURN: Cell<usize> = const { Cell::new(0) };
}

/// Makes the calling thread a thread of a block.
pub(crate) fn enter(block: &Arc<Block>, thread: u32, index: u32) {
    BLOCK.set(Some(block.clone()));
    THREAD.set(thread);
    INDEX.set(index);
}

fn with_block<T>(work: impl FnOnce(&Block) -> T) -> T {
    BLOCK.with_borrow(|block| match block {
        Some(block) => work(block),
        None => panic!("kernels run in threads that `enter` made threads of a block"),
    })
}

/// Waits for all threads of the block; [`launch`](crate::emulate::launch) keeps blocks apart with it.
pub(crate) fn meet() {
    with_block(|block| block.barrier.wait());
}

pub(crate) fn thread() -> u32 {
    THREAD.get()
}

pub(crate) fn block() -> u32 {
    INDEX.get()
}

/// # Safety
/// Every thread of the block arrives at this call.
pub(crate) unsafe fn barrier() {
    meet();
}

/// What lane `from` gives, where each lane gives a value.
fn exchange(value: u32, from: u32) -> u32 {
    with_block(|block| {
        let warp = &block.warps[(thread() / WARP) as usize];
        let turn = TURN.get();
        TURN.set(1 - turn);
        warp.slots[turn][(thread() % WARP) as usize].store(value, Ordering::Relaxed);
        warp.barrier.wait();
        warp.slots[turn][(from % WARP) as usize].load(Ordering::Relaxed)
    })
}

/// # Safety
/// All lanes of the warp arrive together, with the same `mask`.
pub(crate) unsafe fn shuffle_xor(value: u32, mask: u32) -> u32 {
    exchange(value, (thread() % WARP) ^ mask)
}

/// # Safety
/// All lanes of the warp arrive together.
pub(crate) unsafe fn shuffle(value: u32, from: u32) -> u32 {
    exchange(value, from)
}

/// # Safety
/// All lanes of the warp arrive together.
pub(crate) unsafe fn ballot(vote: bool) -> u32 {
    let mut bits = u32::from(vote) << (thread() % WARP);
    for step in 0..5 {
        bits |= exchange(bits, (thread() % WARP) ^ (1 << step));
    }
    bits
}

/// As on targets below sm_80, whose way of folding has more that could be wrong.
pub(crate) const FOLDS: bool = false;

/// # Safety
/// All lanes of the warp arrive together.
pub(crate) unsafe fn fold_max(mut value: u32) -> u32 {
    for step in 0..5 {
        value = value.max(exchange(value, (thread() % WARP) ^ (1 << step)));
    }
    value
}

/// # Safety
/// All lanes of the warp arrive together.
pub(crate) unsafe fn fold_min(mut value: u32) -> u32 {
    for step in 0..5 {
        value = value.min(exchange(value, (thread() % WARP) ^ (1 << step)));
    }
    value
}

/// # Safety
/// No other thread touches the word between two barriers.
pub(crate) unsafe fn shared_store(index: u32, value: u32) {
    with_block(|block| block.shared[index as usize].store(value, Ordering::Relaxed));
}

/// # Safety
/// No thread writes the word between the same two barriers.
pub(crate) unsafe fn shared_load(index: u32) -> u32 {
    with_block(|block| block.shared[index as usize].load(Ordering::Relaxed))
}

/// # Safety
/// No other thread touches the bin between two barriers.
pub(crate) unsafe fn bin_store(index: u32, value: u32) {
    with_block(|block| block.bins[index as usize].store(value, Ordering::Relaxed));
}

/// # Safety
/// No thread writes the bin between the same two barriers.
pub(crate) unsafe fn bin_load(index: u32) -> u32 {
    with_block(|block| block.bins[index as usize].load(Ordering::Relaxed))
}

/// # Safety
/// Between two barriers the bin is only added to.
pub(crate) unsafe fn bin_add(index: u32, value: u32) {
    with_block(|block| block.bins[index as usize].fetch_add(value, Ordering::Relaxed));
}

/// # Safety
/// No other thread touches the word between two barriers.
pub(crate) unsafe fn stage_store(index: u32, value: f32) {
    with_block(|block| block.stage[index as usize].store(value.to_bits(), Ordering::Relaxed));
}

/// # Safety
/// No thread writes the word between the same two barriers.
pub(crate) unsafe fn stage_load(index: u32) -> f32 {
    f32::from_bits(with_block(|block| block.stage[index as usize].load(Ordering::Relaxed)))
}

/// # Safety
/// As [`stage_load`], for four words, of which the first is at a multiple of 4.
pub(crate) unsafe fn stage_load_four(index: u32) -> [f32; 4] {
    assert!(index.is_multiple_of(4), "four words are aligned");
    // SAFETY: the caller's.
    [0, 1, 2, 3].map(|k| unsafe { stage_load(index + k) })
}

/// # Safety
/// As [`stage_store`], for two words, of which the first is even.
pub(crate) unsafe fn stage_store_wide(index: u32, value: f64) {
    assert!(index.is_multiple_of(2), "two words are aligned");
    let bits = value.to_bits();
    // SAFETY: the caller's.
    unsafe {
        stage_store(index, f32::from_bits(bits as u32));
        stage_store(index + 1, f32::from_bits((bits >> 32) as u32));
    }
}

/// # Safety
/// As [`stage_load`], for two words, of which the first is even.
pub(crate) unsafe fn stage_load_wide(index: u32) -> f64 {
    assert!(index.is_multiple_of(2), "two words are aligned");
    // SAFETY: the caller's.
    let [low, high] = [0, 1].map(|k| u64::from(unsafe { stage_load(index + k) }.to_bits()));
    f64::from_bits(low | high << 32)
}

/// `c` + A B, as the PTX machine has it: products in order, exact, and the sum cut towards zero.
///
/// # Safety
/// All lanes of the warp arrive together.
pub(crate) unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    let lane = thread() % WARP;
    with_block(|block| {
        let warp = &block.warps[(thread() / WARP) as usize];
        let turn = TURN.get();
        TURN.set(1 - turn);
        let fragments = &warp.fragments[turn];
        for (to, value) in fragments.iter().zip(a.into_iter().chain(b)) {
            to[lane as usize].store(value, Ordering::Relaxed);
        }
        warp.barrier.wait();
        let number = |which: u32, lane: u32| {
            f64::from(f32::from_bits(fragments[which as usize][lane as usize].load(Ordering::Relaxed)))
        };
        let (g, t) = (lane / 4, lane % 4);
        core::array::from_fn(|i| {
            let (below, column) = (i as u32 / 2, 2 * t + i as u32 % 2);
            let mut sum = f64::from(c[i]);
            for k in 0..8 {
                let (left, right) = (number(below + k / 4 * 2, 4 * g + k % 4), number(4 + k / 4, 4 * column + k % 4));
                sum += left * right;
            }
            let nearest = sum as f32;
            let over = f64::from(nearest).abs() > sum.abs() && nearest.is_finite();
            f32::from_bits(nearest.to_bits() - u32::from(over))
        })
    })
}

pub(crate) fn tf32(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_e000 } else { value.to_bits().wrapping_add(0x1000) & !0x1fff }
}

pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

pub(crate) fn fma_wide(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}

pub(crate) fn sqrt(value: f64) -> f64 {
    value.sqrt()
}

/// # Safety
/// `word` is valid, and only atomic operations touch it while the kernel runs.
pub(crate) unsafe fn atomic_max(word: *mut u32, value: u32) {
    // SAFETY: the caller's, word for word.
    unsafe { AtomicU32::from_ptr(word) }.fetch_max(value, Ordering::Relaxed);
}

/// # Safety
/// As [`atomic_max`].
pub(crate) unsafe fn atomic_add(word: *mut u32, value: u32) -> u32 {
    // SAFETY: the caller's, word for word.
    unsafe { AtomicU32::from_ptr(word) }.fetch_add(value, Ordering::Relaxed)
}

pub(crate) fn half_to_f32(half: u16) -> f32 {
    f16_to_f32(half)
}

pub(crate) fn opaque(value: u32) -> u32 {
    value
}
