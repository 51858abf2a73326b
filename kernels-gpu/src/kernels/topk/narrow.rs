//! Narrowing down which key is the last kept one: what a pass makes of the state that the one before left.
//!
//! No pass does that alone. Each warp that needs a segment's state works it out from the state before and from what was
//! counted since, and all come to the same; the one that has the segment's first tile leaves it for the pass after, in
//! other words than are read. So a round of counting is one launch. What is read for it is 128 bytes of table and
//! state, and of a histogram all bins, or the sums of each 32 bins where they are kept, and 32 bins.

use super::job::Chunk;
use super::sample::guessed;
use super::{Buffers, prefix};
use crate::arith::topk::{digit_shift, rounds_of};
use crate::device::{self, WARP};
use crate::params::{HISTOGRAM_BINS, HISTOGRAM_WORDS, SUM_WORDS, SelectParams, room, segment, source, state};

const _: () = assert!(HISTOGRAM_BINS == device::BINS && HISTOGRAM_BINS / WARP == 2 * WARP);

/// A segment's state, word by word, the same in all lanes.
#[derive(Clone, Copy)]
struct State([u32; state::WORDS as usize]);

impl State {
    #[inline(always)]
    fn of(&self, word: u32) -> u32 {
        self.0[word as usize]
    }

    #[inline(always)]
    fn set(&mut self, word: u32, value: u32) {
        self.0[word as usize] = value;
    }
}

/// A lane's word of table and state, of the state as this pass has it. In round 0 it is made of the filter's counts:
/// among which elements the last kept key is to be looked for. If it is the band, and in later rounds, from the
/// histogram: the bin in which it is becomes the range. When the range is one key, that is it. Where there are too few
/// candidates, or more than were stored, the rounds are those of two ranks in the sketch, and the state then asks for
/// the segment to be filtered again. The round after the last one begins with what that counted.
///
/// `leaves`: it is left for the next pass, and what that needs beside it. Without `NARROWS` no histogram is read, and
/// the source alone is as this pass has it.
///
/// # Safety
/// All lanes arrive together, with one segment. It is in the table, and states, histograms and room are there; with
/// `leaves` no other warp leaves it.
#[inline(always)]
pub(super) unsafe fn now<const NARROWS: bool>(
    p: &SelectParams,
    b: &Buffers,
    index: u32,
    word: u32,
    leaves: bool,
) -> u32 {
    let lane = device::thread() % WARP;
    // SAFETY: all lanes are here, wherever this is called.
    let table = |at: u32| unsafe { device::shuffle(word, at) };
    let mut s = State([0; state::WORDS as usize]);
    for at in 0..state::WORDS {
        // SAFETY: as above.
        s.set(at, unsafe { device::shuffle(word, segment::WORDS + at) });
    }
    let begins_again = p.round > p.rounds && s.of(state::AGAIN) == 1;
    let mut narrows = s.of(state::SOURCE) != source::DONE;
    if p.round == 0 {
        // SAFETY: the caller brings all lanes here, and the segment is in the table.
        let [low, high] = unsafe { guessed(p, b, index) };
        s.set(state::FLOOR, low);
        s.set(state::SURE, high);
    }
    if p.round == 0 || begins_again {
        // What the filter counted the band in.
        let floor = !s.of(state::FLOOR);
        let band = s.of(state::SURE).max(floor) - floor;
        if begins_again {
            begin_again(table(segment::KEEP), &mut s);
        } else {
            // SAFETY: the caller brings all lanes here, and the segment is in the table.
            unsafe { begin(p, b, table, &mut s) };
        }
        // Where another range is looked through, what was counted is of no use.
        narrows = s.of(state::SOURCE) == source::BAND && s.of(state::BASE) == floor && s.of(state::SPAN) == band;
    }
    if NARROWS && narrows {
        // SAFETY: the caller brings all lanes here, and the segment is in the table.
        unsafe { narrow(p, b, p.counted + index * HISTOGRAM_WORDS, table, &mut s) };
    }
    let mut own = word;
    for at in 0..state::WORDS {
        own = if lane == segment::WORDS + at { s.of(at) } else { own };
    }
    if leaves {
        let from = s.of(state::SOURCE);
        // The sketch is followed by filtering again, which counts too.
        let counts_on = from == source::SKETCH
            || (from != source::DONE && s.of(state::LEFT) > 1)
            || (p.round == p.rounds && s.of(state::AGAIN) != 0);
        // SAFETY: the caller's: words of this segment alone, which nothing else touches in this pass.
        unsafe {
            if lane >= segment::WORDS {
                *b.word(p.next + index * state::WORDS + (lane - segment::WORDS)) = own;
            }
            if counts_on {
                let mut at = lane;
                while at < HISTOGRAM_WORDS {
                    *b.word(p.zeroed + index * HISTOGRAM_WORDS + at) = 0;
                    at += WARP;
                }
            }
            if p.round == 0 && from == source::SKETCH && lane == 0 {
                device::atomic_max(b.word(p.room + room::SKETCHED), 1);
            }
            // Most often no segment's are, once the filter has counted the band.
            if counts_on && lane == 0 {
                device::atomic_max(b.word(p.room + room::GOES_ON + p.round), 1);
            }
        }
    }
    own
}

