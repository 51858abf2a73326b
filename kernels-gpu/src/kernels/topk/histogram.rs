//! Over what the filter left: counting the keys of a range, and what is kept of each tile.

use super::{Buffers, Info, Segment, WARPS, each_tile, each_tile_from, first_of_warp, sum, sums};
use crate::arith::topk::digit_shift;
use crate::device::{self, BINS, WARP};
use crate::params::{NOWHERE, SKETCH_WORDS, SelectParams, THREADS, TILES_PER_WARP, source};

/// Elements of a tile that are visited one after another, a lane each.
#[derive(Clone, Copy)]
pub(super) struct Visit {
    /// Where the candidates' array is, if it is not the gradient that is visited. No `enum`: what the other variant does not
    /// have would be a register that nothing has written.
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

    /// What an element is stored as.
    ///
    /// # Safety
    /// `at` is below the count, and what is visited is there.
    #[inline(always)]
    pub(super) unsafe fn raw(&self, p: &SelectParams, b: &Buffers, at: u32) -> super::Raw {
        // SAFETY: the caller's.
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
    /// Counts the keys among which the last kept one is.
    ///
    /// # What
    /// Where a segment's state tells a range of keys, each element that is looked through, of a key in the range, is counted in
    /// the bin of `(key - BASE) >> digit_shift(SPAN, LEFT)`. What is looked through is the band, or all
    /// candidates, and the gradient for tiles whose candidates found no room; or the sketch, of which two ranges are counted, from
    /// the second round on the higher one in the upper half of the bins.
    ///
    /// # Arguments
    /// * `p`; `input`, or with feedback `residual`: `p.bound` elements. Read.
    /// * `workspace`: table, states, info, band and values are read; the histograms are added to.
    /// * `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// A warp takes 8 tiles one after another, 32 elements at a time. Bins that shared memory holds are counted there by the
    /// block, if its tiles are one segment's, and then added.
    ///
    /// # Shared memory
    /// 2048 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, a warp for each 8 of `p.tiles` tiles, from `p.first_tile` on.
    ///
    /// # Traffic
    /// A value an element of the band is read. Uncoalesced: where there are more bins, an atomic operation for each element of
    /// the range, fewer where neighbours have one bin.
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
        // SAFETY: the filter ran, by the kernel's contract. The block's first tile, its last one and its segment are the same
        // for all threads.
        unsafe {
            let of_block = WARPS * TILES_PER_WARP;
            let first = device::block() * of_block;
            let last = p.first_tile + (first + of_block).min(p.tiles) - 1;
            let segment = Segment::load(&p, &b, p.first_tile + first);
            let mut bins = if segment.source == source::DONE { 0 } else { bins_of(&segment).1 };
            if segment.source == source::SKETCH {
                bins = p.bins;
            }
            let is_one = segment.extent(last).base < segment.start + segment.elements;
            if is_one && bins == 0 {
                return;
            }
            if is_one && bins <= BINS {
                let mut bin = device::thread();
                while bin < bins {
                    device::bin_store(bin, 0);
                    bin += THREADS;
                }
                device::barrier();
                count_tiles(&p, &b, segment, |_, bin, count| device::bin_add(bin, count));
                device::barrier();
                bin = device::thread();
                while bin < bins {
                    let count = device::bin_load(bin);
                    if count > 0 {
                        device::atomic_add(b.word(p.histograms + segment.index * p.bins + bin), count);
                    }
                    bin += THREADS;
                }
            } else {
                // The warp's own first segment; a warp behind the last tile has none.
                let own = (first + device::thread() / WARP * TILES_PER_WARP).min(p.tiles - 1);
                let segment = Segment::load(&p, &b, p.first_tile + own);
                count_tiles(&p, &b, segment, |histogram, bin, count| {
                    device::atomic_add(b.word(histogram + bin), count);
                });
            }
        }
    }
}

/// How far keys of a segment are shifted, and how many bins that leaves.
#[inline(always)]
fn bins_of(segment: &Segment) -> (u32, u32) {
    let shift = digit_shift(segment.span, segment.left);
    (shift, ((segment.span - 1) >> shift) + 1)
}

