//! The filter: the one read of the gradient.

use super::find::{Rows, keep, look, share};
use super::histogram::{add_bin, add_bins, add_directly, clear_bins};
use super::sample::guessed;
use super::{Buffers, Extent, Raw, WARP_TILE, WARPS, sums};
use crate::arith::topk::{digit_shift, rounds_of};
use crate::device::{self, WARP};
use crate::params::{HISTOGRAM_WORDS, NOWHERE, PIECE, SelectParams, TILE, TILES_AGAIN, room, segment, state};

/// Words of shared memory: 8 of the table and 8 of the state, then 2 counts a warp, then the first candidate.
pub(super) const COUNTS: u32 = 16;
const FIRST: u32 = COUNTS + 2 * WARPS;
const INDEX: u32 = FIRST + 1;

/// A tile with no more in the band adds them to the histogram one by one.
const FEW: u32 = 128;

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
    /// A block takes a tile of 8192, a warp 1024 of it; slot `j` of lane `i` is the warp's element `32 j + i`. Candidates are
    /// shared out anew: lane `i` stores those before which the warp has `i`, `i + 32` and so on.
    ///
    /// # Shared memory
    /// 34 words, 2048 of bins, and the tile's 8192.
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
        unsafe {
            let job = Job::load::<false>(&p, &b, p.first_tile + device::block());
            if job.unsampled {
                // All of it is left to the sketch.
                if device::thread() < 4 {
                    *b.word(p.info + 4 * job.tile + device::thread()) = 0;
                }
                return;
            }
            run::<false>(&p, &b, &job);
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
                device::shared_store(FIRST, *b.word(p.room + room::SKETCHED));
            }
            device::barrier();
            device::shared_load(FIRST) != 0
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
        // SAFETY: all threads are here, for one tile after another, and the table is there by the kernel's contract. The
        // barrier keeps a tile's words of shared memory from the next one's.
        unsafe {
            let job = Job::load::<true>(p, b, p.first_tile + of_launch);
            if job.again == 1 {
                run::<true>(p, b, &job.again(p, b));
                of_launch += 1;
            } else {
                // To the segment's last tile.
                of_launch += (job.tiles - job.tile_of_segment).min(behind - of_launch);
            }
            device::barrier();
        }
    }
}

/// # Safety
/// All threads of the block arrive together; as the kernel asks.
#[inline(always)]
unsafe fn run<const AGAIN: bool>(p: &SelectParams, b: &Buffers, job: &Job) {
    // SAFETY: whether a tile is full is the same in all threads.
    unsafe {
        if job.extent.is_full() {
            filter::<true, AGAIN>(p, b, job);
        } else {
            filter::<false, AGAIN>(p, b, job);
        }
    }
}

/// What a block has to do.
#[derive(Clone, Copy)]
pub(super) struct Job {
    tile: u32,
    pub(super) index: u32,
    pub(super) extent: Extent,
    /// Keys from which on elements are candidates, and are sure, in this tile;
    pub(super) floor: u32,
    pub(super) sure: u32,
    /// and those between which the last kept one is, in the whole segment.
    base: u32,
    top: u32,
    fixed: bool,
    unsampled: bool,
    again: u32,
    tile_of_segment: u32,
    tiles: u32,
}

impl Job {
    /// # Safety
    /// All threads arrive together, with one tile. Table and guesses are there, or with `AGAIN` states.
    #[inline(always)]
    unsafe fn load<const AGAIN: bool>(p: &SelectParams, b: &Buffers, tile: u32) -> Self {
        let thread = device::thread();
        // SAFETY: the caller's. A few sectors, read once a block.
        unsafe {
            let mut index = 0;
            if p.segments > 1 {
                if thread == 0 {
                    device::shared_store(INDEX, b.segment_of(p, tile));
                }
                device::barrier();
                index = device::shared_load(INDEX);
            }
            if AGAIN && thread < 16 {
                let from = if thread < 8 { 0 } else { p.states - 8 };
                device::shared_store(thread, *b.word(from + index * segment::WORDS + thread));
            }
            if !AGAIN && thread < WARP {
                // There is no state yet.
                let mut word = 0;
                if thread < 8 {
                    word = *b.word(index * segment::WORDS + thread);
                }
                let [low, high] = guessed(p, b, index);
                word = if thread == 8 + state::FLOOR { low } else { word };
                word = if thread == 8 + state::SURE { high } else { word };
                if thread < 16 {
                    device::shared_store(thread, word);
                }
            }
            device::barrier();
            let table = |word: u32| device::shared_load(word);
            let state = |word: u32| device::shared_load(8 + word);
            let fixed = table(segment::FIXED) != 0;
            let floor = if fixed { table(segment::FLOOR) } else { !state(state::FLOOR) };
            let sure = if fixed { floor } else { state(state::SURE).max(floor) };
            let (start, elements) = (table(segment::START), table(segment::ELEMENTS));
            let tile_of_segment = tile - table(segment::FIRST_TILE);
            let extent = Extent::new(start, elements, tile_of_segment);
            let tiles = (start % WARP + elements).div_ceil(TILE);
            let (again, unsampled) = (state(state::AGAIN), table(segment::UNSAMPLED) != 0);
            let (base, top) = (floor, sure);
            Self { tile, index, extent, floor, sure, base, top, fixed, unsampled, again, tile_of_segment, tiles }
        }
    }

