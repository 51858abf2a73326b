//! The filter: the one read of the gradient.

use super::find::{Listed, at_place, keep};
use super::histogram::{add_bins, add_directly, clear_bins};
use super::job::Job;
use super::share::{COUNTS, OUTPUTS, share};
use super::{Buffers, Raw};
use crate::device::{self, WARP};
use crate::params::{HISTOGRAM_WORDS, NOWHERE, SelectParams, TILES_AGAIN, room};

kernel! {
    /// Stores the candidates of each tile in order, and counts them.
    ///
    /// # What
    /// Elements from the segment's floor on are candidates; those below the sure key are the band, and are stored once
    /// more. The band's keys are counted in the segment's histogram, as [`topk_histogram`](super::histogram) does it
    /// for the first round. Elements of the key below the floor are counted only. Where the room for candidates is used
    /// up, a tile's are counted and not stored. With feedback, what is filtered is gradient + residual, and the
    /// residual becomes that sum.
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
    /// 4 bytes per element (2 for the half types; with feedback 4 more, and 4 written). For each candidate a value and
    /// 2 bytes for its place are written, the value once more if it is in the band; a table entry, a state and 16 bytes
    /// per tile; an atomic operation for each bin of the tile that is not empty, or for each of the band where it is
    /// few. A warp's candidates are stored beside each other.
    ///
    /// # Determinism
    /// Backend to backend for what is stored of a tile; where it is stored, and at the end of the room whether, depends
    /// on the order in which tiles come. What is selected does not.
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
    /// As [`topk_filter`], for the tiles of segments whose state asks for it, with the keys that the sketch tells: at
    /// least as many elements as are kept are candidates, and one in 32 of the segment more at most, for which there is
    /// room after the first. Of the lowest key, and of the highest that the last kept one may be, any number of
    /// elements may be: a tile takes the former for candidates up to where the sketch has enough of them, and the
    /// latter for sure as long as it has none too many. What is filtered is the sum that the residual holds, with
    /// feedback, and it stays as it is.
    ///
    /// # Arguments
    /// As [`topk_filter`]; the residual, and the sketch's counts with their sums, are read.
    ///
    /// # Thread mapping
    /// A block takes 8 tiles one after another: most often there is none to filter, and finding that out should cost
    /// little.
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
                device::shared_store(OUTPUTS, *b.word(p.room + room::SKETCHED));
            }
            device::barrier();
            device::shared_load(OUTPUTS) != 0
        };
        if !is_wanted {
            return;
        }
        // SAFETY: all threads are here, as the word is the same for all.
        unsafe { again_block(&p, &b, device::block()) };
    }
}

/// Filters the tiles of a block again, which is this one's to do.
///
/// # Safety
/// All threads of the block arrive together; as the kernel asks.
#[inline(always)]
pub(super) unsafe fn again_block(p: &SelectParams, b: &Buffers, block: u32) {
    let mut of_launch = block * TILES_AGAIN;
    let behind = (of_launch + TILES_AGAIN).min(p.tiles);
    while of_launch < behind {
        let tile = p.first_tile + of_launch;
        // SAFETY: all threads are here, for one tile after another, and the table is there by the kernel's contract.
        // The barrier keeps a tile's words of shared memory from the next one's.
        unsafe {
            if device::thread() < WARP {
                Job::find::<true>(p, b, tile);
            }
            device::barrier();
            let job = Job::known();
            if job.is_wanted() {
                run::<true>(p, b, tile, &job);
            }
            of_launch += job.done();
            device::barrier();
        }
    }
}