/// Counts the tiles of this warp with `add`, which is given the histogram's first word, a bin and how many more it has.
///
/// # Safety
/// All lanes arrive together; as the kernel asks.
#[inline(always)]
unsafe fn count_tiles(p: &SelectParams, b: &Buffers, segment: Segment, add: impl Fn(u32, u32, u32)) {
    // SAFETY: the caller's.
    unsafe {
        each_tile_from(p, b, segment, |segment, tile, info| {
            // Four cases of one word would be a table of jumps, which PTX has not everywhere.
            if device::opaque(segment.source) == source::SKETCH {
                return count_sketch(p, b, segment, tile, &add);
            }
            let visit = match segment.source {
                source::DONE => return,
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
    let (shift, _) = bins_of(segment);
    let histogram = p.histograms + segment.index * p.bins;
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
            add_bin(histogram, offset < high_span, p.bins / 2 + (offset >> high_shift), &add);
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
    let (shift, _) = bins_of(segment);
    let histogram = p.histograms + segment.index * p.bins;
    let mut at = 0;
    while at < visit.count {
        let here = at + lane < visit.count;
        let mut offset = u32::MAX;
        if here {
            // SAFETY: the element is there.
            offset = order.key(unsafe { visit.raw(p, b, at + lane) }).wrapping_sub(segment.base);
        }
        // SAFETY: all lanes are here, as the count is the warp's.
        unsafe { add_bin(histogram, offset < segment.span, offset >> shift, &add) };
        at += WARP;
    }
}

/// Counts a bin of each lane that has one.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn add_bin(histogram: u32, counted: bool, bin: u32, add: impl Fn(u32, u32, u32)) {
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

kernel! {
    /// Counts what is kept of each tile.
    ///
    /// # What
    /// For each tile, how many elements have a key from the cut on, and how many have the key below it. In round 1, for
    /// segments that are to be filtered again: how many entries of the tile's sketch have the key of the higher rank, and how
    /// many that of the lower. And the sums of these, of 64 tiles and of 64 times 64.
    ///
    /// # Arguments
    /// * `p`; `input`, or with feedback `residual`: `p.bound` elements. Read.
    /// * `workspace`: table, states, info, band and values are read, counts written, their sums added to.
    /// * `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// A warp takes 8 tiles one after another, 32 elements at a time.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, a warp for each 8 of `p.tiles` tiles, from `p.first_tile` on.
    ///
    /// # Traffic
    /// A value an element of the band; in round 1, the sketch. An atomic operation or two a warp, of four lanes.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Edge cases
    /// Where all candidates are kept nothing is looked through. Where no segment is left to the sketch, nothing is done in
    /// round 1.
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
        let lane = device::thread() % WARP;
        // SAFETY: the filter ran, by the kernel's contract.
        unsafe {
            if p.round > 0 && *b.word(p.room + 3) == 0 {
                return;
            }
            let last = p.first_tile + (first_of_warp() + TILES_PER_WARP).min(p.tiles) - 1;
            let mut summed = 0;
            each_tile(&p, &b, |segment, tile, info| {
                let sure = info.candidates - info.band;
                let [kept, ties] = if p.round > 0 {
                    if segment.again == 0 { [0; 2] } else { count_tied(&p, &b, segment, tile) }
                } else if segment.cut == segment.floor {
                    [info.candidates, info.below]
                } else if info.first == NOWHERE {
                    count(&p, &b, segment, Visit::gradient(&p, segment, tile))
                } else if segment.cut <= segment.sure {
                    let [kept, ties] = count(&p, &b, segment, Visit::candidates(&p, info, true));
                    [sure + kept, ties]
                } else {
                    count(&p, &b, segment, Visit::candidates(&p, info, false))
                };
                let count = if lane & 1 == 0 { kept } else { ties };
                if lane < 2 {
                    *b.word(p.counts + 2 * tile + lane) = count;
                }
                summed += count;
                if tile == last || sums::is_last(tile) {
                    sums::add(&p, &b, tile, summed);
                    summed = 0;
                }
            });
        }
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
    let (mut kept, mut ties) = (0, 0);
    let mut at = 0;
    while at < visit.count {
        let here = at + lane < visit.count;
        let mut key = 0;
        if here {
            // SAFETY: the element is there.
            key = order.key(unsafe { visit.raw(p, b, at + lane) });
        }
        // SAFETY: all lanes are here: the count is the warp's.
        unsafe {
            kept += device::ballot(here && key >= segment.cut).count_ones();
            ties += device::ballot(here && key == segment.cut.wrapping_sub(1)).count_ones();
        }
        at += WARP;
    }
    [kept, ties]
}
