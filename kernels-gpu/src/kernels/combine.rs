//! Folding the partial statistics of a tensor that is one bucket: one block, whatever the tensor's length.

use super::statistic::{Statistic, across_warps};
use super::tile::{Buffers, Place};
use crate::device;
use crate::params::{EncodeParams, PARTIAL_WORDS, THREADS};

/// Words in front of the partial statistics: the final statistic's room.
const FINAL_WORDS: usize = 64;

/// Partial statistics that a thread has on their way at a time; one after another would wait for memory each time.
const AHEAD: u32 = 8;

/// A partial statistic, read as one.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Partial([u32; PARTIAL_WORDS as usize]);

/// Folds `of` every partial statistic that is this thread's.
///
/// # Safety
/// The workspace holds `p.partials` of them, at least one, behind the final statistic's room.
#[inline(always)]
pub(super) unsafe fn fold_thread<S: Statistic>(p: &EncodeParams, b: &Buffers, of: impl Fn([u32; 4]) -> S) -> S {
    // SAFETY: the caller's, word for word; the workspace is aligned to 256 bytes.
    let partials = unsafe { b.workspace.add(FINAL_WORDS) }.cast::<Partial>();
    let last = p.partials - 1;
    let mut folded = S::NONE;
    let mut first = device::thread();
    while first <= last {
        let mut ahead = [Partial([0; 4]); AHEAD as usize];
        for k in 0..AHEAD {
            // SAFETY: no index passes the last one's.
            ahead[k as usize] = unsafe { *partials.add((first + k * THREADS).min(last) as usize) };
        }
        for k in 0..AHEAD {
            if first + k * THREADS <= last {
                folded = folded.merge(of(ahead[k as usize].0));
            }
        }
        first += AHEAD * THREADS;
    }
    folded
}

/// Folds what the threads of the block have; every thread gets it.
///
/// # Safety
/// All threads of the block arrive together. `shared` is the first of 8 statistics' words of shared memory, which
/// nothing else uses.
#[inline(always)]
pub(super) unsafe fn fold_block<S: Statistic>(place: Place, shared: u32, value: S) -> S {
    // SAFETY: the caller's, word for word.
    unsafe { across_warps(place, 3, shared, S::fold_lanes::<1>(place.lane, |_| value)) }
}

/// Writes the final statistic and the wire's scalars.
///
/// # Safety
/// The workspace holds the final statistic's room, and `scalars` has room for `wire`.
#[inline(always)]
pub(super) unsafe fn write(b: &Buffers, statistic: [u32; 2], wire: &[f32]) {
    if device::thread() != 0 {
        return;
    }
    for (word, value) in statistic.iter().enumerate() {
        // SAFETY: the caller's, word for word.
        unsafe { *b.workspace.add(word) = *value };
    }
    for (scalar, value) in wire.iter().enumerate() {
        // SAFETY: the caller's, word for word.
        unsafe { *b.scalars.add(scalar) = value.to_bits() };
    }
}
