//! The entries that are kept, in order.

use super::histogram::{AHEAD, Visit};
use super::segments::{Segment, each_tile, first_of_warp};
use super::{Buffers, Order, Raw, sums};
use crate::device::{self, WARP};
use crate::params::{NOWHERE, SelectParams, dtype, room, segment, select_flags, tiles_to_emit};

kernel! {
    /// Writes the index and the value of every kept entry.
    ///
    /// # What
    /// Elements from the cut on, and of those with the key below it the first ones of the segment, in the order of
    /// their indices. With `SENT`, their residual becomes zero; with `LEAVES_SENT`, the table says which they are: the
    /// next selection takes them off as it reads.
    ///
    /// # Arguments
    /// * `p`; `input`, or with feedback `residual`: `p.bound` elements. Read; with `SENT` the residual is written.
    /// * `workspace`: table, room, states, info, values, places, counts and their sums are read; with `LEAVES_SENT`,
    ///   two words of each segment of the table are written, which this kernel does not read.
    /// * `indices`, `values`: a word for each entry of the whole selection. Written.
    ///
    /// # Thread mapping
    /// A warp takes up to 8 tiles one after another (`tiles_to_emit`), 32 elements at a time.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, a warp for each `tiles_to_emit` of `p.tiles` tiles, from `p.first_tile` on.
    ///
    /// # Traffic
    /// A value and 2 bytes of place for each candidate are read, 8 bytes per entry written. Tiles whose candidates
    /// found no room, or that have ties to give which are no candidates, are read once more. A warp adds up 8 bytes for
    /// each of up to 126 tiles before it, and for as many sums of 64 and of 4096 tiles. Uncoalesced: a tile's entries
    /// begin at any word; with `SENT`, a sector of the residual an entry.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Edge cases
    /// Nothing is written where the room's word [`room::STUCK`] is not zero.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_emit(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        let lane = device::thread() % WARP;
        let each = tiles_to_emit(p.tiles);
        if first_of_warp(device::block(), each) >= p.tiles {
            return;
        }
        // SAFETY: the tiles were counted, by the kernel's contract.
        unsafe {
            let first = p.first_tile + first_of_warp(device::block(), each);
            // Where blocks waited for one another in vain, states and counts may be anything.
            let is_stuck = *b.word(p.room + room::STUCK) != 0;
            let counts = *b.word(p.counts + (2 * first + lane).min(2 * p.all_tiles - 1));
            if is_stuck {
                return;
            }
            let mut before = [0; 2];
            let of_first = Segment::load(&p, &b, first);
            each_tile::<false>(&p, &b, device::block(), each, of_first, |segment, tile, info| {
                if tile == segment.first_tile {
                    before = [0; 2];
                } else if tile == first {
                    before = sums::between(&p, &b, false, segment.first_tile, tile);
                }
                // In a tile that was filtered again elements of the key below may be sure, and were counted as such.
                let is_lower = segment.again != 0 && info.below != 0 && segment.cut == segment.sure;
                let cut = segment.cut - u32::from(is_lower);
                if p.has(select_flags::LEAVES_SENT) && segment.ties == 0 {
                    leave_without_ties(&p, &b, segment, tile, is_lower);
                }
                let [kept_before, tied_before] = before;
                let kept = device::shuffle(counts, 2 * (tile - first));
                let tied_up_to = tied_before + device::shuffle(counts, 2 * (tile - first) + 1);
                before = [kept_before + kept, tied_up_to];
                let ties_before = tied_before.min(segment.ties);
                let ties = tied_up_to.min(segment.ties) - ties_before;
                if kept + ties == 0 {
                    return;
                }
                let ties_are_elsewhere = segment.cut == segment.floor && ties > 0;
                let visit = if info.first == NOWHERE || ties_are_elsewhere {
                    Visit::gradient(&p, segment, tile)
                } else {
                    Visit::candidates(&p, info, false)
                };
                let output = segment.output + kept_before + ties_before;
                // The last tie that is kept is the last entry of its key.
                let leaves = p.has(select_flags::LEAVES_SENT) && ties_before + ties == segment.ties;
                if visit.in_gradient || leaves || p.has(select_flags::SENT) {
                    write(&p, &b, segment, tile, visit, output, cut, ties, leaves);
                } else if !p.is_half() {
                    write_candidates::<{ dtype::F32 }>(&p, &b, segment, tile, visit, output, cut, ties);
                } else if p.dtype == dtype::F16 {
                    write_candidates::<{ dtype::F16 }>(&p, &b, segment, tile, visit, output, cut, ties);
                } else {
                    write_candidates::<{ dtype::BF16 }>(&p, &b, segment, tile, visit, output, cut, ties);
                }
            });
        }
    }
}

/// Leaves in the table what is kept of a segment where no ties are counted: all from the cut on. Of tiles that were
/// filtered again, the first ones may have the key below it sure: up to their end those are kept, and after it none.
///
/// # Safety
/// All lanes arrive together, of one tile after another; as the kernel asks.
#[inline(always)]
unsafe fn leave_without_ties(p: &SelectParams, b: &Buffers, segment: &Segment, tile: u32, is_lower: bool) {
    let mut is_here = tile == segment.first_tile;
    let (mut key, mut index) = (segment.cut, u32::MAX);
    if is_lower {
        key -= 1;
        index = segment.extent(tile).end - 1;
        is_here = true;
        if segment.has(tile + 1) {
            // SAFETY: the segment's next tile was filtered as well.
            is_here = unsafe { *b.word(p.info + 4 * (tile + 1) + 3) } == 0;
        }
    }
    let lane = device::thread() % WARP;
    if is_here && lane == 0 {
        // SAFETY: the words are the segment's, and written by one tile of it.
        unsafe { leave(b, segment, key, index) };
    }
}

