//! The sample: between which two keys the last kept one is likely to lie.

use super::{Buffers, SLOTS, Sent, WARPS, sum};
use crate::arith::topk::{TOGETHER, sampled};
use crate::device::{self, WARP};
use crate::params::{SelectParams, THREADS, segment, state};

kernel! {
    /// Raises a segment's floor and sure key to what a sample of it says.
    ///
    /// # What
    /// Of 256 times `1 << SLOTS_LOG2` keys, sampled in sectors that are spread evenly over what is bound of the segment,
    /// the keys of rank `RANK_LOW` and `RANK_HIGH`, counted from the largest. Elements above the former become
    /// candidates, those from the latter on are taken for sure. Several workgroups' answers meet in the lower floor and
    /// the higher sure key. Whatever they are, the selection is exact: they decide how long it takes.
    ///
    /// # Arguments
    /// * `p`; `input` and, with feedback, `residual`: `p.bound` elements. Read.
    /// * `workspace`: the table is read; of the states, `FLOOR` and `SURE` are raised.
    /// * `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// `1 << samples_log2` blocks a segment; 8 lanes read a sector.
    ///
    /// # Shared memory
    /// 16 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `p.tiles << p.samples_log2` of them, the segments from `p.first_tile` on.
    ///
    /// # Traffic
    /// Uncoalesced: a sector for each 8 keys, 8 KiB to 32 KiB a block.
    ///
    /// # Determinism
    /// Backend to backend: the places are the same, and maxima do not depend on order.
    ///
    /// # Edge cases
    /// A segment whose floor is fixed is left alone, and so is one without a sample, or of which nothing is bound.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_sample(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        let (thread, block) = (device::thread(), device::block());
        let index = p.first_tile + (block >> p.samples_log2);
        // SAFETY: the segment is in the table, by the launch contract.
        let table = |word: u32| unsafe { *b.word(index * segment::WORDS + word) };
        let start = table(segment::START).max(p.first);
        let end = (table(segment::START) + table(segment::ELEMENTS)).min(p.first + p.bound);
        if table(segment::FIXED) | table(segment::UNSAMPLED) != 0 || start >= end {
            return;
        }
        let slots_log2 = table(segment::SLOTS_LOG2);
        // SAFETY: as above.
        let sent = unsafe { Sent::load(&p, &b, index) };
        let mut keys = [0; SLOTS];
        for slot in 0..SLOTS {
            if slot < 1 << slots_log2 {
                let sector = (slot as u32 * THREADS + thread) / TOGETHER;
                let within = sampled(sector, 5 + slots_log2, end - start, block & ((1 << p.samples_log2) - 1));
                let element = ((start + within) / TOGETHER * TOGETHER).max(start) + thread % TOGETHER;
                if element < end {
                    // SAFETY: the element is bound.
                    keys[slot] = p.order().key(unsafe { b.fresh(&p, sent, (element - p.first) as usize) });
                }
            }
        }
        let ranks = [table(segment::RANK_LOW), table(segment::RANK_HIGH)];
        // SAFETY: nothing above depends on anything but the block, so that all threads are here.
        let [low, high] = unsafe { of_rank(&keys, ranks) };
        let floor = if ranks[0] == 0 { 0 } else { low + 1 };
        let sure = if ranks[1] == 0 { p.no_key() } else { high };
        if thread == 0 {
            let at = p.states + index * state::WORDS;
            // SAFETY: the state is there, and all that touch it here are atomic.
            unsafe {
                device::atomic_max(b.word(at + state::FLOOR), !floor);
                device::atomic_max(b.word(at + state::SURE), sure);
            }
        }
    }
}

/// The keys of two ranks, counted from 1 for the largest, among those of the block: zero where there are fewer.
///
/// Bit by bit from the highest on: a bit is set if that leaves enough keys that are no less.
///
/// # Safety
/// All threads of the block arrive together. The first 16 words of shared memory are free.
#[inline(always)]
unsafe fn of_rank(keys: &[u32; SLOTS], ranks: [u32; 2]) -> [u32; 2] {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    let mut found = [0; 2];
    let mut row = 0;
    // The compiler knows nothing of the first bit, or it would write the loop out 31 times.
    let mut bit = device::opaque(1 << 30);
    while bit != 0 {
        let trial = [found[0] | bit, found[1] | bit];
        // Both counts in one word: neither passes 8192.
        let mut count = 0;
        for key in keys {
            count += u32::from(*key >= trial[0]) + (u32::from(*key >= trial[1]) << 16);
        }
        // SAFETY: the caller brings all threads here. Two rows in turn: a warp that is ahead writes the other one.
        unsafe {
            count = sum(count);
            if lane == 0 {
                device::shared_store(row + warp, count);
            }
            device::barrier();
            count = 0;
            for other in 0..WARPS {
                count += device::shared_load(row + other);
            }
        }
        for k in 0..2 {
            let at_least = if k == 0 { count & 0xffff } else { count >> 16 };
            found[k] = if at_least >= ranks[k] { trial[k] } else { found[k] };
        }
        row ^= WARPS;
        bit >>= 1;
    }
    found
}
