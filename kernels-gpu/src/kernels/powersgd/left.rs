//! M Q: the left factors.

use super::{Buffers, FOUR, Form, Less, NO_RIGHT, ROWS, Tile, elements, stage, terms};
use crate::device::{self, WARP};
use crate::params::{LOW_RANK_TOGETHER, LowRankParams, matrix};

/// Columns of a factor whose sums are in registers together.
const TOGETHER: usize = LOW_RANK_TOGETHER as usize;
/// Rows of the eight that are formed together: with all of them a block takes more than half of the registers of a
/// multiprocessor, and no other one is there to wait for memory meanwhile.
const TOGETHER_ROWS: usize = 4;
/// Entries of each column of a factor in the stage (logarithm): those of a tile.
const WIDTH_LOG2: u32 = 8;
const WIDTH: u32 = 1 << WIDTH_LOG2;
/// Where in the stage the factor is that is multiplied by, and L and R.
const FACTOR: u32 = 0;
const LEFT: u32 = WIDTH * LOW_RANK_TOGETHER;
const RIGHT: u32 = 2 * LEFT;
/// Warps of a block.
const WARPS: u32 = 8;

kernel! {
    /// Forms gradient + residual of a tile, and multiplies it by the right factor.
    ///
    /// # What
    /// A tile's share of M Q: for each of its rows and each column of Q the sum over its columns. With `FORM`, M is formed
    /// first, from gradient, residual and L R^T, and left in `residual`; that takes a rank of 8 at most.
    ///
    /// # Arguments
    /// * `p`; `input`, with `FORM`; `residual`: `p.bound` elements.
    /// * `workspace`: table, tiles, marks and factors are read, shares are written.
    /// * `status`: with `GUARDED`, read.
    /// * `output`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block a tile; a warp eight of its rows at a time, a lane one of 32 neighbouring columns.
    ///
    /// # Shared memory
    /// 24 KiB: 256 entries of 8 columns of Q, L and R.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each tile from `p.first_tile` on.
    ///
    /// # Traffic
    /// An element once in each buffer, and r/64 words of Q, R, L and the share for it. Coalesced where rows begin at sectors.
    ///
    /// # Determinism
    /// Run to run: every sum is in one order.
    ///
    /// # Edge cases
    /// Rows and columns that are not there are zero. Where an element is not finite, so is its row's share.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn powersgd_left(
        p: LowRankParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        status: *mut u32,
        output: *mut f32,
        values: *mut f32,
    ) {
        let b = Buffers { input, residual, workspace, status, output, values };
        // SAFETY: the tile is in the list, by the launch contract.
        let (tile, form) = unsafe {
            let tile = Tile::here(&p, &b);
            (tile, Form::new(&p, &b, &tile.matrix))
        };
        let matrix = tile.matrix;
        let mut column = 0;
        while column < p.rank {
            // SAFETY: all threads are here, as all that is branched on is the block's; between the barriers the stage is only
            // written, and each word by one thread.
            unsafe {
                if column > 0 {
                    device::barrier();
                }
                let right = (p.factor + matrix.right, matrix.column_stride());
                stage(&p, &b, right, (column, LOW_RANK_TOGETHER), (tile.column, WIDTH_LOG2), (FACTOR, 0.0));
                if form.rest {
                    let right = (p.right + matrix.right, matrix.column_stride());
                    stage(&p, &b, right, (0, LOW_RANK_TOGETHER), (tile.column, WIDTH_LOG2), (RIGHT, NO_RIGHT));
                    let left = (p.left + matrix.left, matrix.row_stride());
                    stage(&p, &b, left, (0, LOW_RANK_TOGETHER), (tile.row, WIDTH_LOG2), (LEFT, 0.0));
                }
                device::barrier();
            }
            let mut row = device::thread() / WARP * ROWS as u32;
            while row < tile.rows() {
                // SAFETY: the row is the warp's; the stage holds what it should.
                unsafe { rows(&p, &b, &tile, form, row, column) };
                row += WARPS * ROWS as u32;
            }
            column += LOW_RANK_TOGETHER;
        }
    }
}

/// Where in the stage R and L are, of four rows of a column.
struct InStage {
    rank: u32,
    row: u32,
    here: u32,
}

