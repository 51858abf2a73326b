//! Over what the filter left: counting the keys of a range.

use super::segments::{Info, Segment, each_tile, first_of_warp};
use super::{Buffers, Raw, WARPS, sum};
use crate::arith::topk::digit_shift;
use crate::device::{self, WARP};
use crate::params::{
    HISTOGRAM_BINS, HISTOGRAM_WORDS, NOWHERE, SKETCH_WORDS, SUM_WORDS, SelectParams, THREADS, source, tiles_per_warp,
};

/// Times 32 elements that are read before the first of them is looked at: a tile's candidates are so few that its time
/// is that of waiting for them, and so many are most often all.
pub(super) const AHEAD: usize = 4;

/// Elements of a tile that are visited one after another, a lane each.
#[derive(Clone, Copy)]
pub(super) struct Visit {
    /// Where the candidates' array is, if it is not the gradient that is visited. No `enum`: what the other variant
    /// does not have would be a register that nothing has written.
    array: u32,
    pub(super) in_gradient: bool,
    /// The first one, in the array or in what is bound of the gradient.
    pub(super) first: u32,
    pub(super) count: u32,
    /// The place, in the tile, of the first one, where the gradient is visited.
    pub(super) place: u32,
}

impl Visit {
    /// All candidates, or the band alone.
    #[inline(always)]
    pub(super) fn candidates(p: &SelectParams, info: Info, band: bool) -> Self {
        let (array, count) = if band { (p.band, info.band) } else { (p.values, info.candidates) };
        Self { array, in_gradient: false, first: info.first, count, place: 0 }
    }

    /// All elements.
    #[inline(always)]
    pub(super) fn gradient(p: &SelectParams, segment: &Segment, tile: u32) -> Self {
        let extent = segment.extent(tile);
        let (first, count) = (extent.start - p.first, extent.end - extent.start);
        Self { array: 0, in_gradient: true, first, count, place: extent.start - extent.base }
    }

    /// What elements `at`, `at + 32` and so on are stored as; zeros where they are not below the count.
    ///
    /// # Safety
    /// What is visited is there.
    #[inline(always)]
    pub(super) unsafe fn ahead(&self, p: &SelectParams, b: &Buffers, at: u32) -> [Raw; AHEAD] {
        let mut raws = [Raw(0); AHEAD];
        let there = |k: usize| at + k as u32 * WARP < self.count;
        // What depends on the type stands around the loads, so that they are in flight together.
        if self.in_gradient {
            for k in 0..AHEAD {
                if there(k) {
                    // SAFETY: the caller ensures that the element is there.
                    raws[k] = unsafe { self.raw(p, b, at + k as u32 * WARP) };
                }
            }
        } else if p.is_half() {
            // It may lie after the last one, where it is not read.
            // SAFETY: the array is there.
            let first = unsafe { b.word(self.array) }.cast::<u16>().wrapping_add((self.first + at) as usize);
            for k in 0..AHEAD {
                if there(k) {
                    // SAFETY: the element is there.
                    raws[k] = Raw(u32::from(unsafe { *first.wrapping_add(k * WARP as usize) }));
                }
            }
        } else {
            // SAFETY: as above.
            let first = unsafe { b.word(self.array) }.wrapping_add((self.first + at) as usize);
            for k in 0..AHEAD {
                if there(k) {
                    // SAFETY: as above.
                    raws[k] = Raw(unsafe { *first.wrapping_add(k * WARP as usize) });
                }
            }
        }
        raws
    }

    /// What an element is stored as.
    ///
    /// # Safety
    /// `at` is below the count, and what is visited is there.
    #[inline(always)]
    pub(super) unsafe fn raw(&self, p: &SelectParams, b: &Buffers, at: u32) -> Raw {
        // SAFETY: the caller ensures that the element is there.
        unsafe {
            if self.in_gradient {
                b.settled(p, (self.first + at) as usize)
            } else {
                b.stored(p, self.array, self.first + at)
            }
        }
    }
}

