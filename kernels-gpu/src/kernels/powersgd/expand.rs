//! L R^T: what was sent.

use super::{Buffers, FOUR, NO_RIGHT, ROWS, Tile, stage, terms};
use crate::arith::float::NAN_BITS;
use crate::device;
use crate::params::{LOW_RANK_TOGETHER, LowRankParams, mark};

/// Rows whose entries of the left factor are in the stage together (logarithm).
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
    /// A block a tile, a thread a column.
    ///
    /// # Shared memory
    /// 4 KiB: 32 entries of 32 columns of L.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each tile from `p.first_tile` on.
    ///
    /// # Traffic
    /// An element once, and r/128 words of L and R for it. Coalesced where rows begin at sectors.
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
                column::<{ LOW_RANK_TOGETHER as usize }>(&p, &b, &tile);
            } else {
                column::<MOST>(&p, &b, &tile);
            }
        }
    }
}

/// This thread's column, of factors of at most `K` columns.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
unsafe fn column<const K: usize>(p: &LowRankParams, b: &Buffers, tile: &Tile) {
    let matrix = tile.matrix;
    let here = tile.column + device::thread();
    // SAFETY: the caller's.
    let poisoned = unsafe { matrix.mark(p, b, mark::POISONED) != 0 };
    let mut right = [NO_RIGHT; K];
    if here < matrix.columns {
        for k in 0..K {
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
            stage(p, b, left, (0, K as u32), (tile.row + band, BAND_LOG2), (0, 0.0));
            device::barrier();
        }
        let mut row = band;
        while row < tile.rows() && row < band + BAND {
            let mut sums = [0.0; ROWS];
            for four in 0..K / FOUR {
                if ((four * FOUR) as u32) < p.rank {
                    let k = four * FOUR;
                    let rights = [right[k], right[k + 1], right[k + 2], right[k + 3]];
                    // SAFETY: the stage holds `K` columns of L.
                    sums = unsafe { terms(sums, four == 0, k as u32 * BAND + row - band, BAND, rights) };
                }
            }
            for j in 0..ROWS {
                if row + (j as u32) < tile.rows() && here < matrix.columns {
                    let at = tile.at + (row + j as u32) * matrix.columns + device::thread();
                    let value = if poisoned { f32::from_bits(NAN_BITS) } else { sums[j] };
                    // SAFETY: the element is bound, and this thread's.
                    unsafe { *b.output.add(at as usize) = value };
                }
            }
            row += ROWS as u32;
        }
        band += BAND;
    }
}