/// Round 0.
///
/// # Safety
/// All lanes arrive together; the room is there, and its third word is written by no one.
#[inline(always)]
unsafe fn begin(p: &SelectParams, b: &Buffers, table: impl Fn(u32) -> u32, s: &mut State) {
    let [fixed, fixed_floor, keep, unsampled, low, high] =
        [segment::FIXED, segment::FLOOR, segment::KEEP, segment::UNSAMPLED, segment::SKETCH_LOW, segment::SKETCH_HIGH]
            .map(table);
    if fixed != 0 {
        s.set(state::FLOOR, !fixed_floor);
        s.set(state::SURE, fixed_floor);
        s.set(state::CUT, fixed_floor);
        return;
    }
    let floor = !s.of(state::FLOOR);
    let top = s.of(state::SURE).max(floor);
    let (sure, band, below) = (s.of(state::COUNT_SURE), s.of(state::COUNT_BAND), s.of(state::COUNT_BELOW));
    // Tiles that found no room are read wherever candidates are looked through, up to four times. Few of them cost less
    // than the two reads of a sketch and of filtering again.
    // SAFETY: the caller ensures that the room is there, and that nothing writes this word.
    let is_stored = unsafe { *b.word(p.room + room::NONE_LEFT) } <= p.all_tiles / 8;
    let mut from = source::DONE;
    if unsampled != 0 {
        from = source::SKETCH;
    } else if keep < sure {
        from = if is_stored { source::CANDIDATES } else { source::SKETCH };
        s.set(state::BASE, top);
        // Keys end at the one of NaN.
        s.set(state::SPAN, p.no_key() - top);
        s.set(state::RANK, keep);
    } else if keep == sure {
        s.set(state::CUT, top);
    } else if keep < sure + band {
        from = if is_stored { source::BAND } else { source::SKETCH };
        s.set(state::BASE, floor);
        s.set(state::SPAN, top - floor);
        s.set(state::RANK, keep - sure);
    } else if keep - sure - band <= below {
        s.set(state::CUT, floor);
        s.set(state::TIES, keep - sure - band);
    } else {
        from = source::SKETCH;
    }
    s.set(state::SOURCE, from);
    s.set(state::LEFT, rounds_of(s.of(state::SPAN)));
    if from == source::SKETCH {
        // Its keys are raised by 1.
        s.set(state::BASE, 1);
        s.set(state::SPAN, p.no_key());
        s.set(state::RANK, low);
        s.set(state::LEFT, p.rounds);
        s.set(state::HIGH_BASE, 1);
        s.set(state::HIGH_SPAN, if high == 0 { 0 } else { p.no_key() });
        s.set(state::HIGH_RANK, high);
    }
}

/// When both ranks of the sketch are known: filter again.
#[inline(always)]
fn ask(p: &SelectParams, [low, high]: [u32; 2], s: &mut State) {
    s.set(state::FLOOR, if low == 0 { !0 } else { !(s.of(state::BASE) - 1) });
    s.set(state::TIES, if low == 0 { u32::MAX } else { s.of(state::RANK) });
    // Keys end below the raised one. Where no element is sure, none has the key either that is one less.
    s.set(state::SURE, if high == 0 { p.no_key() + 1 } else { s.of(state::HIGH_BASE) });
    s.set(state::COUNT_SURE, 0);
    s.set(state::COUNT_BAND, 0);
    s.set(state::SOURCE, source::DONE);
    s.set(state::AGAIN, 1);
}

/// The round after the filter's second one: as many are sure as are kept, or fewer, and with the band no fewer.
#[inline(always)]
fn begin_again(keep: u32, s: &mut State) {
    let (floor, top) = (!s.of(state::FLOOR), s.of(state::SURE));
    let wanted = keep - s.of(state::COUNT_SURE);
    // No other round is its first.
    s.set(state::AGAIN, 2);
    s.set(state::TIES, 0);
    if wanted == 0 {
        s.set(state::CUT, top);
    } else {
        s.set(state::SOURCE, source::BAND);
        s.set(state::BASE, floor);
        s.set(state::SPAN, top - floor);
        s.set(state::RANK, wanted);
        s.set(state::LEFT, rounds_of(top - floor));
    }
}

