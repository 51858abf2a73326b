//! What was sent, taken off a residual that still holds it.

use super::{Buffers, Extent, SLOTS, Sent, WARP_TILE};
use crate::arith::topk::NO_KEY;
use crate::device::{self, WARP};
use crate::params::{SelectParams, THREADS, segment, select_flags};

kernel! {
    /// Takes off a residual what was sent of it last: what the next selection would do as it reads.
    ///
    /// # What
    /// An element of a segment becomes zero where its key is above the segment's `SENT_KEY`, or that and its index at
    /// most `SENT_INDEX`. Nothing else changes. With `FORGETS`, in a launch after that, nothing is left to be taken
    /// off.
    ///
    /// # Arguments
    /// * `p`: `first`, `bound`, `first_tile`, `segments` and `flags` are read.
    /// * `residual`: `p.bound` f32, from element `p.first` on. Read, and written where an element becomes zero that was
    ///   not.
    /// * `workspace`: the table; of each segment its start, elements, first tile, and what was sent of it. Read; with
    ///   `FORGETS` what was sent is written, and nothing read.
    /// * `input`, `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block takes a tile of 8192 elements, a warp 1024 of them; slot `j` of a lane is 32 elements after slot
    /// `j - 1`, so that every load of a warp is consecutive. With `FORGETS` a thread takes a segment.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each tile from `p.first_tile` on, all of whose elements are bound; with
    /// `FORGETS`, for each 256 segments from that number on.
    ///
    /// # Traffic
    /// 4 bytes per element of the segments. Uncoalesced: a sector of 32 bytes per element that becomes zero, where
    /// those are sparse; all would be as much again as was read.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Edge cases
    /// Minus zero that was sent becomes zero. All NaN have one key.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above; no two segments share an
    /// element.
    fn topk_settle(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        if p.has(select_flags::FORGETS) {
            let index = p.first_tile + device::block() * THREADS + device::thread();
            if index < p.segments {
                // SAFETY: the segment is in the table, and this thread's.
                unsafe {
                    *b.word(index * segment::WORDS + segment::SENT_KEY) = NO_KEY;
                    *b.word(index * segment::WORDS + segment::SENT_INDEX) = 0;
                }
            }
            return;
        }
        let tile = p.first_tile + device::block();
        // SAFETY: the table is there, by the kernel's contract.
        let (sent, extent) = unsafe {
            let index = b.segment_of(&p, tile);
            let word = |at: u32| *b.word(index * segment::WORDS + at);
            let sent = Sent { key: word(segment::SENT_KEY), index: word(segment::SENT_INDEX) };
            let of_segment = tile - word(segment::FIRST_TILE);
            (sent, Extent::new(word(segment::START), word(segment::ELEMENTS), of_segment))
        };
        let first = extent.base + device::thread() / WARP * WARP_TILE + device::thread() % WARP;
        // SAFETY: the tile's elements are bound, and no other block's.
        unsafe {
            if extent.is_full() {
                settle::<true>(&p, &b, sent, 0, first);
            } else {
                settle::<false>(&p, &b, sent, extent.slots(first), first);
            }
        }
    }
}

/// This lane's elements: slot `j` is the element `32 j` after `first`, if `slots` has the bit or with `FULL`.
///
/// # Safety
/// They are bound, and no other lane's.
#[inline(always)]
unsafe fn settle<const FULL: bool>(p: &SelectParams, b: &Buffers, sent: Sent, slots: u32, first: u32) {
    let there = |slot: usize| FULL || slots >> slot & 1 != 0;
    let at = |slot: usize| (first - p.first) as usize + slot * WARP as usize;
    let mut old = [0.0f32; SLOTS];
    // All loads stand before the first use of one, so that they are in flight together.
    for slot in 0..SLOTS {
        if there(slot) {
            // SAFETY: the caller's, as the element is there.
            old[slot] = unsafe { *b.residual.add(at(slot)) };
        }
    }
    for slot in 0..SLOTS {
        let left = sent.taken_off(old[slot], first + slot as u32 * WARP);
        if there(slot) && left.to_bits() != old[slot].to_bits() {
            // SAFETY: as above.
            unsafe { *b.residual.add(at(slot)) = left };
        }
    }
}
