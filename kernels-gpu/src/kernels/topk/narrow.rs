//! Narrowing down which key is the last kept one.

use super::{Buffers, WARPS, prefix};
use crate::arith::topk::digit_shift;
use crate::device::{self, WARP};
use crate::params::{PIECE, SelectParams, THREADS, TILE, segment, source, state};

/// Where the finding thread leaves what it found, behind two rows of the warps' sums.
const FOUND: u32 = 2 * WARPS;

kernel! {
    /// Makes of a segment's counts a smaller range of keys, until the last kept key is known.
    ///
    /// # What
    /// In round 0, from the counts of the filter: among which elements the last kept key is to be looked for. If it is the band,
    /// and in later rounds, from the histogram: the bin in which it is becomes the range. When the range is one key, that is it. Where the
    /// gradient was looked through, for want of candidates, and what is above or in the bin finds room, the state asks for
    /// the tiles to be filtered again with that floor.
    ///
    /// # Arguments
    /// * `p`; `workspace`: the table and the room are read, the states changed; the histograms are read and zeroed.
    /// * `input`, `residual`, `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block a segment; 256 bins at a time, from the highest on.
    ///
    /// # Shared memory
    /// 19 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `p.tiles` of them, the segments from `p.first_tile` on.
    ///
    /// # Traffic
    /// Every bin once; the words of a segment's state one by one, which is a sector each.
    /// Uncoalesced: one thread reads and writes the state.
    ///
    /// # Determinism
    /// Backend to backend; whether a segment is filtered again may depend on the room that is left, and changes nothing
    /// that is selected.
    ///
    /// # Edge cases
    /// A segment whose floor is fixed is done in round 0.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_narrow(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        let index = p.first_tile + device::block();
        // SAFETY: segment and state are there, and this block's, by the kernel's contract; all threads are here.
        unsafe {
            let table = b.word(index * segment::WORDS);
            let own = b.word(p.states() + index * state::WORDS);
            let histogram = b.word(p.histograms + index * p.bins);
            let of = |word: u32| *own.add(word as usize);
            if p.round == 0 {
                // Before the state changes: what the filter counted the band in.
                let floor = !of(state::FLOOR);
                let band = of(state::SURE).max(floor) - floor;
                device::barrier();
                if device::thread() == 0 {
                    begin(&p, &b, table, own);
                }
                device::barrier();
                let in_band = of(state::SOURCE) != source::DONE && of(state::BASE) == floor && of(state::SPAN) == band;
                if !in_band {
                    // What was counted is of no use, and is not to be counted on.
                    if band > 0 && *table.add(segment::FIXED as usize) == 0 {
                        let bins = ((band - 1) >> digit_shift(band, p.rounds)) + 1;
                        let mut bin = device::thread();
                        while bin < bins {
                            *histogram.add(bin as usize) = 0;
                            bin += THREADS;
                        }
                    }
                    return;
                }
            }
            let from = of(state::SOURCE);
            if from == source::DONE {
                return;
            }
            let (base, span, rank, left) = (of(state::BASE), of(state::SPAN), of(state::RANK), of(state::LEFT));
            let shift = digit_shift(span, left);
            let bins = ((span - 1) >> shift) + 1;
            find(histogram, bins, rank);
            if device::thread() == 0 {
                let [bin, above, count] = [0, 1, 2].map(|k| device::shared_load(FOUND + k));
                let first = bin << shift;
                let range = Range {
                    base: base + first,
                    span: (span - first).min(1 << shift),
                    rank: rank - above,
                    count,
                };
                *own.add(state::LEFT as usize) = left - 1;
                go_on(&p, table, own, from, range);
            }
        }
    }
}

/// The keys among which the last kept one is.
struct Range {
    base: u32,
    span: u32,
    /// Which one it is of the elements with such keys, from the largest.
    rank: u32,
    /// How many there are.
    count: u32,
}

