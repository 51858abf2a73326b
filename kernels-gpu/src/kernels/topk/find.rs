//! What the filter finds in a tile: how a lane's candidates become the block's, in their order.
//!
//! Few elements are candidates, and the work on an element is what a filter's time goes to. So a tile is copied to shared
//! memory as wide as can be; each lane reads 32 elements beside each other there, and compares each once, by two
//! instructions. That a lane's elements are neighbours makes the order of candidates that of lanes: they are put on a list, and
//! all that follows goes over the list, a lane each.

use super::job::{Chunk, Job};
use super::{Buffers, Raw, SLOTS, Sent, WARP_TILE, load, prefix};
use crate::device::{self, LISTED, OWN_WORDS, PADDED, WARP};
use crate::params::{SelectParams, select_flags};

/// Bytes that a lane reads of a chunk.
const CHUNK: u32 = 16;

/// Base-2 logarithm of an element's bytes.
#[inline(always)]
const fn size_log2(half: bool) -> u32 {
    if half { 1 } else { 2 }
}

/// Where a byte of what is copied lies in the tile: a few are left out behind each 128.
#[inline(always)]
const fn padded(byte: u32) -> u32 {
    byte + byte / 128 * (PADDED - 128)
}

/// As [`padded`], of a chunk of 16 bytes: an eighth more, and what is left of 16 bytes taken off.
#[inline(always)]
const fn padded_chunk(chunk: u32) -> u32 {
    (PADDED / 8 * chunk) & !(CHUNK - 1)
}

/// As [`padded`], of 64 bytes.
#[inline(always)]
const fn padded_own(own: u32) -> u32 {
    (PADDED / 2 * own) & !(CHUNK - 1)
}

const _: () = {
    let mut at = 0;
    while at < 64 {
        assert!(padded_chunk(at) == padded(CHUNK * at) && padded_own(at) == padded(4 * OWN_WORDS as u32 * at));
        at += 1;
    }
};

/// The element of a place, as shared memory holds it.
///
/// # Safety
/// The tile was copied there.
#[inline(always)]
pub(super) unsafe fn at_place<const HALF: bool>(place: u32) -> Raw {
    // SAFETY: the caller's.
    Raw(unsafe {
        let at = device::tile_address(padded(place << size_log2(HALF)));
        if HALF { device::tile_load_half(at) } else { device::tile_load_word(at) }
    })
}

/// Copies the tile to the block's shared memory, and gives a bit for each of the lane's elements that is a candidate or of the
/// key below, the first one's highest.
///
/// # Safety
/// All lanes arrive together; the tile's elements are bound, and no other block's. A barrier ago was the last use of the tile.
#[inline(always)]
pub(super) unsafe fn keep<const HALF: bool, const AGAIN: bool>(p: &SelectParams, b: &Buffers, job: &Job) -> u32 {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    let bytes = WARP_TILE << size_log2(HALF);
    let first = job.first + warp * WARP_TILE;
    let tile = warp * padded(bytes);
    let source = b.filtered::<AGAIN>(p);
    let source = source.wrapping_add((first.wrapping_sub(p.first) as usize) << size_log2(HALF));
    if job.is_whole() {
        let source = source.cast::<Chunk>().wrapping_add(lane as usize);
        let at = device::tile_address(tile + padded_chunk(lane));
        // SAFETY: the elements are bound, as the tile is full, and the chunks are aligned. The words are this warp's.
        unsafe { copy::<HALF>(source, at) };
    } else {
        let is_summed = !AGAIN && p.has(select_flags::FEEDBACK);
        // SAFETY: the caller's; the words are this warp's.
        unsafe { copy_elements::<HALF>(p, b, job, source, is_summed, first + lane, tile) };
    }
    let own = if HALF { padded_own(device::thread()) } else { PADDED * device::thread() };
    let own = device::tile_address(own);
    // SAFETY: all lanes are here; nothing writes the tile any more.
    let mut found = unsafe {
        device::warp_barrier();
        if HALF {
            device::carries_of_halves(device::tile_load_own(own), job.less)
        } else {
            let words = [device::tile_load_own(own), device::tile_load_own(own + 4 * OWN_WORDS as u32)];
            device::carries(device::carries(0, words[0], job.less), words[1], job.less)
        }
    };
    // Otherwise what is not there, which is zero, was not found.
    if job.is_all() {
        // SAFETY: the job is known.
        found = unsafe { job.extent() }.bits(first + lane * SLOTS as u32);
    }
    found
}

