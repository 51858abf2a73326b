//! The filter: the one read of the gradient.

use super::find::{Listed, at_place, keep};
use super::histogram::{add_bins, add_directly, clear_bins};
use super::job::{BEHIND, Job};
use super::{Buffers, Order, Raw, WARPS, prefix, sum};
use crate::arith::topk::{digit_shift, rounds_of};
use crate::device::{self, WARP};
use crate::params::{HISTOGRAM_WORDS, NOWHERE, PIECE, SelectParams, TILES_AGAIN, state};

/// Words of shared memory behind those of the job: 2 counts a warp; then, 4 a warp, where its candidates go, and those of the band,
/// and how the band is counted.
const COUNTS: u32 = BEHIND;
const OUTPUTS: u32 = COUNTS + 2 * WARPS;

/// A tile with no more in the band adds them to the histogram one by one.
const FEW: u32 = 128;

/// Instead of a shift: the band is not counted.
const NOT_COUNTED: u32 = WARP;

kernel! {
    /// Stores the candidates of each tile in order, and counts them.
    ///
    /// # What
    /// Elements from the segment's floor on are candidates; those below the sure key are the band, and are stored once more.
    /// The band's keys are counted in the segment's histogram, as [`topk_histogram`](super::histogram) does it for the first
    /// round. Elements of the key below the floor are counted only. Where the room for candidates is used up, a tile's are counted
    /// and not stored. With feedback, what is filtered is gradient + residual, and the residual becomes that sum.
    ///
    /// # Arguments
    /// * `p`; `input`: `p.bound` elements. Read.
    /// * `residual`: with feedback, as many. Read and written. Else null.
    /// * `workspace`: table and guesses are read; the counts of the states, the histograms and the room are
    ///   added to, info, values, places and band of the tiles written.
    /// * `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block takes a tile of 8192, a warp 1024 of it, a lane 32 of these beside each other. Candidates are
    /// shared out anew: lane `i` stores those before which the warp has `i`, `i + 32` and so on.
    ///
    /// # Shared memory
    /// 60 words, 2048 of bins, the tile's 9216, and a list of 224 places a warp.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one a tile, `p.tiles` of them, from `p.first_tile` on.
    ///
    /// # Traffic
    /// 4 bytes an element (2 for the half types; with feedback 4 more, and 4 written). For each candidate a value and 2
    /// bytes for its place are written, the value once more if it is in the band; a table entry, a state and 16 bytes a tile; an
    /// atomic operation for each bin of the tile that is not empty, or for each of the band where it is few. A warp's
    /// candidates are stored beside each other.
    ///
    /// # Determinism
    /// Backend to backend for what is stored of a tile; where it is stored, and at the end of the room whether, depends on
    /// the order in which tiles come. What is selected does not.
    ///
    /// # Edge cases
    /// Segments may begin and end anywhere: their first and last tiles are partly empty.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_filter(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        // SAFETY: all threads are here, and the table is there by the kernel's contract.
        unsafe { filter_block(&p, &b, device::block()) };
    }
}

/// Filters the tile of a block of the launch.
///
/// # Safety
/// All threads of the block arrive together; as the kernel asks.
#[inline(always)]
pub(super) unsafe fn filter_block(p: &SelectParams, b: &Buffers, block: u32) {
    let tile = p.first_tile + block;
    // SAFETY: the caller's. What is to be done is the same for all threads.
    unsafe {
        if device::thread() < WARP {
            Job::find::<false>(p, b, tile);
        }
        device::barrier();
        let job = Job::known();
        if job.is_wanted() {
            run::<false>(p, b, tile, &job);
        } else if device::thread() < 4 {
            // All of it is left to the sketch.
            *b.word(p.info + 4 * tile + device::thread()) = 0;
        }
    }
}

