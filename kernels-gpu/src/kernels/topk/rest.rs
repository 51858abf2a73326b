//! All that lies between the filter and writing the entries, in one launch.
//!
//! A pass over what the filter left needs all of the pass before, and most of what a launch costs is that no one works
//! meanwhile; those that are there for a wrong sample cost it as well when the sample was right. Here a block takes one
//! piece of a pass after another, by counting them. When none is left it waits until all of them are done, and so knows
//! what the pass found, and which pass comes next.
//!
//! That a block waits for others asks for one thing of the device: that blocks which run go on doing so. Pieces are
//! given out in order, so that whoever has one runs, and those that have not begun are waited for by nobody: it does
//! not matter how many blocks there are at a time. GPUs from compute capability 7.0 on do so, and WebGPU does not
//! promise it: elsewhere each pass is a launch.
//!
//! Blocks of the next launch, where it may begin while this one drains, take no room from these: they come once all of
//! these have begun. Those of this launch that come early wait for the launch before it, and for no piece.

use super::count::keep_block;
use super::filter::again_block;
use super::histogram::count_block;
use super::sketch::sketch_block;
use super::{Buffers, WARPS};
use crate::device;
use crate::params::{HISTOGRAM_WORDS, PATIENCE, SelectParams, TILES_AGAIN, room, select_flags, state, tiles_per_warp};

/// Where a block's threads are told which piece is theirs, in shared memory that nothing else uses.
const PIECE: u32 = device::SHARED_WORDS as u32 - 1;

/// Where they are told whether a pass was done in time. Likewise.
const DONE: u32 = PIECE - 1;

/// How often a waiting block looks whether another one gave up.
const LOOKS: u32 = 1 << 12;

/// What a pass does.
mod pass {
    /// Narrows down, and counts keys of what is left.
    pub(super) const KEYS: u32 = 0;
    /// Sketches the segments whose sample was wrong, and counts the keys of their sketches.
    pub(super) const SKETCH: u32 = 1;
    /// Narrows down, and counts the sketch's entries of the two keys between which the last kept one is.
    pub(super) const TIED: u32 = 2;
    /// Filters again.
    pub(super) const AGAIN: u32 = 3;
    /// Narrows down, and counts what is kept.
    pub(super) const LAST: u32 = 4;
}

