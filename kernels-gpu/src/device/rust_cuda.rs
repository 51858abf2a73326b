//! The vocabulary in the words of Rust-CUDA: `cuda_std`, and a compiler with the backend `rustc_codegen_nvvm`.
//!
//! The words are those of cuda_std 0.2.2, as crates.io and the repository's main branch both have them, so that this
//! file type-checks on any machine. What cuda_std 0.2.2 of crates.io lacks, exchanges between lanes, are the intrinsics
//! of LLVM 7 that the main branch calls as well. **No GPU has run what this makes**: see the repository's README.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_std::{GpuFloat, thread};

mod shared;
mod tile;

pub(crate) use shared::{
    bin_add, bin_load, bin_or, bin_store, shared_load, shared_load_four, shared_load_pair, shared_load_row,
    shared_store, shared_store_four, shared_store_pair, shared_store_row, stage_count, stage_load, stage_load_four,
    stage_load_pair, stage_load_wide, stage_store, stage_store_four, stage_store_wide,
};
pub(crate) use tile::{
    carries, carries_of_halves, list_address, list_load, list_store, tile_address, tile_load_half, tile_load_own,
    tile_load_word, tile_store_chunks, tile_store_halves, tile_store_words,
};

use super::sizes::WARP;
use crate::arith::float::f16_to_f32;

// Elsewhere the names are never linked: nothing runs there.
unsafe extern "C" {
    #[cfg_attr(target_arch = "nvptx64", link_name = "llvm.nvvm.shfl.sync.bfly.i32")]
    fn shfl_bfly(members: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
    #[cfg_attr(target_arch = "nvptx64", link_name = "llvm.nvvm.shfl.sync.idx.i32")]
    fn shfl_idx(members: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[cfg_attr(target_arch = "nvptx64", link_name = "llvm.nvvm.shfl.sync.up.i32")]
    fn shfl_up(members: u32, value: u32, by: u32, clamp: u32) -> u32;
    #[cfg_attr(target_arch = "nvptx64", link_name = "llvm.nvvm.vote.ballot.sync")]
    fn vote_ballot(members: u32, vote: bool) -> u32;
    #[cfg_attr(target_arch = "nvptx64", link_name = "llvm.nvvm.bar.warp.sync")]
    fn bar_warp(members: u32);
}

/// All lanes of a warp.
const ALL: u32 = !0;
/// The `c` operand of a shuffle whose segment is the whole warp.
const CLAMP: u32 = WARP - 1;

/// The thread's index in its block.
#[inline(always)]
pub(crate) fn thread() -> u32 {
    thread::thread_idx_x()
}

/// The block's index in the grid.
#[inline(always)]
pub(crate) fn block() -> u32 {
    thread::block_idx_x()
}

/// Waits for every thread of the block; what any of them wrote to memory before is seen by all of them after.
///
/// # Safety
/// Every thread of the block arrives at this call.
#[inline(always)]
pub(crate) unsafe fn barrier() {
    thread::sync_threads();
}

/// Waits for every lane of the warp; what any of them wrote to memory before is seen by all of them after.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn warp_barrier() {
    // SAFETY: the caller brings all lanes here.
    unsafe { bar_warp(ALL) }
}

/// The value that lane `lane ^ mask` gives.
///
/// # Safety
/// All lanes of the warp arrive together, with `mask` below 32 and the same in each.
#[inline(always)]
pub(crate) unsafe fn shuffle_xor(value: u32, mask: u32) -> u32 {
    // SAFETY: the caller brings all lanes here.
    unsafe { shfl_bfly(ALL, value, mask, CLAMP) }
}

/// The value that lane `from % 32` gives.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn shuffle(value: u32, from: u32) -> u32 {
    // SAFETY: the caller brings all lanes here.
    unsafe { shfl_idx(ALL, value, from, CLAMP) }
}