impl Less<TOGETHER_ROWS> for InStage {
    #[inline(always)]
    unsafe fn of(&self) -> [f32; TOGETHER_ROWS] {
        let mut less = [0.0; TOGETHER_ROWS];
        for four in 0..TOGETHER / FOUR {
            let k = (four * FOUR) as u32;
            if k < self.rank {
                // SAFETY: the stage holds eight columns of R and of L.
                unsafe {
                    let right = |i: u32| device::stage_load(RIGHT + (k + i) * WIDTH + self.here);
                    let rights = [right(0), right(1), right(2), right(3)];
                    less = terms(less, four == 0, LEFT + k * WIDTH + self.row, WIDTH, rights);
                }
            }
        }
        less
    }
}

/// Eight rows' share.
///
/// # Safety
/// All lanes arrive together. The stage is filled, the rows are this warp's.
#[inline(always)]
unsafe fn rows(p: &LowRankParams, b: &Buffers, tile: &Tile, form: Form, row: u32, column: u32) {
    let lane = device::thread() % WARP;
    let (rows, columns) = (tile.rows() - row, tile.columns());
    let stride = tile.matrix.columns;
    let mut sums = [0.0f32; TOGETHER * ROWS];
    let mut strip = 0;
    while strip < columns {
        let here = strip + lane;
        for half in 0..ROWS / TOGETHER_ROWS {
            let before = (half * TOGETHER_ROWS) as u32;
            let less = InStage { rank: p.rank, row: row + before, here };
            let mut m = [0.0; TOGETHER_ROWS];
            let at = (tile.at + (row + before) * stride + here, stride, rows.saturating_sub(before));
            // SAFETY: an element that is there is bound, and this lane's.
            unsafe {
                if rows >= ROWS as u32 && strip + WARP <= columns {
                    m = elements::<true, TOGETHER_ROWS>(p, b, form, at, &less);
                } else if here < columns {
                    m = elements::<false, TOGETHER_ROWS>(p, b, form, at, &less);
                }
            }
            for four in 0..TOGETHER / FOUR {
                if column + (four * FOUR) as u32 >= p.rank {
                    continue;
                }
                for k in four * FOUR..(four + 1) * FOUR {
                    // SAFETY: the stage holds eight columns of Q.
                    let q = unsafe { device::stage_load(FACTOR + k as u32 * WIDTH + here) };
                    for j in 0..TOGETHER_ROWS {
                        let sum = k * ROWS + half * TOGETHER_ROWS + j;
                        sums[sum] = device::fma(m[j], q, sums[sum]);
                    }
                }
            }
        }
        strip += WARP;
    }
    // SAFETY: all lanes are here.
    let [low, high] = unsafe { over_lanes(sums) };
    let (k, first) = (column + lane / 4, tile.row + row + lane % 4 * 2);
    let stride = tile.matrix.row_stride();
    if k < p.rank && first < stride {
        // SAFETY: the share is there; its rows are padded to an even number, and begin at an even word.
        unsafe {
            let shares = *b.word(tile.matrix.index * matrix::WORDS + matrix::SHARES);
            let at = p.shares + shares + ((tile.column >> WIDTH_LOG2) * p.rank + k) * stride + first;
            *b.word(at).cast::<u64>() = u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
        }
    }
}

/// The sums over the lanes: in lane `i`, those of the values `2 i` and `2 i + 1`.
///
/// In each step a lane keeps half of its values and gives the other half away, so that 62 exchanges do for 64 values.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn over_lanes(mut values: [f32; TOGETHER * ROWS]) -> [f32; 2] {
    let lane = device::thread() % WARP;
    for step in 0..5 {
        let (mask, half) = (16u32 >> step, 32usize >> step);
        let upper = lane & mask != 0;
        for i in 0..half {
            let (keep, give) = if upper { (values[i + half], values[i]) } else { (values[i], values[i + half]) };
            // SAFETY: the caller's.
            let other = unsafe { f32::from_bits(device::shuffle_xor(give.to_bits(), mask)) };
            values[i] = keep + other;
        }
    }
    [values[0], values[1]]
}

const _: () = assert!(ROWS == 8 && RIGHT + LEFT <= device::STAGE);
