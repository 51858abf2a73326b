//! What the warps of a filter's block tell each other: how much they have found, and where it goes.

use super::job::{BEHIND, Job};
use super::{Buffers, WARPS, prefix, sum};
use crate::arith::topk::{digit_shift, rounds_of};
use crate::device::{self, WARP};
use crate::params::{NOWHERE, PIECE, SelectParams, THREADS, room, state};

/// Words of shared memory after those of the job: 2 counts a warp; then, 4 a warp, where its candidates go, and those
/// of the band, and how the band is counted.
pub(super) const COUNTS: u32 = BEHIND;
pub(super) const OUTPUTS: u32 = COUNTS + 2 * WARPS;

/// A tile with no more in the band adds them to the histogram one by one, where that has more bins than a block has
/// threads.
const FEW: u32 = 128;

/// Adds up what the warps have found, and tells them where it goes.
///
/// # Safety
/// All lanes of one warp arrive together, a barrier after the counts; as the kernel asks.
#[inline(always)]
pub(super) unsafe fn share<const AGAIN: bool>(p: &SelectParams, b: &Buffers, tile: u32) {
    let lane = device::thread() % WARP;
    // SAFETY: the caller's; the state and the room are there, and touched by atomic operations alone.
    unsafe {
        let job = Job::known();
        let top = job.top();
        let [mut own, mut below] = [0; 2];
        if lane < WARPS {
            [own, below] = device::shared_load_pair::<COUNTS>(lane);
        }
        let up_to = prefix(own);
        let all = device::shuffle(up_to, WARP - 1);
        below = sum(below);
        let (candidates, band) = (all & 0xffff, all >> 16);
        // The band is the first range in which the last kept key is looked for: it is counted on the way.
        let (mut shift, mut bins) = (0, 0);
        if job.base < top && band != 0 {
            shift = digit_shift(top - job.base, rounds_of(top - job.base));
            // Few of many keys are added to the histogram itself: to look through the block's bins would take longer.
            // Of few keys all tiles have the same ones, and an addition for each of a tile is all that one word can
            // take.
            let all = ((top - job.base - 1) >> shift) + 1;
            if band > FEW || all <= THREADS {
                bins = all;
            }
        }
        let mut room = 0;
        if lane == 0 {
            room = reserve::<AGAIN>(p, b, job.floor, job.is_fixed(), candidates);
        }
        room = device::shuffle(room, 0);
        // One lane a word.
        let pick = |words: [u32; 4]| {
            let mut word = words[0];
            for k in 1..4 {
                word = if lane == k { words[k as usize] } else { word };
            }
            word
        };
        let count = pick([candidates - band, band, if AGAIN { 0 } else { below }, 0]);
        if count != 0 && lane < 3 {
            device::atomic_add(b.word(p.states + job.index * state::WORDS + state::COUNT_SURE + lane), count);
        }
        let last = if AGAIN { u32::from(job.sure < top) } else { below };
        let info = pick([room, candidates, band, last]);
        if lane < 4 {
            *b.word(p.info + 4 * tile + lane) = info;
        }
        if lane < WARPS {
            let before = up_to - own;
            let at = if room == NOWHERE { NOWHERE } else { room + (before & 0xffff) };
            device::shared_store_row::<OUTPUTS>(lane, [at, room.wrapping_add(before >> 16), bins, shift]);
        }
    }
}

const _: () = assert!(state::COUNT_BAND == state::COUNT_SURE + 1 && state::COUNT_BELOW == state::COUNT_SURE + 2);

/// Room for a tile's candidates, or nowhere.
///
/// # Safety
/// The words that count the room are there, and touched by atomic operations alone.
#[inline(always)]
unsafe fn reserve<const AGAIN: bool>(p: &SelectParams, b: &Buffers, floor: u32, fixed: bool, candidates: u32) -> u32 {
    if candidates == 0 {
        return 0;
    }
    let (word, begin, capacity) =
        if AGAIN { (room::AGAIN, p.capacity, p.capacity_again) } else { (room::FIRST, 0, p.capacity) };
    // SAFETY: the caller ensures that the words are there, and that only atomics touch them.
    unsafe {
        // Where all elements are candidates, storing them saves nothing, and takes the room of others.
        if !AGAIN && floor == 0 {
            if !fixed {
                device::atomic_add(b.word(p.room + room::NONE_LEFT), 1);
            }
            return NOWHERE;
        }
        // The count cannot wrap: a tile adds its elements at most, and a piece, once.
        let pieces = candidates.div_ceil(PIECE) * PIECE;
        let first = device::atomic_add(b.word(p.room + word), pieces);
        if first + pieces <= capacity {
            return begin + first;
        }
        if !fixed {
            device::atomic_add(b.word(p.room + room::NONE_LEFT), 1);
        }
        NOWHERE
    }
}
