//! The vocabulary in the words of rustc's own `nvptx64-nvidia-cuda` target.
//!
//! Whatever exchanges values between threads is an LLVM intrinsic and no `asm!`: LLVM knows of the intrinsics that
//! they are convergent, and so neither sinks them into a branch nor copies them into two, which it may do with `asm!`.

use core::arch::asm;
use core::arch::nvptx::{_block_idx_x, _syncthreads, _thread_idx_x};
use core::sync::atomic::{AtomicU32, Ordering};

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

#[allow(improper_ctypes, reason = "these are LLVM's, and no C compiler sees them")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(members: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(members: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(members: u32, value: u32, by: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(members: u32, vote: bool) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp(members: u32);
    #[link_name = "llvm.fma.f32"]
    fn fma_f32(a: f32, b: f32, c: f32) -> f32;
    #[link_name = "llvm.fma.f64"]
    fn fma_f64(a: f64, b: f64, c: f64) -> f64;
    #[cfg(target_feature = "sm_80")]
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_max(value: u32, members: u32) -> u32;
    #[cfg(target_feature = "sm_80")]
    #[link_name = "llvm.nvvm.redux.sync.add"]
    fn redux_add(value: u32, members: u32) -> u32;
    #[cfg(target_feature = "sm_80")]
    #[link_name = "llvm.nvvm.redux.sync.umin"]
    fn redux_min(value: u32, members: u32) -> u32;
}

#[cfg(target_feature = "sm_80")]
#[allow(improper_ctypes, reason = "as above")]
unsafe extern "unadjusted" {
    // The one ABI whose results are as LLVM has them: four numbers and no memory.
    #[link_name = "llvm.nvvm.mma.m16n8k8.row.col.tf32"]
    fn mma_tf32(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32) -> Fragment;
}

/// What [`mma_tf32`] returns.
#[cfg(target_feature = "sm_80")]
#[repr(C)]
struct Fragment(f32, f32, f32, f32);

/// All lanes of a warp.
const ALL: u32 = !0;
/// The `c` operand of a shuffle whose segment is the whole warp.
const CLAMP: u32 = WARP - 1;

/// The thread's index in its block.
#[inline(always)]
pub(crate) fn thread() -> u32 {
    // SAFETY: it reads a register that every thread has.
    unsafe { _thread_idx_x() as u32 }
}

/// The block's index in the grid.
#[inline(always)]
pub(crate) fn block() -> u32 {
    // SAFETY: it reads a register that every thread has.
    unsafe { _block_idx_x() as u32 }
}

/// Waits for every thread of the block; what any of them wrote to memory before is seen by all of them after.
///
/// # Safety
/// Every thread of the block arrives at this call.
#[inline(always)]
pub(crate) unsafe fn barrier() {
    // SAFETY: the caller brings every thread here.
    unsafe { _syncthreads() }
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

/// Whether [`fold_max`] and [`fold_min`] are one instruction.
pub(crate) const FOLDS: bool = cfg!(target_feature = "sm_80");

/// The largest value of the warp, in every lane.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn fold_max(value: u32) -> u32 {
    #[cfg(target_feature = "sm_80")]
    // SAFETY: the caller brings all lanes here.
    let folded = unsafe { redux_max(value, ALL) };
    #[cfg(not(target_feature = "sm_80"))]
    // SAFETY: as above.
    let folded = unsafe { butterfly(value, u32::max) };
    folded
}

/// The smallest value of the warp, in every lane.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn fold_min(value: u32) -> u32 {
    #[cfg(target_feature = "sm_80")]
    // SAFETY: the caller brings all lanes here.
    let folded = unsafe { redux_min(value, ALL) };
    #[cfg(not(target_feature = "sm_80"))]
    // SAFETY: as above.
    let folded = unsafe { butterfly(value, u32::min) };
    folded
}

/// The sum over the warp, in every lane.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
pub(crate) unsafe fn fold_sum(value: u32) -> u32 {
    #[cfg(target_feature = "sm_80")]
    // SAFETY: the caller brings all lanes here.
    let folded = unsafe { redux_add(value, ALL) };
    #[cfg(not(target_feature = "sm_80"))]
    // SAFETY: as above.
    let folded = unsafe { butterfly(value, u32::wrapping_add) };
    folded
}

