//! What the filter finds in a tile: how a lane's candidates become the block's, in their order.
//!
//! Few elements are candidates, and the work on an element is what a filter's time goes to. So a tile is copied to
//! shared memory as wide as can be; each lane reads 32 elements beside each other there, and compares each once, by two
//! instructions. That a lane's elements are neighbours makes the order of candidates that of lanes: they are put on a
//! list, and all that follows goes over the list, a lane each.

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

/// Where a byte of what is copied lies in the tile: a few are left out after each 128.
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
    // SAFETY: the caller ensures that the tile was copied there.
    Raw(unsafe {
        let at = device::tile_address(padded(place << size_log2(HALF)));
        if HALF { device::tile_load_half(at) } else { device::tile_load_word(at) }
    })
}

/// Copies the tile to the block's shared memory, and gives a bit for each of the lane's elements that is a candidate or
/// of the key below, the first one's highest.
///
/// # Safety
/// All lanes arrive together; the tile's elements are bound, and no other block's. A barrier ago was the last use of
/// the tile.
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

/// Copies a warp's elements, all of which are there: 16 bytes per lane from `source` on, which is the lane's, to the
/// lane's `at`.
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
            // SAFETY: the caller ensures that the chunks are bound and aligned.
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

/// Copies a warp's elements one by one, and what is not there as zero. `source` is where the warp's first one is, or
/// would be; slot `j` of a lane is the element `32 j` after `first`.
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

/// A warp's elements that were found, as they are listed: in their order, as many at a time as there is room for.
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

/// What of a lane is yet to be listed.
struct Left {
    found: u32,
    /// Where its next entry is to be,
    at: u32,
    /// and the place in front of which all was listed.
    place: u32,
}

impl Left {
    /// Lists it; with `SOME`, as far as there is room, and what is left goes after that.
    ///
    /// # Safety
    /// The entries are this lane's until the next barrier.
    #[inline(always)]
    unsafe fn list<const SOME: bool>(&mut self, list: u32) {
        while self.found != 0 && (!SOME || self.at < list + 2 * ROOM) {
            let by = self.found.leading_zeros() + 1;
            self.found = device::shift_out(self.found, by);
            self.place += by;
            // SAFETY: the caller ensures that the entry is this lane's.
            unsafe { device::list_store(self.at, self.place - 1) };
            self.at += 2;
        }
        if SOME {
            self.at -= 2 * ROOM;
        }
    }
}

impl Listed {
    /// # Safety
    /// All lanes arrive together.
    #[inline(always)]
    pub(super) unsafe fn new(found: u32) -> Self {
        // SAFETY: the caller brings all lanes here.
        unsafe {
            let up_to = prefix(found.count_ones());
            Self { found, up_to, count: device::shuffle(up_to, WARP - 1) }
        }
    }

    /// The list's address, and what is to be listed of this lane.
    #[inline(always)]
    fn begin(&self) -> (u32, Left) {
        let list = device::list_address(device::thread() / WARP * LISTED);
        let at = list + 2 * (self.up_to - self.found.count_ones());
        (list, Left { found: self.found, at, place: device::thread() * SLOTS as u32 })
    }

    /// Past the end the list is read as well: there it has a place that is the warp's.
    ///
    /// # Safety
    /// All lanes arrive together; as many entries as the list has room for, or `count`, are listed.
    #[inline(always)]
    unsafe fn end(list: u32, count: u32) {
        let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
        // SAFETY: the entry is no other lane's.
        unsafe {
            device::list_store(list + 2 * lane + 2 * count, warp * WARP_TILE);
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
        let (list, mut left) = self.begin();
        // SAFETY: the caller brings all lanes here, and the list is this warp's.
        unsafe {
            left.list::<false>(list);
            Self::end(list, self.count);
            device::list_load(list + 2 * (device::thread() % WARP))
        }
    }

    /// Calls `visit` with the place in the tile of each element that is listed, one a lane, and whether there is one;
    /// if not, a place that is the warp's. After the `FIRST` time the list is there, if all are listed together.
    ///
    /// # Safety
    /// As [`Listed::only`].
    #[inline(always)]
    pub(super) unsafe fn each<const FIRST: bool>(&self, mut visit: impl FnMut(u32, bool)) {
        let lane = device::thread() % WARP;
        let (list, mut left) = self.begin();
        let are_many = self.count > ROOM;
        let mut first = 0;
        loop {
            let count = (self.count - first).min(ROOM);
            // SAFETY: all lanes are here, as the counts are the warp's.
            unsafe {
                if are_many {
                    left.list::<true>(list);
                    Self::end(list, count);
                } else if FIRST {
                    left.list::<false>(list);
                    Self::end(list, count);
                }
            }
            let (mut entry, mut at) = (lane, list + 2 * lane);
            while entry - lane < count {
                // SAFETY: the entry was written a barrier ago.
                visit(unsafe { device::list_load(at) }, entry < count);
                entry += WARP;
                at += 2 * WARP;
            }
            first += ROOM;
            if first >= self.count {
                return;
            }
            // SAFETY: all lanes are here.
            unsafe { device::warp_barrier() };
        }
    }
}
