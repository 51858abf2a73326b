//! What is kept of each tile, and of its sketch.

use super::histogram::{AHEAD, Visit};
use super::segments::{Segment, each_tile, first_of_warp};
use super::{Buffers, WARPS, sum, sums};
use crate::device::{self, WARP};
use crate::params::{NOWHERE, SKETCH_WORDS, SelectParams, room, select_flags, tiles_per_warp};

kernel! {
    /// Narrows down which key is the last kept one, and counts what is kept of each tile.
    ///
    /// # What
    /// The state is narrowed down as in [`topk_histogram`](super::histogram), for the last time. Then, for each tile,
    /// how many elements have a key from the cut on, and how many have the key below it. With `OF_SKETCH`, for segments
    /// that are to be filtered again: how many entries of the tile's sketch have the key of the higher rank, and how
    /// many that of the lower. And the sums of these, of 64 tiles and of 64 times 64.
    ///
    /// # Arguments
    /// * `p`; `input`, or with feedback `residual`: `p.bound` elements. Read.
    /// * `workspace`: table, states, room, info, band, values and the histograms counted before are read; the next
    ///   states and counts are written, the counts' sums added to, and histograms that will be needed made zero.
    /// * `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// A warp takes up to 8 tiles one after another (`tiles_per_warp`), 32 elements at a time.
    ///
    /// # Shared memory
    /// 33 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, a warp for each `tiles_per_warp` of `p.tiles` tiles, from `p.first_tile` on.
    ///
    /// # Traffic
    /// A value an element of the band; with `OF_SKETCH`, the sketch. A table entry, a state and up to 2048 words of a
    /// histogram a block; an atomic operation or two a warp, of four lanes.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Edge cases
    /// Where all candidates are kept nothing is looked through. Where no segment is left to the sketch, nothing of it
    /// is counted.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_count(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        // SAFETY: the filter ran, by the kernel's contract; all threads are here.
        unsafe { keep_block(&p, &b, device::block()) };
    }
}

/// Counts what is kept of the tiles of a block, which is this one's to do.
///
/// # Safety
/// All threads of the block arrive together; as the kernel asks. The block has a tile.
#[inline(always)]
pub(super) unsafe fn keep_block(p: &SelectParams, b: &Buffers, block: u32) {
    let lane = device::thread() % WARP;
    // SAFETY: the caller brings all threads of the block here, and the kernel's contract covers the buffers.
    unsafe {
        let of_sketch = p.has(select_flags::OF_SKETCH);
        let each = tiles_per_warp(p.tiles);
        let segment = Segment::of_block::<true>(p, b, p.first_tile + block * WARPS * each);
        if first_of_warp(block, each) >= p.tiles {
            return;
        }
        let segment = segment.of_warp(p, b, p.first_tile + first_of_warp(block, each));
        // States are narrowed down in any case.
        let is_idle = of_sketch && *b.word(p.room + room::SKETCHED) == 0;
        let last = p.first_tile + (first_of_warp(block, each) + each).min(p.tiles) - 1;
        let mut summed = 0;
        each_tile::<true>(p, b, block, each, segment, |segment, tile, info| {
            if is_idle {
                return;
            }
            let sure = info.candidates - info.band;
            let [kept, ties] = if of_sketch {
                if segment.again == 0 { [0; 2] } else { count_tied(p, b, segment, tile) }
            } else if segment.cut == segment.floor {
                [info.candidates, info.below]
            } else if info.first == NOWHERE {
                count(p, b, segment, Visit::gradient(p, segment, tile))
            } else if segment.cut <= segment.sure {
                let [kept, ties] = count(p, b, segment, Visit::candidates(p, info, true));
                [sure + kept, ties]
            } else {
                count(p, b, segment, Visit::candidates(p, info, false))
            };
            let count = if lane & 1 == 0 { kept } else { ties };
            if lane < 2 {
                *b.word(p.counts + 2 * tile + lane) = count;
            }
            summed += count;
            if tile == last || sums::is_last(tile) {
                sums::add(p, b, tile, summed);
                summed = 0;
            }
        });
    }
}

/// Entries of a tile's sketch that have the keys of either rank, which are raised by 1.
///
/// # Safety
/// All lanes arrive together; the tile was sketched.
#[inline(always)]
unsafe fn count_tied(p: &SelectParams, b: &Buffers, segment: &Segment, tile: u32) -> [u32; 2] {
    let (mut high, mut low) = (0, 0);
    let mut at = device::thread() % WARP;
    while at < SKETCH_WORDS {
        // SAFETY: the tile's sketch is there.
        let key = unsafe { *b.word(p.sketch(tile) + at) };
        high += u32::from(key == segment.sure);
        low += u32::from(key == segment.floor + 1);
        at += WARP;
    }
    // SAFETY: all lanes are here, as they take as many words each. A tile has less than 2^16.
    let both = unsafe { sum(high | low << 16) };
    [both & 0xffff, both >> 16]
}

/// Elements from the cut on, and of the key below.
///
/// # Safety
/// All lanes arrive together; as the kernel asks.
#[inline(always)]
unsafe fn count(p: &SelectParams, b: &Buffers, segment: &Segment, visit: Visit) -> [u32; 2] {
    let lane = device::thread() % WARP;
    let order = p.order();
    let mut counts = 0;
    let mut at = lane;
    while at < visit.count {
        // SAFETY: the elements are there.
        let raws = unsafe { visit.ahead(p, b, at) };
        for k in 0..AHEAD {
            let key = order.key(raws[k]);
            let here = at + k as u32 * WARP < visit.count;
            counts += u32::from(here && key >= segment.cut);
            counts += u32::from(here && key == segment.cut.wrapping_sub(1)) << 16;
        }
        at += AHEAD as u32 * WARP;
    }
    // SAFETY: all lanes are here. A tile has less than 2^16.
    let both = unsafe { sum(counts) };
    [both & 0xffff, both >> 16]
}