kernel! {
    /// Narrows down which key is the last kept one, and counts the keys among which it still is.
    ///
    /// # What
    /// The state is narrowed down by what was counted before ([`narrow`](super::narrow)). Where it then tells a range
    /// of keys, each element that is looked through, of a key in the range, is counted in the bin of
    /// `(key - BASE) >> digit_shift(SPAN, LEFT)`. What is looked through is the band, or all candidates, and the
    /// gradient for tiles whose candidates found no room; or the sketch, of which two ranges are counted, from the
    /// second round on the higher one in the upper half of the bins.
    ///
    /// # Arguments
    /// * `p`; `input`, or with feedback `residual`: `p.bound` elements. Read.
    /// * `workspace`: table, states, room, info, band, values and the histograms counted before are read; the next
    ///   states are written, histograms added to, and those that will be needed made zero.
    /// * `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// A warp takes up to 8 tiles one after another (`tiles_per_warp`), 32 elements at a time. Bins are counted in
    /// shared memory, if the block's tiles are one segment's, and then added.
    ///
    /// # Shared memory
    /// 33 words, and 2048 of bins.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, a warp for each `tiles_per_warp` of `p.tiles` tiles, from `p.first_tile` on.
    ///
    /// # Traffic
    /// A value an element of the band is read; a table entry, a state and up to 2048 words of a histogram a block. An
    /// atomic operation for each bin of the block that is not empty, and where sums are kept one for each 32 bins.
    /// Uncoalesced: where a block has tiles of several segments, as many for each element of the range, fewer where
    /// neighbours have one bin.
    ///
    /// # Determinism
    /// Backend to backend: sums of integers.
    ///
    /// # Edge cases
    /// Nothing is done for a segment whose last kept key is known.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_histogram(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        // SAFETY: the filter ran, by the kernel's contract; all threads are here.
        unsafe { count_block(&p, &b, device::block()) };
    }
}

/// Counts the tiles of a block, which is this one's to do.
///
/// # Safety
/// All threads of the block arrive together; as the kernel asks. The block has a tile.
#[inline(always)]
pub(super) unsafe fn count_block(p: &SelectParams, b: &Buffers, block: u32) {
    let each = tiles_per_warp(p.tiles);
    let of_block = WARPS * each;
    let first = block * of_block;
    let last = p.first_tile + (first + of_block).min(p.tiles) - 1;
    // SAFETY: the caller's. The block's first tile, its last one and its segment are the same for all threads.
    unsafe {
        let segment = Segment::of_block::<true>(p, b, p.first_tile + first);
        let is_one = segment.has(last);
        let bins = if is_counted(p, &segment) { bins_of(p, &segment) } else { 0 };
        if is_one && bins == 0 {
            return;
        }
        if is_one {
            clear_bins(bins);
            device::barrier();
            count_tiles(p, b, block, segment, |_, bin, count| device::bin_add(bin, count));
            device::barrier();
            add_bins(p, b, p.histograms + segment.index * HISTOGRAM_WORDS, bins);
        } else if first_of_warp(block, each) < p.tiles {
            let segment = segment.of_warp(p, b, p.first_tile + first_of_warp(block, each));
            count_tiles(p, b, block, segment, |histogram, bin, count| add_directly(p, b, histogram, bin, count));
        }
    }
}

/// Whether a segment's keys are counted in this pass. The sketch counts its own in round 0, which makes it.
#[inline(always)]
fn is_counted(p: &SelectParams, segment: &Segment) -> bool {
    segment.source != source::DONE && !(p.round == 0 && segment.source == source::SKETCH)
}

/// How far keys of a segment are shifted.
#[inline(always)]
pub(super) fn shift_of(segment: &Segment) -> u32 {
    digit_shift(segment.span, segment.left)
}

/// How many bins that leaves; all, where the sketch has two ranges.
#[inline(always)]
pub(super) fn bins_of(p: &SelectParams, segment: &Segment) -> u32 {
    if segment.source == source::SKETCH && segment.left != p.rounds {
        HISTOGRAM_BINS
    } else {
        ((segment.span - 1) >> shift_of(segment)) + 1
    }
}

/// Makes the block's bins zero.
///
/// # Safety
/// No thread uses them before the next barrier.
#[inline(always)]
pub(super) unsafe fn clear_bins(bins: u32) {
    let mut bin = device::thread();
    while bin < bins {
        // SAFETY: the bin is this thread's until the next barrier.
        unsafe { device::bin_store(bin, 0) };
        bin += THREADS;
    }
}

/// Adds the block's bins to a histogram, and to its sums where they are kept.
///
/// # Safety
/// All threads of the block arrive together, a barrier after the last count. The histogram is there, and touched by
/// atomic operations alone.
#[inline(always)]
pub(super) unsafe fn add_bins(p: &SelectParams, b: &Buffers, histogram: u32, bins: u32) {
    let lane = device::thread() % WARP;
    let mut first = device::thread() / WARP * WARP;
    while first < bins {
        let mut count = 0;
        // SAFETY: the caller's; all lanes are here, as the first bin is the warp's.
        unsafe {
            if first + lane < bins {
                count = device::bin_load(first + lane);
            }
            if count > 0 {
                device::atomic_add(b.word(histogram + first + lane), count);
            }
            if p.keeps_sums() {
                let all = sum(count);
                if lane == 0 && all > 0 {
                    device::atomic_add(b.word(histogram + HISTOGRAM_BINS + first / WARP * SUM_WORDS), all);
                }
            }
        }
        first += THREADS;
    }
}

