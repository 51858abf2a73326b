//! L R^T: what was sent.

use super::order::{InStage, LEFT, Order, RIGHT, WIDTH_LOG2};
use super::{Buffers, FOUR, Less, NO_RIGHT, ROWS, Tile, quads, stage, terms, value};
use crate::device;
use crate::params::{LOW_RANK_TOGETHER, LowRankParams, mark};

/// Rows whose entries of L are in the stage together, where more than eight of its columns are (logarithm).
const BAND_LOG2: u32 = 5;
const BAND: u32 = 1 << BAND_LOG2;
/// The largest rank.
const MOST: usize = crate::arith::powersgd::MOST_RANK as usize;

kernel! {
    /// Writes L R^T of a tile, or NaN where a factor of its matrix could not be used.
    ///
    /// # What
    /// Each entry is the sum of r products, none fused, in the order of the columns: the CPU's, bit for bit.
    ///
    /// # Arguments
    /// * `p`; `output`: `p.bound` elements, written.
    /// * `workspace`: table, tiles, marks and factors. Read.
    /// * `input`, `residual`, `status`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block a tile, a thread four columns of a quarter of the rows, where rows begin at sectors (`quads.rs`), else a
    /// column of a group of rows, in the order of `order.rs`.
    ///
    /// # Shared memory
    /// 16 KiB: 256 entries of 8 columns of L and R.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each tile from `p.first_tile` on.
    ///
    /// # Traffic
    /// An element once, and r/128 words of L and R for it. Coalesced; where rows begin at
    /// no sector, a row of a tile is in one sector more than it must be, and one in four more above rank 8.
    ///
    /// # Determinism
    /// The CPU's bits, of the same factors.
    ///
    /// # Edge cases
    /// Tiles may have fewer rows and columns.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn powersgd_expand(
        p: LowRankParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        status: *mut u32,
        output: *mut f32,
        values: *mut f32,
    ) {
        let b = Buffers { input, residual, workspace, status, output, values };
        // SAFETY: the tile is in the list, by the launch contract; all threads of the block take the same branch.
        unsafe {
            let tile = Tile::here(&p, &b);
            if p.rank <= LOW_RANK_TOGETHER {
                few(&p, &b, &tile);
            } else {
                many(&p, &b, &tile);
            }
        }
    }
}

/// The tile, of factors of at most eight columns.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
unsafe fn few(p: &LowRankParams, b: &Buffers, tile: &Tile) {
    let (matrix, order) = (tile.matrix, Order::new(tile));
    // SAFETY: all threads are here; before the barrier the stage is only written, and each word by one thread.
    let poisoned = unsafe {
        let left = (p.left + matrix.left, matrix.row_stride());
        let tall = (tile.row, WIDTH_LOG2);
        stage(p, b, left, (0, LOW_RANK_TOGETHER), tall, (LEFT, 0.0), |i| order.place(i));
        let right = (p.right + matrix.right, matrix.column_stride());
        stage(p, b, right, (0, LOW_RANK_TOGETHER), (tile.column, WIDTH_LOG2), (RIGHT, NO_RIGHT), |i| i);
        device::barrier();
        matrix.mark(p, b, mark::POISONED) != 0
    };
    if quads::fit(b, tile) {
        // SAFETY: the tile fits, and the stage holds L and R.
        unsafe { quads::expand(p, b, tile, poisoned) };
        return;
    }
    let (mut index, groups) = (0, order.groups(tile));
    while index < groups {
        let group = order.group(tile, index);
        let here = group.column(device::thread());
        if here < tile.columns() {
            // SAFETY: the stage holds eight columns of L and R.
            let sums: [f32; ROWS] = unsafe { InStage { rank: p.rank, place: index * ROWS as u32, column: here }.of() };
            for j in 0..ROWS {
                if (j as u32) < group.rows {
                    let at = group.at(tile, here) + j as u32 * group.stride;
                    // SAFETY: the element is bound, and this thread's.
                    unsafe { *b.output.add(at as usize) = value(poisoned, sums[j]) };
                }
            }
        }
        index += 1;
    }
}

/// This thread's column, of factors of more columns.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
unsafe fn many(p: &LowRankParams, b: &Buffers, tile: &Tile) {
    let matrix = tile.matrix;
    let here = tile.column + device::thread();
    // SAFETY: the caller's tile is there, and with it its matrix's marks.
    let poisoned = unsafe { matrix.mark(p, b, mark::POISONED) != 0 };
    let mut right = [NO_RIGHT; MOST];
    if here < matrix.columns {
        for k in 0..MOST {
            if (k as u32) < p.rank {
                let at = p.right + matrix.right + k as u32 * matrix.column_stride() + here;
                // SAFETY: the factor's entry is there.
                right[k] = unsafe { *b.number(at) };
            }
        }
    }
    let mut band = 0;
    while band < tile.rows() {
        // SAFETY: all threads are here; between the barriers the stage is only written, and each word by one thread.
        unsafe {
            device::barrier();
            let left = (p.left + matrix.left, matrix.row_stride());
            stage(p, b, left, (0, MOST as u32), (tile.row + band, BAND_LOG2), (0, 0.0), |i| i);
            device::barrier();
        }
        let mut row = band;
        while row < tile.rows() && row < band + BAND {
            let mut sums = [0.0; ROWS];
            for four in 0..MOST / FOUR {
                if ((four * FOUR) as u32) < p.rank {
                    let k = four * FOUR;
                    let rights = [right[k], right[k + 1], right[k + 2], right[k + 3]];
                    // SAFETY: the stage holds all columns of L.
                    sums = unsafe { terms(sums, four == 0, k as u32 * BAND + row - band, BAND, rights) };
                }
            }
            for j in 0..ROWS {
                if row + (j as u32) < tile.rows() && here < matrix.columns {
                    let at = tile.at + (row + j as u32) * matrix.columns + device::thread();
                    // SAFETY: the element is bound, and this thread's.
                    unsafe { *b.output.add(at as usize) = value(poisoned, sums[j]) };
                }
            }
            row += ROWS as u32;
        }
        band += BAND;
    }
}