/// A round, by the histogram that begins at a word.
///
/// # Safety
/// As [`now`]; the histogram counts at least each rank.
#[inline(always)]
unsafe fn narrow(p: &SelectParams, b: &Buffers, histogram: u32, table: impl Fn(u32) -> u32, s: &mut State) {
    let from = s.of(state::SOURCE);
    let (span, left) = (s.of(state::SPAN), s.of(state::LEFT));
    let shift = digit_shift(span, left);
    if s.of(state::RANK) > 0 {
        // SAFETY: the caller brings all lanes here, and the histogram counts at least each rank.
        unsafe { to_bin(p, b, histogram, 0, shift, [state::BASE, state::SPAN, state::RANK], span, s) };
    } else {
        // There is no lower rank: of a key that no entry has there is nothing to count.
        s.set(state::BASE, 0);
        s.set(state::SPAN, 1);
    }
    if from == source::SKETCH && s.of(state::HIGH_RANK) > 0 {
        let high_span = s.of(state::HIGH_SPAN);
        // In its first round the sketch has one range for both ranks.
        let first = if left == p.rounds { 0 } else { HISTOGRAM_BINS / 2 };
        let words = [state::HIGH_BASE, state::HIGH_SPAN, state::HIGH_RANK];
        // SAFETY: the caller brings all lanes here, and the histogram counts at least each rank.
        unsafe { to_bin(p, b, histogram, first, digit_shift(high_span, left), words, high_span, s) };
    }
    s.set(state::LEFT, left - 1);
    if from == source::SKETCH {
        if left == 1 {
            ask(p, [segment::SKETCH_LOW, segment::SKETCH_HIGH].map(table), s);
        }
    } else if s.of(state::SPAN) == 1 {
        s.set(state::SOURCE, source::DONE);
        s.set(state::CUT, s.of(state::BASE) + 1);
        s.set(state::TIES, s.of(state::RANK));
    }
}

/// Makes the bin in which the element of a rank is, counted from the highest, the range of three words of the state:
/// the lowest key, how many, and the rank among them. The bins of `span` keys are those from `first` on.
///
/// # Safety
/// As [`narrow`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "each is a register of its own, and the function is inlined")]
unsafe fn to_bin(
    p: &SelectParams,
    b: &Buffers,
    histogram: u32,
    first: u32,
    shift: u32,
    [base, width, rank]: [u32; 3],
    span: u32,
    s: &mut State,
) {
    let lane = device::thread() % WARP;
    let groups = ((span - 1) >> shift) / WARP + 1;
    let wanted = s.of(rank);
    // SAFETY: the caller's: the bins are there, and all lanes are here.
    unsafe {
        // Sums of 32 bins, from the highest on, one or two a lane.
        let sum = |place: u32| {
            let mut sum = 0;
            if place < groups && p.keeps_sums() {
                let sums = histogram + HISTOGRAM_BINS + first / WARP * SUM_WORDS;
                sum = *b.word(sums + (groups - 1 - place) * SUM_WORDS);
            } else if place < groups {
                let bins = b.word(histogram + first + (groups - 1 - place) * WARP).cast::<Chunk>();
                let mut chunks = [[0; 4]; WARP as usize / 4];
                for k in 0..WARP as usize / 4 {
                    chunks[k] = (*bins.add(k)).0;
                }
                for k in 0..WARP as usize / 4 {
                    sum += chunks[k][0] + chunks[k][1] + chunks[k][2] + chunks[k][3];
                }
            }
            sum
        };
        let counts = [sum(lane), sum(WARP + lane)];
        let mut up_to = [prefix(counts[0]), prefix(counts[1])];
        up_to[1] += device::shuffle(up_to[0], WARP - 1);
        let reached = [0, 1].map(|k: usize| device::ballot(up_to[k] >= wanted));
        let (place, of_first) =
            if reached[0] != 0 { (reached[0].trailing_zeros(), true) } else { (reached[1].trailing_zeros(), false) };
        let before = if of_first { up_to[0] - counts[0] } else { up_to[1] - counts[1] };
        let above = device::shuffle(before, place);
        let group = groups - 1 - if of_first { place } else { WARP + place };
        // And then the bins of one.
        let count = *b.word(histogram + first + group * WARP + (WARP - 1 - lane));
        let up_to = above + prefix(count);
        let place = device::ballot(up_to >= wanted).trailing_zeros();
        let begin = (group * WARP + (WARP - 1 - place)) << shift;
        let above = device::shuffle(up_to - count, place);
        s.set(base, s.of(base) + begin);
        s.set(width, (span - begin).min(1 << shift));
        s.set(rank, wanted - above);
    }
}