/// What is kept of a segment: elements above a key, and of those that have it the ones up to an index.
///
/// # Safety
/// The segment is in the table, and no other lane leaves it.
#[inline(always)]
unsafe fn leave(b: &Buffers, segment: &Segment, key: u32, index: u32) {
    let table = segment.index * segment::WORDS;
    // SAFETY: the caller ensures that the segment is in the table, and that no other lane writes these words.
    unsafe {
        *b.word(table + segment::SENT_KEY) = key;
        *b.word(table + segment::SENT_INDEX) = index;
    }
}

/// `leaves`: the last of the ties is the last of the segment.
///
/// # Safety
/// All lanes arrive together; as the kernel asks.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "they are a loop's, taken out for its own sake")]
unsafe fn write(
    p: &SelectParams,
    b: &Buffers,
    segment: &Segment,
    tile: u32,
    visit: Visit,
    mut output: u32,
    cut: u32,
    mut ties: u32,
    leaves: bool,
) {
    let lane = device::thread() % WARP;
    let order = p.order();
    let base = segment.extent(tile).base;
    let mine = (1u32 << lane) - 1;
    let mut at = 0;
    while at < visit.count {
        let here = at + lane < visit.count;
        let mut raw = Raw(0);
        if here {
            // SAFETY: the element is there.
            raw = unsafe { visit.raw(p, b, at + lane) };
        }
        let key = order.key(raw);
        // SAFETY: all lanes are here: the count is the warp's. An entry's place in the output is its own.
        unsafe {
            let tied = device::ballot(here && key == cut.wrapping_sub(1));
            let rank = (tied & mine).count_ones();
            let is_tie = tied & (1 << lane) != 0 && rank < ties;
            let is_kept = (here && key >= cut) || is_tie;
            let kept = device::ballot(is_kept);
            if is_kept {
                let place = if visit.in_gradient {
                    visit.place + at + lane
                } else {
                    u32::from(*b.word(p.places).cast::<u16>().add((visit.first + at + lane) as usize))
                };
                let to = (output + (kept & mine).count_ones()) as usize;
                *b.indices.add(to) = base + place;
                *b.values.add(to) = raw.bits(p);
                if p.has(select_flags::SENT) {
                    *b.residual.add((base + place - p.first) as usize) = 0.0;
                }
                if leaves && is_tie && rank + 1 == ties {
                    leave(b, segment, cut - 1, base + place);
                }
            }
            output += kept.count_ones();
            ties -= tied.count_ones().min(ties);
        }
        at += WARP;
    }
}

/// As [`write`], where it is candidates that are visited, stored as `DTYPE`, and nothing is left but the entries: most
/// often.
///
/// # Safety
/// As [`write`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "they are a loop's, taken out for its own sake")]
unsafe fn write_candidates<const DTYPE: u32>(
    p: &SelectParams,
    b: &Buffers,
    segment: &Segment,
    tile: u32,
    visit: Visit,
    mut output: u32,
    cut: u32,
    mut ties: u32,
) {
    let lane = device::thread() % WARP;
    let order = Order::of(DTYPE);
    let base = segment.extent(tile).base;
    let mine = (1u32 << lane) - 1;
    // SAFETY: the arrays are there.
    let (values, places) = unsafe { (b.word(p.values), b.word(p.places).cast::<u16>()) };
    let (mut at, mut left) = ((visit.first + lane) as usize, visit.count);
    while left > 0 {
        // All that a tile most often has is on its way before the first is looked at.
        let there = |k: usize| lane + k as u32 * WARP < left;
        let mut all = [(Raw(0), 0); AHEAD];
        for k in 0..AHEAD {
            if there(k) {
                let at = at + k * WARP as usize;
                // SAFETY: the candidate is there.
                all[k] = unsafe {
                    let raw =
                        if DTYPE == dtype::F32 { *values.add(at) } else { u32::from(*values.cast::<u16>().add(at)) };
                    (Raw(raw), u32::from(*places.add(at)))
                };
            }
        }
        for k in 0..AHEAD {
            // The same in all lanes.
            if k as u32 * WARP >= left {
                break;
            }
            let (raw, place) = all[k];
            let key = order.key(raw);
            let mut is_kept = there(k) && key >= cut;
            // SAFETY: all lanes are here: the count is the warp's, and so are the ties. An entry's place in the output
            // is its own.
            unsafe {
                if ties > 0 {
                    let is_tied = there(k) && key == cut.wrapping_sub(1);
                    let tied = device::ballot(is_tied);
                    is_kept |= is_tied && (tied & mine).count_ones() < ties;
                    ties -= tied.count_ones().min(ties);
                }
                let kept = device::ballot(is_kept);
                if is_kept {
                    let to = (output + (kept & mine).count_ones()) as usize;
                    *b.indices.add(to) = base + place;
                    *b.values.add(to) = raw.bits_of(DTYPE);
                }
                output += kept.count_ones();
            }
        }
        at += AHEAD * WARP as usize;
        left = left.saturating_sub(AHEAD as u32 * WARP);
    }
}