/// Copies a warp's elements, all of which are there: 16 bytes a lane from `source` on, which is the lane's, to the lane's `at`.
///
/// # Safety
/// They are bound, and aligned; the words of the tile are this warp's.
#[inline(always)]
unsafe fn copy<const HALF: bool>(source: *const Chunk, at: u32) {
    const ROWS: usize = 4;
    let mut chunks = [[0; 4]; 2 * ROWS];
    let rows = if HALF { ROWS } else { 2 * ROWS };
    // All loads stand before the first store, so that they are in flight together.
    for row in 0..2 * ROWS {
        if row < rows {
            // SAFETY: the caller's.
            chunks[row] = unsafe { (*source.add(row * WARP as usize)).0 };
        }
    }
    // SAFETY: as above.
    unsafe {
        device::tile_store_chunks(at, [chunks[0], chunks[1], chunks[2], chunks[3]]);
        if !HALF {
            let at = at + ROWS as u32 * padded(CHUNK * WARP);
            device::tile_store_chunks(at, [chunks[4], chunks[5], chunks[6], chunks[7]]);
        }
    }
}

/// Copies a warp's elements one by one, and what is not there as zero. `source` is where the warp's first one is, or would be; slot `j`
/// of a lane is the element `32 j` behind `first`.
///
/// # Safety
/// Those that are there are bound; the words of the tile from `tile` on are this warp's.
#[inline(always)]
unsafe fn copy_elements<const HALF: bool>(
    p: &SelectParams,
    b: &Buffers,
    job: &Job,
    source: *const u8,
    is_summed: bool,
    first: u32,
    tile: u32,
) {
    const ROWS: usize = 8;
    let lane = device::thread() % WARP;
    // SAFETY: the job is known.
    let extent = unsafe { job.extent() };
    let slots = extent.slots(first);
    let mut raws = [Raw(0); SLOTS];
    if HALF || !is_summed {
        for slot in 0..SLOTS {
            if slots >> slot & 1 != 0 {
                let at = slot * WARP as usize + lane as usize;
                // SAFETY: the element is bound.
                raws[slot] = Raw(unsafe {
                    if HALF {
                        u32::from(*source.cast::<u16>().wrapping_add(at))
                    } else {
                        *source.cast::<u32>().wrapping_add(at)
                    }
                });
            }
        }
    } else {
        // SAFETY: as above, and each tile is one block's.
        unsafe {
            let sent = Sent::load(p, b, job.index);
            raws = if extent.is_full() {
                load::<true>(p, b, sent, slots, first)
            } else {
                load::<false>(p, b, sent, slots, first)
            };
        }
    }
    let at = device::tile_address(tile + (lane << size_log2(HALF)));
    for batch in 0..SLOTS / ROWS {
        let rows = core::array::from_fn(|k| raws[batch * ROWS + k].0);
        let at = at + batch as u32 * padded((ROWS as u32 * WARP) << size_log2(HALF));
        // SAFETY: as above.
        unsafe {
            if HALF {
                device::tile_store_halves(at, rows);
            } else {
                device::tile_store_words(at, rows);
            }
        }
    }
}

/// A warp's elements that were found, as they are listed: in their order, those of as many lanes at a time as the list has room for
/// in any case.
#[derive(Clone, Copy)]
pub(super) struct Listed {
    /// The lane's, a bit each;
    found: u32,
    /// and how many there are of the lanes up to this one, and of all.
    up_to: u32,
    pub(super) count: u32,
}