kernel! {
    /// Filters tiles again whose first candidates were not those that are needed.
    ///
    /// # What
    /// As [`topk_filter`], for the tiles of segments whose state asks for it, with the keys that the sketch tells: at least as many
    /// elements as are kept are candidates, and one in 32 of the segment more at most, for which there is room behind the first. Of the
    /// lowest key, and of the highest that the last kept one may be, any number of elements may be: a tile takes the former for
    /// candidates up to where the sketch has enough of them, and the latter for sure as long as it has none too many. What is filtered is
    /// the sum that the residual holds, with feedback, and it stays as it is.
    ///
    /// # Arguments
    /// As [`topk_filter`]; the residual, and the sketch's counts with their sums, are read.
    ///
    /// # Thread mapping
    /// A block takes 8 tiles one after another: most often there is none to filter, and finding that out should cost little.
    ///
    /// # Shared memory
    /// As [`topk_filter`].
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each 8 of `p.tiles` tiles, from `p.first_tile` on.
    ///
    /// # Traffic
    /// A table entry and a state a segment; for the tiles that are filtered, as [`topk_filter`].
    ///
    /// # Determinism
    /// As [`topk_filter`].
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_filter_again(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        // SAFETY: the room's words are there; all threads are here.
        let is_wanted = unsafe {
            if device::thread() == 0 {
                device::shared_store(OUTPUTS, *b.word(p.room + 3));
            }
            device::barrier();
            device::shared_load(OUTPUTS) != 0
        };
        if !is_wanted {
            return;
        }
        let mut of_launch = device::block() * TILES_AGAIN;
        let behind = (of_launch + TILES_AGAIN).min(p.tiles);
        while of_launch < behind {
            let tile = p.first_tile + of_launch;
            // SAFETY: all threads are here, for one tile after another, and the table is there by the kernel's contract. The
            // barrier keeps a tile's words of shared memory from the next one's.
            unsafe {
                if device::thread() < WARP {
                    Job::find::<true>(&p, &b, tile);
                }
                device::barrier();
                let job = Job::known();
                if job.is_wanted() {
                    run::<true>(&p, &b, tile, &job);
                }
                of_launch += job.done();
                device::barrier();
            }
        }
    }
}

/// # Safety
/// All threads of the block arrive together, behind the barrier behind [`Job::find`]; as the kernel asks.
#[inline(always)]
unsafe fn run<const AGAIN: bool>(p: &SelectParams, b: &Buffers, tile: u32, job: &Job) {
    // SAFETY: the caller's.
    unsafe {
        if p.is_half() {
            filter::<true, AGAIN>(p, b, tile, job);
        } else {
            filter::<false, AGAIN>(p, b, tile, job);
        }
    }
}

/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn filter<const HALF: bool, const AGAIN: bool>(p: &SelectParams, b: &Buffers, tile: u32, job: &Job) {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    let order = Order::of::<HALF>(p);
    // SAFETY: the caller's; each tile is one block's, and the tile's words of shared memory were used a barrier ago.
    let listed = unsafe { Listed::new(keep::<HALF, AGAIN>(p, b, job)) };
    // A bit a lane: those that have a candidate, and those whose candidate is of the band.
    let look = |place: u32, is: bool| {
        // SAFETY: the tile was copied there.
        let raw = unsafe { at_place::<HALF>(place) };
        let key = order.key(raw);
        let is = is && key >= job.floor;
        // SAFETY: all lanes come here together.
        unsafe { (raw, device::ballot(is), device::ballot(is && key < job.sure)) }
    };
    let (mut candidates, mut band) = (0, 0);
    let (mut place, mut raw, mut all, mut open) = (0, Raw(0), 0, 0);
    // SAFETY: all lanes are here, as the list is the warp's.
    unsafe {
        if !listed.is_short() {
            listed.each::<true>(|place, is| {
                let (_, all, open) = look(place, is);
                candidates += all.count_ones();
                band += open.count_ones();
            });
        } else if listed.count != 0 {
            place = listed.only();
            (raw, all, open) = look(place, lane < listed.count);
            (candidates, band) = (all.count_ones(), open.count_ones());
        }
        if lane == 0 {
            // What was found and is no candidate has the key below.
            device::shared_store_two(COUNTS + 2 * warp, [candidates | band << 16, listed.count - candidates]);
        }
        device::barrier();
        if warp == 0 {
            share::<AGAIN>(p, b, tile);
        }
        device::barrier();
    }
    // SAFETY: nothing writes the words before the next tile.
    let [mut at, mut in_band, bins, shift] = unsafe { device::shared_load_row::<OUTPUTS>(warp) };
    if bins != 0 {
        // SAFETY: all threads are here, as the bins are the block's.
        unsafe {
            clear_bins(bins);
            device::barrier();
        }
    }
    let histogram = p.histograms + job.index * HISTOGRAM_WORDS;
    let is_stored = at != NOWHERE;
    // The same in all lanes: nothing is to be stored, and nothing to be counted.
    if candidates != 0 && (is_stored || shift != NOT_COUNTED) {
        let bit = 1u32 << lane;
        let mut leave = |place: u32, raw: Raw, all: u32, open: u32| {
            // SAFETY: all lanes are here, as the candidates are the warp's; the room was given to this tile, and no two lanes have
            // one place. The histogram is there, and touched by atomic operations alone.
            unsafe {
                if is_stored && all & bit != 0 {
                    let to = at + (all & (bit - 1)).count_ones();
                    store::<HALF>(b, p.values, to, raw);
                    *b.word(p.places).cast::<u16>().add(to as usize) = place as u16;
                    if open & bit != 0 {
                        store::<HALF>(b, p.band, in_band + (open & (bit - 1)).count_ones(), raw);
                    }
                }
                at = at.wrapping_add(all.count_ones());
                in_band = in_band.wrapping_add(open.count_ones());
                let bin = (order.key(raw) - job.base) >> shift;
                if bins != 0 {
                    if open & bit != 0 {
                        device::bin_add(bin, 1);
                    }
                } else if shift != NOT_COUNTED && open != 0 {
                    add_open(b, histogram, open, bin);
                }
            }
        };
        if listed.is_short() {
            leave(place, raw, all, open);
        } else {
            // SAFETY: all lanes are here.
            unsafe {
                listed.each::<false>(|place, is| {
                    let (raw, all, open) = look(place, is);
                    leave(place, raw, all, open);
                });
            }
        }
    }
    if bins != 0 {
        // SAFETY: all threads are here, as the bins are the block's; the histogram is the segment's.
        unsafe {
            device::barrier();
            add_bins(b, histogram, bins);
        }
    }
}

