//! Narrowing down which key is the last kept one.

use super::{Buffers, WARPS, prefix};
use crate::arith::topk::digit_shift;
use crate::device::{self, WARP};
use crate::params::{SelectParams, THREADS, segment, source, state};

/// Where the finding thread leaves what it found, 2 words for each of two ranks, behind two rows of the warps' sums.
const FOUND: u32 = 2 * WARPS;

kernel! {
    /// Makes of a segment's counts a smaller range of keys, until the last kept key is known.
    ///
    /// # What
    /// In round 0, from the counts of the filter: among which elements the last kept key is to be looked for. If it is the band,
    /// and in later rounds, from the histogram: the bin in which it is becomes the range. When the range is one key, that is it.
    /// Where there are too few candidates, or more than were stored, the rounds are those of two ranks in the sketch, and the
    /// state then asks for the segment to be filtered again. The round behind the last one begins with what that counted.
    ///
    /// # Arguments
    /// * `p`; `workspace`: the table and the room are read, the states changed; the histograms are read and zeroed.
    /// * `input`, `residual`, `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block a segment; 256 bins at a time, from the highest on.
    ///
    /// # Shared memory
    /// 20 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `p.tiles` of them, the segments from `p.first_tile` on.
    ///
    /// # Traffic
    /// Every bin once; the words of a segment's state one by one, which is a sector each.
    /// Uncoalesced: one thread reads and writes the state.
    ///
    /// # Determinism
    /// Backend to backend; whether a segment is filtered again may depend on which tiles found room, and changes nothing
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
            let begins_again = p.round > p.rounds && of(state::AGAIN) == 1;
            if p.round == 0 || begins_again {
                // Before the state changes: what the filter counted the band in.
                let floor = !of(state::FLOOR);
                let band = of(state::SURE).max(floor) - floor;
                device::barrier();
                if device::thread() == 0 {
                    if begins_again { begin_again(&p, table, own) } else { begin(&p, &b, table, own) }
                }
                device::barrier();
                let in_band = of(state::SOURCE) == source::BAND && of(state::BASE) == floor && of(state::SPAN) == band;
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
            let (span, rank, left) = (of(state::SPAN), of(state::RANK), of(state::LEFT));
            let high_rank = if from == source::SKETCH { of(state::HIGH_RANK) } else { 0 };
            let shift = digit_shift(span, left);
            let bins = ((span - 1) >> shift) + 1;
            let mut high_shift = shift;
            // In its first round the sketch has one range for both ranks.
            let is_first = left == p.rounds;
            find(histogram, bins, [rank, if is_first { high_rank } else { 0 }]);
            if !is_first && high_rank > 0 {
                let high_span = of(state::HIGH_SPAN);
                high_shift = digit_shift(high_span, left);
                let bins = ((high_span - 1) >> high_shift) + 1;
                find(histogram.add((p.bins / 2) as usize), bins, [0, high_rank]);
            }
            if device::thread() == 0 {
                *own.add(state::LEFT as usize) = left - 1;
                if rank > 0 {
                    narrow(own, [state::BASE, state::SPAN, state::RANK], FOUND, shift);
                } else {
                    // There is no lower rank: of a key that no entry has there is nothing to count.
                    *own.add(state::BASE as usize) = 0;
                    *own.add(state::SPAN as usize) = 1;
                }
                if high_rank > 0 {
                    narrow(own, [state::HIGH_BASE, state::HIGH_SPAN, state::HIGH_RANK], FOUND + 2, high_shift);
                }
                if from != source::SKETCH {
                    if of(state::SPAN) == 1 {
                        *own.add(state::SOURCE as usize) = source::DONE;
                        *own.add(state::CUT as usize) = of(state::BASE) + 1;
                        *own.add(state::TIES as usize) = of(state::RANK);
                    }
                } else if left == 1 {
                    ask(&p, table, own);
                }
            }
        }
    }
}

/// Makes the bin that was found the range of three words of the state: the lowest key, how many, and the rank among them.
///
/// # Safety
/// The state is there, and no other thread's; the words of shared memory were written before a barrier.
#[inline(always)]
unsafe fn narrow(own: *mut u32, [base, span, rank]: [u32; 3], found: u32, shift: u32) {
    // SAFETY: the caller's.
    unsafe {
        let word = |word: u32| own.add(word as usize);
        let first = device::shared_load(found) << shift;
        *word(base) += first;
        *word(span) = (*word(span) - first).min(1 << shift);
        *word(rank) -= device::shared_load(found + 1);
    }
}

