//! Over what the filter left: counting the keys of a range, and what is kept of each tile.

use super::{Buffers, Info, Segment, WARPS, each_tile, each_tile_from};
use crate::arith::topk::digit_shift;
use crate::device::{self, BINS, WARP};
use crate::params::{NOWHERE, SelectParams, THREADS, TILES_PER_WARP, source};

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
    /// candidates, or the gradient; and the gradient for tiles whose candidates found no room.
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
            let bins = if segment.source == source::DONE { 0 } else { bins_of(&segment).1 };
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
        let counted = offset < segment.span;
        let bin = offset >> shift;
        // SAFETY: all lanes are here: whether any is counted is the warp's.
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
        at += WARP;
    }
}

kernel! {
    /// Counts what is kept of each tile.
    ///
    /// # What
    /// For each tile, how many elements have a key from the cut on, and how many have the key below it.
    ///
    /// # Arguments
    /// * `p`; `input`, or with feedback `residual`: `p.bound` elements. Read.
    /// * `workspace`: table, states, info, band and values are read, counts written.
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
    /// A value an element of the band.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Edge cases
    /// Where all candidates are kept nothing is looked through.
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
            each_tile(&p, &b, |segment, tile, info| {
                let sure = info.candidates - info.band;
                let [kept, ties] = if segment.cut == segment.floor {
                    [info.candidates, info.below]
                } else if info.first == NOWHERE {
                    count(&p, &b, segment, Visit::gradient(&p, segment, tile))
                } else if segment.cut <= segment.sure {
                    let [kept, ties] = count(&p, &b, segment, Visit::candidates(&p, info, true));
                    [sure + kept, ties]
                } else {
                    count(&p, &b, segment, Visit::candidates(&p, info, false))
                };
                if lane < 2 {
                    *b.word(p.counts + 2 * tile + lane) = if lane == 0 { kept } else { ties };
                }
            });
        }
    }
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
