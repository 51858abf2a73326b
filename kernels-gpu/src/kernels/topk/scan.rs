//! Where each tile's entries begin: sums of the counts of those before.

use super::{Buffers, WARPS, prefix};
use crate::device::{self, WARP};
use crate::params::{SelectParams, THREADS};

/// Tiles of a thread at a time.
const AHEAD: u32 = 4;

kernel! {
    /// Makes of each tile's two counts the sums of those of the tiles before, and leaves the sums of all behind the last.
    ///
    /// # Arguments
    /// * `p`; `workspace`: `counts` are changed, 2 words a tile and 2 more.
    /// * `input`, `residual`, `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// One block; 4 tiles a thread at a time.
    ///
    /// # Shared memory
    /// 32 words.
    ///
    /// # Launch contract
    /// One block of 256 threads.
    ///
    /// # Traffic
    /// 8 bytes a tile read, 8 written. Uncoalesced: a thread's four tiles lie side by side, so that each of its loads
    /// shares a sector with the next.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_scan(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        // SAFETY: the room's words are there.
        if p.round > 0 && unsafe { *b.word(p.room + 3) } == 0 {
            return;
        }
        let (thread, lane, warp) = (device::thread(), device::thread() % WARP, device::thread() / WARP);
        let mut before = [0; 2];
        let (mut first, mut row) = (0, 0);
        while first < p.all_tiles {
            let mut counts = [[0; 2]; AHEAD as usize];
            let mut mine = [0; 2];
            for k in 0..AHEAD {
                let tile = first + thread * AHEAD + k;
                if tile < p.all_tiles {
                    // SAFETY: the tile's counts are there, two words that are aligned as one of twice the size.
                    let both = unsafe { *b.word(p.counts + 2 * tile).cast::<u64>() };
                    counts[k as usize] = [both as u32, (both >> 32) as u32];
                }
                for which in 0..2 {
                    mine[which] += counts[k as usize][which];
                }
            }
            let mut up_to = [0; 2];
            for which in 0..2 {
                // SAFETY: all threads are here: the tiles are as many for all. Two pairs of rows in turn.
                unsafe {
                    up_to[which] = prefix(mine[which]);
                    if lane == WARP - 1 {
                        device::shared_store(row + which as u32 * WARPS + warp, up_to[which]);
                    }
                }
            }
            // SAFETY: as above.
            unsafe { device::barrier() };
            let mut start = [0; 2];
            for which in 0..2 {
                start[which] = before[which] + up_to[which] - mine[which];
                for other in 0..WARPS {
                    // SAFETY: nothing writes this row before the next barrier.
                    let sum = unsafe { device::shared_load(row + which as u32 * WARPS + other) };
                    start[which] += if other < warp { sum } else { 0 };
                    before[which] += sum;
                }
            }
            for k in 0..AHEAD {
                let tile = first + thread * AHEAD + k;
                if tile < p.all_tiles {
                    let both = u64::from(start[0]) | u64::from(start[1]) << 32;
                    // SAFETY: the tile's counts are this thread's.
                    unsafe { *b.word(p.counts + 2 * tile).cast::<u64>() = both };
                }
                for which in 0..2 {
                    start[which] += counts[k as usize][which];
                }
            }
            first += THREADS * AHEAD;
            row ^= 2 * WARPS;
        }
        if thread < 2 {
            // SAFETY: the words behind the last tile's are there.
            unsafe { *b.word(p.counts + 2 * p.all_tiles + thread) = if thread == 0 { before[0] } else { before[1] } };
        }
    }
}
