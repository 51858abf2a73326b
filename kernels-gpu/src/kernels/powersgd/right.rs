//! M^T P: the right factors.

use super::{Buffers, FOUR, Form, Less, NO_RIGHT, ROWS, Tile, elements, loaded, stage, terms};
use crate::arith::float::{INF_BITS, MAGNITUDE};
use crate::device;
use crate::params::{LOW_RANK_TOGETHER, LowRankParams, low_rank_flags, mark, matrix};

/// Rows whose entries of the left factors are in the stage together (logarithm), and that are summed together.
const BAND_LOG2: u32 = 5;
const BAND: u32 = 1 << BAND_LOG2;
/// Columns of a factor whose sums are in registers together.
const TOGETHER: usize = LOW_RANK_TOGETHER as usize;
/// The largest rank.
const MOST: usize = crate::arith::powersgd::MOST_RANK as usize;
/// Where in the stage the factor is that is multiplied by, and L.
const FACTOR: u32 = 0;
const LEFT: u32 = BAND * MOST as u32;

kernel! {
    /// Forms gradient + residual of a tile, and multiplies its transpose by the left factor.
    ///
    /// # What
    /// A tile's share of M^T P: for each of its columns and each column of P the sum over its rows. With `FORM`, M is formed
    /// first, from gradient, residual and L R^T, and left in `residual`. Without `PRODUCT` that is all. With `SCAN` nothing is
    /// left but, in the status, where M is first not finite.
    ///
    /// # Arguments
    /// * `p`; `input`, with `FORM`; `residual`: `p.bound` elements.
    /// * `workspace`: table, tiles, marks and factors are read, shares are written. With `FORM` and no product, a matrix with an
    ///   element that is not finite is marked as poisoned.
    /// * `status`: with `SCAN`, raised to the complement of an element's index; with `GUARDED`, read.
    /// * `output`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block a tile, a thread a column.
    ///
    /// # Shared memory
    /// 8 KiB: 32 entries of 32 columns of P and L.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each tile from `p.first_tile` on.
    ///
    /// # Traffic
    /// An element once in each buffer, and r/64 words of P, L, R and the share for it. Coalesced where rows begin at sectors.
    ///
    /// # Determinism
    /// Run to run: every sum is in one order.
    ///
    /// # Edge cases
    /// Rows and columns that are not there are zero. Where an element is not finite, so is its column's share.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn powersgd_right(
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
            let form = Form::new(&p, &b, &tile.matrix);
            if p.rank <= LOW_RANK_TOGETHER {
                column::<TOGETHER, true>(&p, &b, &tile, form, 0);
                return;
            }
            // More columns than that are formed together, and multiplied eight at a time, of what this thread formed.
            if form.form {
                column::<MOST, false>(&p, &b, &tile, form, 0);
            }
            let formed = Form { form: false, feedback: false, rest: false, write: false };
            let mut first = 0;
            while p.has(low_rank_flags::PRODUCT) && first < p.rank {
                column::<TOGETHER, true>(&p, &b, &tile, formed, first);
                first += LOW_RANK_TOGETHER;
            }
        }
    }
}

/// A column's entries of R, and where in the stage those of L are of eight rows.
struct InRegisters<'a, const K: usize> {
    rank: u32,
    right: &'a [f32; K],
    in_stage: u32,
}

impl<const K: usize> Less<ROWS> for InRegisters<'_, K> {
    #[inline(always)]
    unsafe fn of(&self) -> [f32; ROWS] {
        let mut less = [0.0; ROWS];
        for four in 0..K / FOUR {
            let k = four * FOUR;
            if (k as u32) < self.rank {
                let rights = [self.right[k], self.right[k + 1], self.right[k + 2], self.right[k + 3]];
                // SAFETY: the stage holds `K` columns of L.
                less = unsafe { terms(less, four == 0, LEFT + k as u32 * BAND + self.in_stage, BAND, rights) };
            }
        }
        less
    }
}