/// Round 0.
///
/// # Safety
/// Segment and state are there, and no other thread's; the room is there.
#[inline(always)]
unsafe fn begin(p: &SelectParams, b: &Buffers, table: *mut u32, own: *mut u32) {
    // SAFETY: the caller's.
    unsafe {
        let table = |word: u32| *table.add(word as usize);
        let old = |word: u32| *own.add(word as usize);
        let set = |word: u32, value: u32| *own.add(word as usize) = value;
        if table(segment::FIXED) != 0 {
            let floor = table(segment::FLOOR);
            set(state::FLOOR, !floor);
            set(state::SURE, floor);
            set(state::CUT, floor);
            return;
        }
        let floor = !old(state::FLOOR);
        let top = old(state::SURE).max(floor);
        let keep = table(segment::KEEP);
        let (sure, band, below) = (old(state::COUNT_SURE), old(state::COUNT_BAND), old(state::COUNT_BELOW));
        // Where most candidates found no room, all of the segment are sought in the gradient and stored anew: their tiles
        // would else be read in every round. Fewer are read where they are needed.
        let mostly_stored = *b.word(p.room) / 2 <= p.capacity;
        let stored = |from: u32| if mostly_stored { from } else { source::GRADIENT };
        set(state::LEFT, p.rounds);
        if keep < sure {
            set(state::SOURCE, stored(source::CANDIDATES));
            set(state::BASE, top);
            // Keys end at the one of NaN, at most this one.
            set(state::SPAN, crate::arith::topk::NO_KEY - top);
            set(state::RANK, keep);
        } else if keep == sure {
            set(state::CUT, top);
        } else if keep < sure + band {
            set(state::SOURCE, stored(source::BAND));
            set(state::BASE, floor);
            set(state::SPAN, top - floor);
            set(state::RANK, keep - sure);
        } else if keep - sure - band <= below {
            set(state::CUT, floor);
            set(state::TIES, keep - sure - band);
        } else {
            // The key below the floor is not among them: it was counted.
            set(state::SOURCE, source::GRADIENT);
            set(state::BASE, 0);
            set(state::SPAN, floor - 1);
            set(state::RANK, keep - sure - band - below);
        }
    }
}

/// Later rounds.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
unsafe fn go_on(p: &SelectParams, table: *mut u32, own: *mut u32, from: u32, range: Range) {
    // SAFETY: the caller's.
    unsafe {
        let table = |word: u32| *table.add(word as usize);
        let set = |word: u32, value: u32| *own.add(word as usize) = value;
        set(state::BASE, range.base);
        set(state::SPAN, range.span);
        set(state::RANK, range.rank);
        if range.span == 1 {
            set(state::SOURCE, source::DONE);
            set(state::CUT, range.base + 1);
            set(state::TIES, range.rank);
            if from == source::GRADIENT {
                set(state::AGAIN, p.round + 1);
                set(state::FLOOR, !(range.base + 1));
                set(state::SURE, range.base + 1);
            }
        } else if from == source::GRADIENT {
            let tiles = table(segment::ELEMENTS) / TILE + 2;
            let wanted = table(segment::KEEP) - range.rank + range.count + tiles * (PIECE - 1);
            // Several segments may ask at a time; one that is then too much is read once more.
            if wanted <= p.capacity_again {
                set(state::SOURCE, source::BAND);
                set(state::AGAIN, p.round + 1);
                set(state::FLOOR, !range.base);
                set(state::SURE, range.base + range.span);
            }
        }
    }
}

/// Finds the bin in which the element of a rank is, from the highest bin on, and leaves in shared memory the bin, what is
/// counted above it, and in it. Leaves zeros in the histogram.
///
/// # Safety
/// All threads of the block arrive together. The histogram is there and no other block's, and counts at least `rank`.
#[inline(always)]
unsafe fn find(histogram: *mut u32, bins: u32, rank: u32) {
    let (thread, lane, warp) = (device::thread(), device::thread() % WARP, device::thread() / WARP);
    let (mut top, mut above, mut row) = (bins, 0, 0);
    let mut found = false;
    while top > 0 {
        let there = thread < top;
        let bin = top.wrapping_sub(thread + 1);
        // SAFETY: the bin is there; two rows of sums in turn; the caller brings all threads here.
        unsafe {
            let mut count = 0;
            if there {
                count = *histogram.add(bin as usize);
                *histogram.add(bin as usize) = 0;
            }
            let mut up_to = prefix(count);
            if lane == WARP - 1 {
                device::shared_store(row + warp, up_to);
            }
            device::barrier();
            let mut total = 0;
            for other in 0..WARPS {
                let sum = device::shared_load(row + other);
                up_to += if other < warp { sum } else { 0 };
                total += sum;
            }
            if !found && above + up_to >= rank && above + up_to - count < rank {
                device::shared_store(FOUND, bin);
                device::shared_store(FOUND + 1, above + up_to - count);
                device::shared_store(FOUND + 2, count);
            }
            above += total;
        }
        found = found || above >= rank;
        row ^= WARPS;
        top = top.saturating_sub(THREADS);
    }
    // SAFETY: the caller brings all threads here.
    unsafe { device::barrier() };
}