/// # Safety
/// All threads of the block arrive together, after the barrier after [`Job::find`]; as the kernel asks.
#[inline(always)]
unsafe fn run<const AGAIN: bool>(p: &SelectParams, b: &Buffers, tile: u32, job: &Job) {
    // SAFETY: the caller brings all threads of the block here, and the kernel's contract covers the buffers.
    unsafe {
        if job.is_half() {
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
    let order = job.order::<HALF>();
    // SAFETY: the caller's; each tile is one block's, and the tile's words of shared memory were used a barrier ago.
    let listed = unsafe { Listed::new(keep::<HALF, AGAIN>(p, b, job)) };
    let look = |place: u32, is: bool| {
        // SAFETY: the tile was copied there.
        let raw = unsafe { at_place::<HALF>(place) };
        let key = order.key(raw);
        let is = is && key >= job.floor;
        // SAFETY: all lanes come here together.
        let (all, open) = unsafe { (device::ballot(is), device::ballot(is && key < job.sure)) };
        Seen { place, raw, key, all, open }
    };
    let (mut candidates, mut band) = (0, 0);
    let mut only = Seen { place: 0, raw: Raw(0), key: 0, all: 0, open: 0 };
    // SAFETY: all lanes are here, as the list is the warp's.
    unsafe {
        if listed.is_short() {
            only = look(listed.only(), lane < listed.count);
            (candidates, band) = (only.all.count_ones(), only.open.count_ones());
        } else {
            listed.each::<true>(|place, is| {
                let seen = look(place, is);
                candidates += seen.all.count_ones();
                band += seen.open.count_ones();
            });
        }
        if lane == 0 {
            // What was found and is no candidate has the key below.
            device::shared_store_pair::<COUNTS>(warp, [candidates | band << 16, listed.count - candidates]);
        }
        device::barrier();
        if warp == 0 {
            share::<AGAIN>(p, b, tile);
        }
        device::barrier();
    }
    // SAFETY: nothing writes the words before the next tile.
    let [mut at, mut in_band, bins, shift] = unsafe { device::shared_load_row::<OUTPUTS>(warp) };
    let (is_stored, histogram) = (at != NOWHERE, p.histograms + job.index * HISTOGRAM_WORDS);
    let bin = |key: u32| (key - job.base) >> shift;
    // SAFETY: all threads are here, or all lanes: bins are the block's, and lists a warp's. The room was given to this
    // tile, and no two lanes have one place in it. The histogram is the segment's, and touched by atomic operations
    // alone.
    unsafe {
        if bins != 0 {
            clear_bins(bins);
            device::barrier();
        }
        if listed.is_short() {
            if is_stored {
                only.store::<HALF>(p, b, at, in_band);
            }
            if bins == 0 {
                if only.open != 0 {
                    add_open(p, b, histogram, only.open, bin(only.key));
                }
                return;
            }
            if only.open & 1 << lane != 0 {
                device::bin_add(bin(only.key), 1);
            }
        } else {
            listed.each::<false>(|place, is| {
                let seen = look(place, is);
                if is_stored {
                    seen.store::<HALF>(p, b, at, in_band);
                }
                at = at.wrapping_add(seen.all.count_ones());
                in_band = in_band.wrapping_add(seen.open.count_ones());
                if bins != 0 {
                    if seen.open & 1 << lane != 0 {
                        device::bin_add(bin(seen.key), 1);
                    }
                } else if seen.open != 0 {
                    add_open(p, b, histogram, seen.open, bin(seen.key));
                }
            });
            if bins == 0 {
                return;
            }
        }
        device::barrier();
        add_bins(p, b, histogram, bins);
    }
}

/// What the lanes of a warp see of a list: an element each,
#[derive(Clone, Copy)]
struct Seen {
    place: u32,
    raw: Raw,
    key: u32,
    /// and a bit per lane: whether it is a candidate, and whether it is one of the band.
    all: u32,
    open: u32,
}

impl Seen {
    /// Stores the candidates from `at` on, and those of the band once more.
    ///
    /// # Safety
    /// All lanes arrive together. There is room, and it is this warp's.
    #[inline(always)]
    unsafe fn store<const HALF: bool>(&self, p: &SelectParams, b: &Buffers, at: u32, in_band: u32) {
        let bit = 1 << (device::thread() % WARP);
        if self.all & bit == 0 {
            return;
        }
        let at = at + (self.all & (bit - 1)).count_ones();
        // SAFETY: the caller ensures that the room is there, and this warp's.
        unsafe {
            store::<HALF>(b, p.values, at, self.raw);
            *b.word(p.places).cast::<u16>().add(at as usize) = self.place as u16;
            if self.open & bit != 0 {
                store::<HALF>(b, p.band, in_band + (self.open & (bit - 1)).count_ones(), self.raw);
            }
        }
    }
}

/// Counts a bin of each lane that has a bit in `open`, which is not 0.
///
/// # Safety
/// All lanes arrive together. The histogram is there, and touched by atomic operations alone.
#[inline(always)]
unsafe fn add_open(p: &SelectParams, b: &Buffers, histogram: u32, open: u32, bin: u32) {
    let from_here = open >> (device::thread() % WARP);
    // SAFETY: the caller brings all lanes here, and only atomics touch the histogram.
    unsafe {
        // Ties would be 32 operations on one word: those of the last lane's bin are one.
        let is_same = bin == device::shuffle(bin, !open.leading_zeros());
        let same = open & device::ballot(is_same);
        let own = if from_here == 1 { same.count_ones() } else { from_here & u32::from(!is_same) };
        if own != 0 {
            add_directly(p, b, histogram, bin, own);
        }
    }
}

/// Stores a candidate: a half takes half a word.
///
/// # Safety
/// There is room, and it is this lane's.
#[inline(always)]
unsafe fn store<const HALF: bool>(b: &Buffers, array: u32, at: u32, raw: Raw) {
    // SAFETY: the caller ensures that the room is there, and this lane's.
    unsafe {
        let array = b.word(array);
        if HALF {
            *array.cast::<u16>().add(at as usize) = raw.0 as u16;
        } else {
            *array.add(at as usize) = raw.0;
        }
    }
}