kernel! {
    /// Narrows down which key is the last kept one until it is known, and counts what is kept of each tile.
    ///
    /// # What
    /// What [`topk_sketch`](super::sketch), [`topk_histogram`](super::histogram), [`topk_count`](super::count) and
    /// [`topk_filter_again`](super::filter) do in launches of their own, of which it leaves out those that have nothing
    /// to do.
    ///
    /// # Arguments
    /// As theirs, but `p.states`, `p.histograms`: the first of each; `p.next`: where the states are left. The room's
    /// words count pieces.
    ///
    /// # Thread mapping
    /// A block takes pieces of passes: up to 64 tiles as [`topk_histogram`](super::histogram) has them, or 8 as
    /// [`topk_filter_again`](super::filter).
    ///
    /// # Shared memory
    /// As [`topk_filter`](super::filter), and two words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, any number of them: as many as there are pieces do all at once where the sample was
    /// right. One launch for all tiles, which are bound at once. The device lets blocks that run go on.
    ///
    /// A block that has looked [`PATIENCE`] times, in vain, whether a pass is done sets the room's word
    /// [`room::STUCK`], and all blocks return. That takes a workspace which another launch changes meanwhile, or which
    /// the sample did not prepare. [`topk_emit`](super::emit) then writes nothing.
    ///
    /// # Traffic
    /// As theirs; two atomic operations a piece, and a word that each block that waits reads again and again.
    ///
    /// # Determinism
    /// As theirs.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_rest(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        let states = [p.states, p.states + p.segments * state::WORDS];
        let histograms = p.segments * HISTOGRAM_WORDS;
        // Round 0, as `SelectPlan::narrowing` has it on the host.
        let mut q = SelectParams {
            round: 0,
            states: states[1],
            next: states[0],
            counted: p.histograms,
            histograms: p.histograms + histograms,
            zeroed: p.histograms + 2 * histograms,
            ..p
        };
        let (mut kind, mut counters) = (pass::KEYS, p.room + room::PIECES);
        loop {
            let of_piece = if kind == pass::SKETCH || kind == pass::AGAIN { TILES_AGAIN } else { WARPS * tiles_per_warp(p.tiles) };
            let pieces = p.tiles.div_ceil(of_piece);
            // SAFETY: all threads are here, with one pass; its buffers are there by the kernel's contract, and what it
            // needs of the passes before is done.
            unsafe {
                loop {
                    let piece = take(&b, counters);
                    if piece >= pieces {
                        break;
                    }
                    if kind == pass::KEYS {
                        count_block(&q, &b, piece);
                    } else if kind == pass::SKETCH {
                        sketch_block(&q, &b, piece);
                    } else if kind == pass::AGAIN {
                        again_block(&q, &b, piece);
                    } else {
                        keep_block(&q, &b, piece);
                    }
                    give(&b, counters + 1);
                }
                if kind == pass::LAST {
                    return;
                }
                if !wait(&p, &b, counters + 1, pieces) {
                    return;
                }
            }
            counters += 2;
            // SAFETY: the words are there, and what wrote them is done.
            let (is_wrong, goes_on) =
                unsafe { (*b.word(p.room + room::SKETCHED) != 0, *b.word(p.room + room::GOES_ON + q.round) != 0) };
            if kind == pass::KEYS && q.round == 0 && is_wrong {
                kind = pass::SKETCH;
                continue;
            }
            if kind == pass::TIED {
                kind = pass::AGAIN;
                // By the states that the pass left, and the histogram that it would have counted in.
                q.states = q.next;
                continue;
            }
            // The next round.
            q.round += 1;
            let from = q.round % 2;
            q.states = if from == 0 { states[1] } else { states[0] };
            q.next = if from == 0 { states[0] } else { states[1] };
            let counted = q.counted;
            q.counted = q.histograms;
            q.histograms = q.zeroed;
            q.zeroed = counted;
            q.flags = p.flags;
            if is_wrong && q.round == p.rounds {
                kind = pass::TIED;
                q.flags |= select_flags::OF_SKETCH;
            } else if goes_on && q.round < 2 * p.rounds {
                kind = pass::KEYS;
            } else {
                kind = pass::LAST;
                q.next = p.next;
            }
        }
    }
}

/// The next piece of a pass, of which there may be none.
///
/// # Safety
/// All threads of the block arrive together; the word is there, and touched by atomic operations alone.
#[inline(always)]
unsafe fn take(b: &Buffers, word: u32) -> u32 {
    // SAFETY: the caller brings all threads here, and only atomics touch the word.
    unsafe {
        if device::thread() == 0 {
            device::shared_store(PIECE, device::atomic_add(b.word(word), 1));
        }
        device::barrier();
        device::shared_load(PIECE)
    }
}

/// Says that a piece is done, to those that wait.
///
/// # Safety
/// As [`take`].
#[inline(always)]
unsafe fn give(b: &Buffers, word: u32) {
    // SAFETY: the caller's. What the block did comes before the barrier, and that before the fence: those who then read
    // the word, and fence, find it done.
    unsafe {
        device::barrier();
        if device::thread() == 0 {
            device::fence();
            device::atomic_add(b.word(word), 1);
        }
    }
}

/// Waits until so many pieces are done, and tells whether they were in time.
///
/// # Safety
/// As [`take`]; whoever has a piece runs.
#[inline(always)]
unsafe fn wait(p: &SelectParams, b: &Buffers, word: u32, pieces: u32) -> bool {
    // SAFETY: the caller brings all threads here, and both words are there and touched by atomic operations alone. The
    // shared word is stored between two barriers of `take` or of this function, and read between two others.
    unsafe {
        if device::thread() == 0 {
            let stuck = b.word(p.room + room::STUCK);
            let (mut looks, mut is_done) = (0, false);
            while !is_done && looks < PATIENCE {
                is_done = device::load_strong(b.word(word)) >= pieces;
                looks += 1;
                if !is_done && looks % LOOKS == 0 && device::load_strong(stuck) != 0 {
                    looks = PATIENCE;
                }
            }
            if !is_done {
                device::atomic_max(stuck, 1);
            }
            device::fence();
            device::shared_store(DONE, u32::from(is_done));
        }
        device::barrier();
        device::shared_load(DONE) != 0
    }
}