    /// As the sketch has it: the tile's own keys.
    ///
    /// # Safety
    /// All lanes arrive together. State, counts and their sums are there.
    #[inline(always)]
    unsafe fn again(self, p: &SelectParams, b: &Buffers) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let own = p.states + self.index * state::WORDS;
            // Entries of the sketch in the segment's tiles: up to this one, of the higher rank's key, and before it, of the lower's.
            let [high, low] = sums::between(p, b, true, self.tile - self.tile_of_segment, self.tile);
            let high = high + *b.word(p.counts + 2 * self.tile);
            let floor = self.base + u32::from(low >= *b.word(own + state::TIES));
            let sure = self.top - u32::from(high <= *b.word(own + state::HIGH_RANK));
            Self { floor, sure: sure.max(floor), ..self }
        }
    }
}

/// # Safety
/// All threads of the block arrive together; as the kernel asks.
#[inline(always)]
unsafe fn filter<const FULL: bool, const AGAIN: bool>(p: &SelectParams, b: &Buffers, job: &Job) {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    let order = p.order();
    // SAFETY: all threads are here, and each tile is one block's; the tile's words were used a barrier ago.
    let found = unsafe { keep::<FULL, AGAIN>(p, b, job) };
    // SAFETY: a lane reads its own elements.
    let own = unsafe { look::<AGAIN>(order, job, found) };
    // SAFETY: all threads are here.
    let counts = unsafe { share(&own) };
    // The band is the first range in which the last kept key is looked for: it is counted on the way.
    let counts_band = job.base < job.top && counts.band != 0;
    let (mut shift, mut bins) = (0, 0);
    if counts_band {
        shift = digit_shift(job.top - job.base, rounds_of(job.top - job.base));
        // Few are added to the histogram itself: to look through the block's bins would take longer.
        if counts.band > FEW {
            bins = ((job.top - job.base - 1) >> shift) + 1;
        }
    }
    // SAFETY: the bins are used behind the next barrier, and were a barrier ago.
    unsafe { clear_bins(bins) };
    // SAFETY: all threads are here; the state and the room are there, and touched by atomic operations alone.
    let room = unsafe {
        if device::thread() == 0 {
            device::shared_store(FIRST, reserve::<AGAIN>(p, b, job, counts.candidates));
            let at = p.states + job.index * state::WORDS;
            device::atomic_add(b.word(at + state::COUNT_SURE), counts.candidates - counts.band);
            device::atomic_add(b.word(at + state::COUNT_BAND), counts.band);
            if !AGAIN {
                device::atomic_add(b.word(at + state::COUNT_BELOW), counts.below);
            }
        }
        device::barrier();
        device::shared_load(FIRST)
    };
    if device::thread() < 4 {
        let below = if AGAIN { u32::from(job.sure < job.top) } else { counts.below };
        let info = [room, counts.candidates, counts.band, below];
        let mut word = info[0];
        for k in 1..4 {
            word = if device::thread() == k { info[k as usize] } else { word };
        }
        // SAFETY: the tile's info is this block's.
        unsafe { *b.word(p.info + 4 * job.tile + device::thread()) = word };
    }
    let histogram = p.histograms + job.index * HISTOGRAM_WORDS;
    // The same in all lanes: nothing is to be stored, and nothing to be counted.
    if own.candidates != 0 && (room != NOWHERE || counts_band) {
        let at = room.wrapping_add(counts.candidates_before);
        let mut in_band = room.wrapping_add(counts.band_before);
        // SAFETY: all lanes are here.
        let rows = unsafe { Rows::new(own.slots) };
        let mut first = 0;
        while first < own.candidates {
            let rank = first + lane;
            let is = rank < own.candidates;
            // SAFETY: all lanes are here, as the candidates are the warp's. Behind the last of them a lane reads what no one uses.
            let (place, raw) = unsafe {
                let place = warp * WARP_TILE + rows.find(rank);
                (place, Raw(device::tile_load(place)))
            };
            let key = order.key(raw);
            let is_open = is && key < job.sure;
            // SAFETY: as above; the room was given to this tile, and no two lanes have one place.
            unsafe {
                let open = device::ballot(is_open);
                if room != NOWHERE && is {
                    b.store(p, p.values, at + rank, raw);
                    *b.word(p.places).cast::<u16>().add((at + rank) as usize) = place as u16;
                    if is_open {
                        b.store(p, p.band, in_band + (open & ((1 << lane) - 1)).count_ones(), raw);
                    }
                }
                in_band = in_band.wrapping_add(open.count_ones());
                let bin = (key - job.base) >> shift;
                if bins != 0 {
                    if is_open {
                        device::bin_add(bin, 1);
                    }
                } else if counts_band {
                    add_bin(histogram, is_open, bin, |histogram, bin, count| add_directly(b, histogram, bin, count));
                }
            }
            first += WARP;
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

/// Room for a tile's candidates, or nowhere.
///
/// # Safety
/// The words that count the room are there, and touched by atomic operations alone.
#[inline(always)]
unsafe fn reserve<const AGAIN: bool>(p: &SelectParams, b: &Buffers, job: &Job, candidates: u32) -> u32 {
    if candidates == 0 {
        return 0;
    }
    let (word, begin, capacity) =
        if AGAIN { (room::AGAIN, p.capacity, p.capacity_again) } else { (room::FIRST, 0, p.capacity) };
    // SAFETY: the caller's.
    unsafe {
        // Where all elements are candidates, storing them saves nothing, and takes the room of others.
        if !AGAIN && job.floor == 0 {
            if !job.fixed {
                device::atomic_add(b.word(p.room + room::NONE_LEFT), 1);
            }
            return NOWHERE;
        }
        // The count cannot wrap: a tile adds its elements at most, and a piece, once.
        let pieces = candidates.div_ceil(PIECE) * PIECE;
        let first = device::atomic_add(b.word(p.room + word), pieces);
        if first + pieces <= capacity {
            return begin + first;
        }
        if !job.fixed {
            device::atomic_add(b.word(p.room + room::NONE_LEFT), 1);
        }
        NOWHERE
    }
}