/// # Safety
/// All lanes of the warp arrive together.
#[cfg(not(target_feature = "sm_80"))]
#[inline(always)]
unsafe fn butterfly(mut value: u32, op: impl Fn(u32, u32) -> u32) -> u32 {
    for step in 0..5 {
        // SAFETY: the caller brings all lanes here.
        value = op(value, unsafe { shuffle_xor(value, 1 << step) });
    }
    value
}

/// `c` + A B, of matrices of TF32 that lie in the warp's registers as the ISA's `mma.m16n8k8` has them. The order of
/// sums, and how they are rounded, is the device's.
///
/// # Safety
/// All lanes of the warp arrive together.
#[cfg(target_feature = "sm_80")]
#[inline(always)]
pub(crate) unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    // SAFETY: the caller brings all lanes here.
    let d = unsafe { mma_tf32(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [d.0, d.1, d.2, d.3]
}

/// The nearest TF32 number, of two the one farther from zero: a binary32 whose low 13 bits are zero.
#[cfg(target_feature = "sm_80")]
#[inline(always)]
pub(crate) fn tf32(value: f32) -> u32 {
    let rounded;
    // SAFETY: an instruction on registers.
    unsafe {
        asm!("cvt.rna.tf32.f32 {}, {};", lateout(reg32) rounded, in(reg32) value, options(pure, nomem, nostack));
    }
    rounded
}

/// `a b + c`, rounded once. For sums whose bits nothing depends on.
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    // SAFETY: an operation on numbers.
    unsafe { fma_f32(a, b, c) }
}

/// `a b + c`, rounded once.
#[inline(always)]
pub(crate) fn fma_wide(a: f64, b: f64, c: f64) -> f64 {
    // SAFETY: an operation on numbers.
    unsafe { fma_f64(a, b, c) }
}

/// The square root, rounded.
#[inline(always)]
pub(crate) fn sqrt(value: f64) -> f64 {
    let root;
    // SAFETY: an instruction on registers.
    unsafe { asm!("sqrt.rn.f64 {}, {};", lateout(reg64) root, in(reg64) value, options(pure, nomem, nostack)) }
    root
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
    let value;
    // LLVM has other words for it from sm_70 on, which would be the one difference between two texts.
    // SAFETY: as above; what it orders is the fence's affair.
    unsafe { asm!("ld.volatile.u32 {}, [{}];", lateout(reg32) value, in(reg64) word, options(nostack)) }
    value
}

/// Orders what the thread did, and what its block did before its last barrier, before the strong writes that follow;
/// and what the strong reads before it have seen, with all that came before that, before what follows. For all of the
/// device.
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: an instruction without operands. It touches memory as far as the compiler knows, which moves none of it
    // past it.
    unsafe { asm!("membar.gl;", options(nostack)) }
}

/// A binary16 as binary32, exactly, as `arith::float::f16_to_f32` but in one instruction.
///
/// The two differ in the bits of a NaN alone, and a NaN's bits decide nothing: it poisons its bucket either way.
#[inline(always)]
pub(crate) fn half_to_f32(half: u16) -> f32 {
    let value;
    // SAFETY: an instruction on registers.
    unsafe { asm!("cvt.f32.f16 {}, {};", lateout(reg32) value, in(reg16) half, options(pure, nomem, nostack)) }
    value
}

/// `value << by`, and zero where nothing is left.
#[inline(always)]
pub(crate) fn shift_out(value: u32, by: u32) -> u32 {
    let left;
    // PTX has what Rust has no operator for: it takes shifts of 32 and more for what they are.
    // SAFETY: an instruction on registers.
    unsafe {
        asm!(
            "shl.b32 {}, {}, {};",
            lateout(reg32) left,
            in(reg32) value,
            in(reg32) by,
            options(pure, nomem, nostack)
        );
    }
    left
}

/// The same value, of which the compiler knows nothing.
///
/// Keeps it from computing far ahead what is cheap to compute where it is used, and from carrying the result in a
/// register all the way.
#[inline(always)]
pub(crate) fn opaque(value: u32) -> u32 {
    let same;
    // SAFETY: an instruction on registers. Not `pure`, because what is pure may be moved out of a loop.
    unsafe { asm!("mov.b32 {}, {};", lateout(reg32) same, in(reg32) value, options(nomem, nostack)) }
    same
}