/// This thread's column, of factors of at most `K` columns, multiplied by those from `first` on.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
unsafe fn column<const K: usize, const MULTIPLIES: bool>(
    p: &LowRankParams,
    b: &Buffers,
    tile: &Tile,
    form: Form,
    first: u32,
) {
    let (product, scan) = (MULTIPLIES && p.has(low_rank_flags::PRODUCT), p.has(low_rank_flags::SCAN));
    // What is multiplied later is the residual, which has no element that is not finite.
    let formed_alone = form.write && !product;
    let matrix = tile.matrix;
    let here = tile.column + device::thread();
    let mut right = [NO_RIGHT; K];
    if form.rest && here < matrix.columns {
        for k in 0..K {
            if (k as u32) < p.rank {
                let at = p.right + matrix.right + k as u32 * matrix.column_stride() + here;
                // SAFETY: the factor's entry is there.
                right[k] = unsafe { *b.number(at) };
            }
        }
    }
    let mut totals = [0.0f32; K];
    let mut band = 0;
    while band < tile.rows() {
        // SAFETY: all threads are here; between the barriers the stage is only written, and each word by one thread.
        unsafe {
            device::barrier();
            let rows = (tile.row + band, BAND_LOG2);
            if product {
                stage(p, b, (p.factor + matrix.left, matrix.row_stride()), (first, K as u32), rows, (FACTOR, 0.0));
            }
            if form.rest {
                stage(p, b, (p.left + matrix.left, matrix.row_stride()), (0, K as u32), rows, (LEFT, 0.0));
            }
            device::barrier();
        }
        if here < matrix.columns {
            let mut sums = [0.0f32; K];
            let mut row = band;
            while row < tile.rows() && row < band + BAND {
                let in_stage = row - band;
                let less = InRegisters { rank: p.rank, right: &right, in_stage };
                let rows = tile.rows() - row;
                let at = (tile.at + row * matrix.columns + device::thread(), matrix.columns, rows);
                // SAFETY: an element that is there is bound, and this thread's.
                let m = unsafe {
                    if rows >= ROWS as u32 {
                        elements::<true, ROWS>(p, b, form, at, &less)
                    } else {
                        elements::<false, ROWS>(p, b, form, at, &less)
                    }
                };
                if formed_alone {
                    for j in 0..ROWS {
                        if m[j].to_bits() & MAGNITUDE >= INF_BITS {
                            let mark = p.marks + matrix.index * mark::WORDS + mark::POISONED;
                            // SAFETY: the marks are there, and in this launch only atomics touch this one.
                            unsafe { device::atomic_max(b.word(mark), 1) };
                        }
                    }
                }
                if scan {
                    for j in 0..ROWS {
                        if m[j].to_bits() & MAGNITUDE >= INF_BITS {
                            let index = matrix.first + (tile.row + row + j as u32) * matrix.columns + here;
                            // SAFETY: the status is there, and only atomics touch it.
                            unsafe { device::atomic_max(b.status, !index) };
                        }
                    }
                }
                if product {
                    for four in 0..K / FOUR {
                        if first + ((four * FOUR) as u32) < p.rank {
                            for k in four * FOUR..(four + 1) * FOUR {
                                // SAFETY: the stage holds `K` columns of P.
                                let left: [f32; ROWS] = unsafe { loaded(FACTOR + k as u32 * BAND + in_stage) };
                                for j in 0..ROWS {
                                    sums[k] = device::fma(m[j], left[j], sums[k]);
                                }
                            }
                        }
                    }
                }
                row += ROWS as u32;
            }
            for k in 0..K {
                totals[k] += sums[k];
            }
        }
        band += BAND;
    }
    if product && here < matrix.columns {
        // SAFETY: the table and the share are there.
        unsafe {
            let shares = p.shares + *b.word(matrix.index * matrix::WORDS + matrix::SHARES + 1);
            let tile_row = tile.row / crate::params::LOW_RANK_TILE;
            for k in 0..K {
                if first + (k as u32) < p.rank {
                    *b.number(shares + (tile_row * p.rank + first + k as u32) * matrix.column_stride() + here) =
                        totals[k];
                }
            }
        }
    }
}

const _: () = assert!(LEFT * 2 <= device::STAGE && MOST.is_multiple_of(FOUR));
