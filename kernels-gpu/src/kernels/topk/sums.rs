//! How many entries are before a tile: sums of tiles' counts, in two steps.
//!
//! Kernels that need to know it add up what is counted of the tiles before, in parts: of 64 times 64 tiles together, of
//! 64, and one by one. So no pass is needed between the one that counts and the one that asks, and none goes over all
//! tiles in one workgroup.

use super::{Buffers, sum};
use crate::device::{self, WARP};
use crate::params::{SUMMED_LOG2, SelectParams, select_flags};

/// Whether the sums that a tile is in are complete with it, of those that a warp adds to.
#[inline(always)]
pub(super) fn is_last(tile: u32) -> bool {
    (tile + 1).is_multiple_of(1 << SUMMED_LOG2)
}

/// Adds what a warp counts to the sums that a tile is in: `count` is of the first kind in even lanes, of the second in
/// odd ones.
///
/// # Safety
/// The sums are there, and touched by atomic operations alone.
#[inline(always)]
pub(super) unsafe fn add(p: &SelectParams, b: &Buffers, tile: u32, count: u32) {
    let lane = device::thread() % WARP;
    if lane < 4 && count > 0 {
        let upper = lane >= 2;
        let at = p.sums(upper, p.has(select_flags::OF_SKETCH))
            + 2 * (tile >> if upper { 2 * SUMMED_LOG2 } else { SUMMED_LOG2 });
        // SAFETY: the caller ensures that the sums are there, and that only atomics touch them.
        unsafe { device::atomic_add(b.word(at + (lane & 1)), count) };
    }
}

/// What is counted of the tiles from `first` on up to `behind`, in every lane.
///
/// # Safety
/// All lanes arrive together. Counts and sums of those tiles are there, and nothing writes them.
#[inline(always)]
pub(super) unsafe fn between(
    p: &SelectParams,
    b: &Buffers,
    of_sketch: bool,
    mut first: u32,
    mut behind: u32,
) -> [u32; 2] {
    const MASK: u32 = (1 << SUMMED_LOG2) - 1;
    // Of tiles and of sums of 64, what lies before the next level's and after it: less than 64 each.
    let mut parts = [(0, 0, 0); 4];
    for level in 0..2 {
        // What the next level has sums of lies between.
        let up = ((first + MASK) & !MASK).min(behind);
        let down = (behind & !MASK).max(up);
        let array = if level == 0 { p.counts } else { p.sums(false, of_sketch) };
        parts[2 * level] = (array, first, up);
        parts[2 * level + 1] = (array, down, behind);
        first = up >> SUMMED_LOG2;
        behind = down >> SUMMED_LOG2;
    }
    let lane = device::thread() % WARP;
    let array = p.sums(true, of_sketch);
    let mut all = [0; 8];
    // SAFETY: the caller's; two words that are aligned as one of twice the size.
    let both = |array: u32, at: u32| unsafe { *b.word(array + 2 * at).cast::<u64>() };
    // All of them are on their way before the first is waited for.
    for k in 0..8 {
        let (array, first, behind) = parts[k / 2];
        let at = first + (k as u32 % 2) * WARP + lane;
        if at < behind {
            all[k] = both(array, at);
        }
    }
    let mut counts = [0; 2];
    let mut add = |both: u64| {
        counts[0] += both as u32;
        counts[1] += (both >> 32) as u32;
    };
    for k in 0..8 {
        add(all[k]);
    }
    let mut at = first + lane;
    while at < behind {
        add(both(array, at));
        at += WARP;
    }
    // SAFETY: the caller brings all lanes here.
    unsafe { [sum(counts[0]), sum(counts[1])] }
}