/// Entries that are listed at a time, at most.
const ROOM: u32 = LISTED - WARP;
/// Lanes whose elements are listed together where not all are.
const TOGETHER: u32 = ROOM / WARP;

impl Listed {
    /// # Safety
    /// All lanes arrive together.
    #[inline(always)]
    pub(super) unsafe fn new(found: u32) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let up_to = prefix(found.count_ones());
            Self { found, up_to, count: device::shuffle(up_to, WARP - 1) }
        }
    }

    /// Lists `left` of this lane, behind those of the lanes before, without the `first` ones of these. Behind the `count` that
    /// are listed it is read as well: there it has a place that is the warp's.
    ///
    /// # Safety
    /// All lanes arrive together; the list is this warp's.
    #[inline(always)]
    unsafe fn list(&self, mut left: u32, first: u32, count: u32) {
        let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
        let list = device::list_address(warp * LISTED);
        let own = list + 2 * lane;
        let mut at = list + 2 * (self.up_to - self.found.count_ones() - first);
        let mut behind = device::thread() * SLOTS as u32;
        // SAFETY: the entries are this lane's until the barrier; all lanes are here.
        unsafe {
            device::list_store(own + 2 * count, warp * WARP_TILE);
            while left != 0 {
                let by = left.leading_zeros() + 1;
                left = device::shift_out(left, by);
                behind += by;
                device::list_store(at, behind - 1);
                at += 2;
            }
            device::warp_barrier();
        }
    }

    /// Whether there are so few that each is one lane's: see [`Listed::only`].
    #[inline(always)]
    pub(super) fn is_short(&self) -> bool {
        self.count <= WARP
    }

    /// The place in the tile of this lane's element, of a short list; where there is none, a place that is the warp's.
    ///
    /// # Safety
    /// All lanes arrive together; the list is this warp's, and the tile was copied.
    #[inline(always)]
    pub(super) unsafe fn only(&self) -> u32 {
        let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
        // SAFETY: the caller's.
        unsafe {
            self.list(self.found, 0, self.count);
            device::list_load(device::list_address(warp * LISTED) + 2 * lane)
        }
    }

    /// Calls `visit` with the place in the tile of each element that is listed, one a lane, and whether there is one; if not, a place
    /// that is the warp's. Behind the `FIRST` time the list is there, if all are listed together.
    ///
    /// # Safety
    /// As [`Listed::only`].
    #[inline(always)]
    pub(super) unsafe fn each<const FIRST: bool>(&self, mut visit: impl FnMut(u32, bool)) {
        let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
        let list = device::list_address(warp * LISTED) + 2 * lane;
        let (mut left, mut first, mut count, mut group, mut lanes) = (self.found, 0, self.count, 0, WARP);
        if self.count > ROOM {
            lanes = TOGETHER;
            left = if lane < lanes { left } else { 0 };
            // SAFETY: the count is the warp's.
            count = unsafe { device::shuffle(self.up_to, lanes - 1) };
        }
        loop {
            if FIRST || lanes != WARP {
                // SAFETY: all lanes are here.
                unsafe { self.list(left, first, count) };
            }
            let (mut entry, mut at) = (lane, list);
            while entry - lane < count {
                // SAFETY: the entry was written a barrier ago.
                visit(unsafe { device::list_load(at) }, entry < count);
                entry += WARP;
                at += 2 * WARP;
            }
            group += lanes;
            if group >= WARP {
                return;
            }
            left = if lane.wrapping_sub(group) < lanes { self.found } else { 0 };
            // SAFETY: all lanes are here, as the group is the warp's.
            unsafe {
                device::warp_barrier();
                first = device::shuffle(self.up_to, group - 1);
                count = device::shuffle(self.up_to, (group + lanes).min(WARP) - 1) - first;
            }
        }
    }
}