/// Counts a bin of each lane that has a bit in `open`, which is not 0.
///
/// # Safety
/// All lanes arrive together. The histogram is there, and touched by atomic operations alone.
#[inline(always)]
unsafe fn add_open(b: &Buffers, histogram: u32, open: u32, bin: u32) {
    let bit = 1 << (device::thread() % WARP);
    // Ties would be 32 operations on one word: those of the last lane's bin are one.
    let last = open.leading_zeros();
    // SAFETY: the caller's.
    unsafe {
        let same = open & device::ballot(bin == device::shuffle(bin, !last));
        let own = if bit == 1 << (WARP - 1) >> last { same.count_ones() } else { u32::from(open & !same & bit != 0) };
        if own != 0 {
            add_directly(b, histogram, bin, own);
        }
    }
}

/// Stores a candidate: a half takes half a word.
///
/// # Safety
/// There is room, and it is this lane's.
#[inline(always)]
unsafe fn store<const HALF: bool>(b: &Buffers, array: u32, at: u32, raw: Raw) {
    // SAFETY: the caller's.
    unsafe {
        let array = b.word(array);
        if HALF {
            *array.cast::<u16>().add(at as usize) = raw.0 as u16;
        } else {
            *array.add(at as usize) = raw.0;
        }
    }
}

/// Adds up what the warps have found, and tells them where it goes.
///
/// # Safety
/// All lanes of one warp arrive together, a barrier behind the counts; as the kernel asks.
#[inline(always)]
unsafe fn share<const AGAIN: bool>(p: &SelectParams, b: &Buffers, tile: u32) {
    let lane = device::thread() % WARP;
    // SAFETY: the caller's; the state and the room are there, and touched by atomic operations alone.
    unsafe {
        let job = Job::known();
        let [mut own, mut below] = [0; 2];
        if lane < WARPS {
            [own, below] = device::shared_load_two(COUNTS + 2 * lane);
        }
        let up_to = prefix(own);
        let all = device::shuffle(up_to, WARP - 1);
        below = sum(below);
        let (candidates, band) = (all & 0xffff, all >> 16);
        // The band is the first range in which the last kept key is looked for: it is counted on the way.
        let (mut shift, mut bins) = (NOT_COUNTED, 0);
        if job.base < job.top && band != 0 {
            shift = digit_shift(job.top - job.base, rounds_of(job.top - job.base));
            // Few are added to the histogram itself: to look through the block's bins would take longer.
            if band > FEW {
                bins = ((job.top - job.base - 1) >> shift) + 1;
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
        let last = if AGAIN { u32::from(job.sure < job.top) } else { below };
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
    let (word, begin, capacity) = if AGAIN { (1, p.capacity, p.capacity_again) } else { (0, 0, p.capacity) };
    // SAFETY: the caller's.
    unsafe {
        // Where all elements are candidates, storing them saves nothing, and takes the room of others.
        if !AGAIN && floor == 0 {
            if !fixed {
                device::atomic_add(b.word(p.room + 2), 1);
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
            device::atomic_add(b.word(p.room + 2), 1);
        }
        NOWHERE
    }
}