/// Round 0.
///
/// # Safety
/// Segment and state are there, and no other thread's; the room is there, and its last word touched by atomic operations alone.
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
        // Tiles that found no room are read wherever candidates are looked through, up to four times. Few of them cost less
        // than the two reads of a sketch and of filtering again.
        let is_stored = *b.word(p.room + 2) <= p.all_tiles / 8;
        set(state::LEFT, p.rounds);
        if table(segment::UNSAMPLED) != 0 {
            set(state::SOURCE, source::SKETCH);
        } else if keep < sure {
            set(state::SOURCE, if is_stored { source::CANDIDATES } else { source::SKETCH });
            set(state::BASE, top);
            // Keys end at the one of NaN.
            set(state::SPAN, p.no_key() - top);
            set(state::RANK, keep);
        } else if keep == sure {
            set(state::CUT, top);
        } else if keep < sure + band {
            set(state::SOURCE, if is_stored { source::BAND } else { source::SKETCH });
            set(state::BASE, floor);
            set(state::SPAN, top - floor);
            set(state::RANK, keep - sure);
        } else if keep - sure - band <= below {
            set(state::CUT, floor);
            set(state::TIES, keep - sure - band);
        } else {
            set(state::SOURCE, source::SKETCH);
        }
        if old(state::SOURCE) == source::SKETCH {
            // Its keys are raised by 1.
            set(state::BASE, 1);
            set(state::SPAN, p.no_key());
            set(state::RANK, table(segment::SKETCH_LOW));
            set(state::HIGH_BASE, 1);
            set(state::HIGH_SPAN, if table(segment::SKETCH_HIGH) == 0 { 0 } else { p.no_key() });
            device::atomic_max(b.word(p.room + 3), 1);
            set(state::HIGH_RANK, table(segment::SKETCH_HIGH));
        }
    }
}

/// When both ranks of the sketch are known: filter again.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
unsafe fn ask(p: &SelectParams, table: *mut u32, own: *mut u32) {
    // SAFETY: the caller's.
    unsafe {
        let table = |word: u32| *table.add(word as usize);
        let old = |word: u32| *own.add(word as usize);
        let set = |word: u32, value: u32| *own.add(word as usize) = value;
        let all = table(segment::SKETCH_LOW) == 0;
        set(state::FLOOR, if all { !0 } else { !(old(state::BASE) - 1) });
        set(state::TIES, if all { u32::MAX } else { old(state::RANK) });
        // Keys end below the raised one. Where no element is sure, none has the key either that is one less.
        set(state::SURE, if table(segment::SKETCH_HIGH) == 0 { p.no_key() + 1 } else { old(state::HIGH_BASE) });
        set(state::COUNT_SURE, 0);
        set(state::COUNT_BAND, 0);
        set(state::SOURCE, source::DONE);
        set(state::AGAIN, 1);
    }
}

/// The round behind the filter's second one: as many are sure as are kept, or fewer, and with the band no fewer.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
unsafe fn begin_again(p: &SelectParams, table: *mut u32, own: *mut u32) {
    // SAFETY: the caller's.
    unsafe {
        let old = |word: u32| *own.add(word as usize);
        let set = |word: u32, value: u32| *own.add(word as usize) = value;
        let (floor, top) = (!old(state::FLOOR), old(state::SURE));
        let wanted = *table.add(segment::KEEP as usize) - old(state::COUNT_SURE);
        // No other round is its first.
        set(state::AGAIN, 2);
        set(state::TIES, 0);
        if wanted == 0 {
            set(state::CUT, top);
        } else {
            set(state::SOURCE, source::BAND);
            set(state::BASE, floor);
            set(state::SPAN, top - floor);
            set(state::RANK, wanted);
            set(state::LEFT, p.rounds);
        }
    }
}

/// Finds the bins in which the elements of two ranks are, from the highest bin on, and leaves for each in shared memory the bin,
/// and what is counted above it. Nothing is left for rank 0. Leaves zeros in the histogram.
///
/// # Safety
/// All threads of the block arrive together. The histogram is there and no other block's, and counts at least either rank.
#[inline(always)]
unsafe fn find(histogram: *mut u32, bins: u32, ranks: [u32; 2]) {
    let (thread, lane, warp) = (device::thread(), device::thread() % WARP, device::thread() / WARP);
    let (mut top, mut above, mut row) = (bins, 0, 0);
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
            // One bin alone has each.
            for which in 0..2 {
                if above + up_to >= ranks[which] && above + up_to - count < ranks[which] {
                    device::shared_store(FOUND + 2 * which as u32, bin);
                    device::shared_store(FOUND + 2 * which as u32 + 1, above + up_to - count);
                }
            }
            above += total;
        }
        row ^= WARPS;
        top = top.saturating_sub(THREADS);
    }
    // SAFETY: the caller brings all threads here.
    unsafe { device::barrier() };
}