/// Adds to a bin of a histogram, and to its sum where it is kept, without a block's bins.
///
/// # Safety
/// The histogram is there, and touched by atomic operations alone.
#[inline(always)]
pub(super) unsafe fn add_directly(p: &SelectParams, b: &Buffers, histogram: u32, bin: u32, count: u32) {
    // SAFETY: the caller ensures that the histogram is there, and that only atomics touch it.
    unsafe {
        device::atomic_add(b.word(histogram + bin), count);
        if p.keeps_sums() {
            device::atomic_add(b.word(histogram + HISTOGRAM_BINS + bin / WARP * SUM_WORDS), count);
        }
    }
}

/// Counts the tiles of a block that are this warp's, with `add`, which is given the histogram's first word, a bin and
/// how many more it has.
///
/// # Safety
/// All lanes arrive together; as the kernel asks.
#[inline(always)]
unsafe fn count_tiles(p: &SelectParams, b: &Buffers, block: u32, segment: Segment, add: impl Fn(u32, u32, u32)) {
    // SAFETY: the caller brings all lanes here, and the kernel's contract covers the buffers.
    unsafe {
        each_tile::<true>(p, b, block, tiles_per_warp(p.tiles), segment, |segment, tile, info| {
            if !is_counted(p, segment) {
                return;
            }
            // Four cases of one word would be a table of jumps, which PTX has not everywhere.
            if device::opaque(segment.source) == source::SKETCH {
                return count_sketch(p, b, segment, tile, &add);
            }
            let visit = match segment.source {
                source::BAND if info.first != NOWHERE => Visit::candidates(p, info, true),
                source::CANDIDATES if info.first != NOWHERE => Visit::candidates(p, info, false),
                _ => Visit::gradient(p, segment, tile),
            };
            count_bins(p, b, segment, visit, &add);
        });
    }
}

/// # Safety
/// All lanes arrive together; the tile was sketched.
#[inline(always)]
unsafe fn count_sketch(p: &SelectParams, b: &Buffers, segment: &Segment, tile: u32, add: impl Fn(u32, u32, u32)) {
    let shift = shift_of(segment);
    let histogram = p.histograms + segment.index * HISTOGRAM_WORDS;
    // Both ranges are the same in the first round.
    let high_span = if segment.left == p.rounds { 0 } else { segment.high_span };
    let mut high_shift = 0;
    if high_span > 0 {
        high_shift = digit_shift(high_span, segment.left);
    }
    let mut at = device::thread() % WARP;
    while at < SKETCH_WORDS {
        // SAFETY: the tile's sketch is there; all lanes are here, as they take as many words each.
        unsafe {
            let key = *b.word(p.sketch(tile) + at);
            let offset = key.wrapping_sub(segment.base);
            add_bin(histogram, offset < segment.span, offset >> shift, &add);
            let offset = key.wrapping_sub(segment.high_base);
            add_bin(histogram, offset < high_span, HISTOGRAM_BINS / 2 + (offset >> high_shift), &add);
        }
        at += WARP;
    }
}

/// # Safety
/// All lanes arrive together; as the kernel asks.
#[inline(always)]
unsafe fn count_bins(p: &SelectParams, b: &Buffers, segment: &Segment, visit: Visit, add: impl Fn(u32, u32, u32)) {
    let lane = device::thread() % WARP;
    let order = p.order();
    let shift = shift_of(segment);
    let histogram = p.histograms + segment.index * HISTOGRAM_WORDS;
    let mut first = 0;
    while first < visit.count {
        // SAFETY: the elements are there.
        let raws = unsafe { visit.ahead(p, b, first + lane) };
        for k in 0..AHEAD {
            let at = first + k as u32 * WARP;
            // The same in all lanes.
            if at < visit.count {
                let offset = order.key(raws[k]).wrapping_sub(segment.base);
                let is_counted = at + lane < visit.count && offset < segment.span;
                // SAFETY: all lanes are here, as the count is the warp's.
                unsafe { add_bin(histogram, is_counted, offset >> shift, &add) };
            }
        }
        first += AHEAD as u32 * WARP;
    }
}

/// Counts a bin of each lane that has one.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
pub(super) unsafe fn add_bin(histogram: u32, counted: bool, bin: u32, add: impl Fn(u32, u32, u32)) {
    let lane = device::thread() % WARP;
    // SAFETY: the caller's: whether any is counted is the warp's.
    let all = unsafe { device::ballot(counted) };
    if all != 0 {
        // Ties would be 32 operations on one word: those of the first lane's bin are one.
        let leader = all.trailing_zeros();
        // SAFETY: as above.
        let same = unsafe {
            let first = device::shuffle(bin, leader);
            device::ballot(counted && bin == first)
        };
        if lane == leader {
            add(histogram, bin, same.count_ones());
        } else if counted && same & (1 << lane) == 0 {
            add(histogram, bin, 1);
        }
    }
}