/// The value that the lane gives which is `by` lower; a lane's own, where there is none.
///
/// # Safety
/// All lanes of the warp arrive together, with `by` below 32 and the same in each.
#[inline(always)]
pub(crate) unsafe fn shuffle_up(value: u32, by: u32) -> u32 {
    // SAFETY: the caller brings all lanes here.
    unsafe { shfl_up(ALL, value, by, 0) }
}

/// A bit per lane: whether `vote` is true there.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn ballot(vote: bool) -> u32 {
    // SAFETY: the caller brings all lanes here.
    unsafe { vote_ballot(ALL, vote) }
}

/// LLVM 7 is older than the instruction that folds a warp.
pub(crate) const FOLDS: bool = false;

/// The largest value of the warp, in every lane.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn fold_max(value: u32) -> u32 {
    // SAFETY: the caller brings all lanes here.
    unsafe { butterfly(value, u32::max) }
}

/// The smallest value of the warp, in every lane.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn fold_min(value: u32) -> u32 {
    // SAFETY: the caller brings all lanes here.
    unsafe { butterfly(value, u32::min) }
}

/// The sum over the warp, in every lane.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn fold_sum(value: u32) -> u32 {
    // SAFETY: the caller brings all lanes here.
    unsafe { butterfly(value, u32::wrapping_add) }
}

/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn butterfly(mut value: u32, op: impl Fn(u32, u32) -> u32) -> u32 {
    for step in 0..5 {
        // SAFETY: the caller brings all lanes here.
        value = op(value, unsafe { shuffle_xor(value, 1 << step) });
    }
    value
}

/// `a b + c`, rounded once. For sums whose bits nothing depends on.
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    GpuFloat::mul_add(a, b, c)
}

/// `a b + c`, rounded once.
#[inline(always)]
pub(crate) fn fma_wide(a: f64, b: f64, c: f64) -> f64 {
    GpuFloat::mul_add(a, b, c)
}

/// The square root, rounded.
#[inline(always)]
pub(crate) fn sqrt(value: f64) -> f64 {
    GpuFloat::sqrt(value)
}

/// Raises a word of global memory to `value`, if it is below.
///
/// # Safety
/// `word` is a word of global memory that only atomic operations touch while the kernel runs.
#[inline(always)]
pub(crate) unsafe fn atomic_max(word: *mut u32, value: u32) {
    // SAFETY: the caller answers for the pointer; relaxed, because nothing else is ordered by it.
    unsafe { AtomicU32::from_ptr(word).fetch_max(value, Ordering::Relaxed) };
}

/// Adds to a word of global memory, and gives what it was before.
///
/// # Safety
/// As [`atomic_max`].
#[inline(always)]
pub(crate) unsafe fn atomic_add(word: *mut u32, value: u32) -> u32 {
    // SAFETY: as above.
    unsafe { AtomicU32::from_ptr(word).fetch_add(value, Ordering::Relaxed) }
}

/// Reads a word of global memory that other blocks write by atomic operations, each time anew.
///
/// # Safety
/// As [`atomic_max`].
#[inline(always)]
pub(crate) unsafe fn load_strong(word: *mut u32) -> u32 {
    // SAFETY: as above; what it orders is the fence's affair.
    unsafe { AtomicU32::from_ptr(word).load(Ordering::Relaxed) }
}

/// Orders what the thread did, and what its block did before its last barrier, before the strong writes that follow;
/// and what the strong reads before it have seen, with all that came before that, before what follows. For all of the
/// device.
#[inline(always)]
pub(crate) fn fence() {
    thread::device_fence();
}

/// A binary16 as binary32, exactly.
#[inline(always)]
pub(crate) fn half_to_f32(half: u16) -> f32 {
    f16_to_f32(half)
}

/// `value << by`, and zero where nothing is left.
#[inline(always)]
pub(crate) fn shift_out(value: u32, by: u32) -> u32 {
    value.checked_shl(by).unwrap_or(0)
}

/// The same value. Nothing is hidden from the compiler here: what that gains was measured for another one.
#[inline(always)]
pub(crate) fn opaque(value: u32) -> u32 {
    value
}
