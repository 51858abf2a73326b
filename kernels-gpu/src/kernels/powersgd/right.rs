//! M^T P: the right factors.

use super::order::{self, ALIKE, Group, InStage, Order, WIDTH_LOG2};
use super::{Buffers, FOUR, Form, Less, NO_RIGHT, ROWS, Tile, elements, loaded, many, quads, stage, terms};
use crate::arith::float::{INF_BITS, MAGNITUDE};
use crate::device;
use crate::params::{LOW_RANK_TILE, LOW_RANK_TOGETHER, LowRankParams, low_rank_flags, mark, matrix};

/// Base-2 logarithm of the rows whose entries of L are in the stage together, above rank 8.
const BAND_LOG2: u32 = 5;
const BAND: u32 = 1 << BAND_LOG2;
/// Columns of the factor that a thread sums in registers together.
const TOGETHER: usize = LOW_RANK_TOGETHER as usize;
/// The largest rank.
const MOST: usize = crate::arith::powersgd::MOST_RANK as usize;

kernel! {
    /// Forms gradient + residual of a tile, and multiplies its transpose by the left factor.
    ///
    /// # What
    /// A tile's share of M^T P: for each of its columns and each column of P, the sum over its rows. With `FORM`, M is
    /// formed first, from gradient, residual and L R^T, and left in `residual`. Without `PRODUCT` that is all. With
    /// `SCAN` nothing but the status is written: where M is first not finite. Above rank 8 all columns are multiplied
    /// together on tensor cores (`tensor.rs`), or eight at a time where there are none (`eight.rs`).
    ///
    /// # Arguments
    /// * `p`; `input`, with `FORM`; `residual`: `p.bound` elements.
    /// * `workspace`: table, tiles, marks and factors are read, shares are written. With `FORM` and no product, a
    ///   matrix with an element that is not finite is marked as poisoned.
    /// * `status`: with `SCAN`, raised to the complement of an element's index; with `GUARDED`, read.
    /// * `output`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block a tile, a thread four columns of a quarter of the rows, where rows begin at sectors and nothing is
    /// formed (`quads.rs`), else a column of a group of rows, in the order of `order.rs`. On tensor cores a warp 32
    /// columns.
    ///
    /// # Shared memory
    /// 32 KiB: 256 entries of 8 columns of P, L, R and the share; on tensor cores 64 of 32 columns of P.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each tile from `p.first_tile` on.
    ///
    /// # Traffic
    /// Each element once in each buffer, and r/64 words of P, L, R and the share per element. Coalesced. Where rows
    /// begin at no sector, a row of a tile is in one sector more than it must be; above rank 8, in one more for each
    /// four. Without tensor cores, above rank 8, each element is read once for each eight columns.
    ///
    /// # Determinism
    /// Run to run on one device: every sum is in one order. A tensor core adds eight products in an order of its own,
    /// so above rank 8 targets from sm_80 on, and GPUs of another architecture, have other bits.
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
                product(&p, &b, &tile, form, 0);
                return;
            }
            // Above rank 8, M is formed in a launch of its own. An element that is not finite poisons its matrix there,
            // since the residual, which is multiplied later, does not hold it.
            if form.form {
                formed(&p, &b, &tile, form);
            } else if p.has(low_rank_flags::PRODUCT) {
                many::right(&p, &b, &tile);
            }
        }
    }
}

/// The tile, multiplied by eight columns of the factor from `first` on; formed first, of eight columns at most.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
pub(super) unsafe fn product(p: &LowRankParams, b: &Buffers, tile: &Tile, form: Form, first: u32) {
    let (product, scan) = (p.has(low_rank_flags::PRODUCT), p.has(low_rank_flags::SCAN));
    // A later pass multiplies the residual, which has no element that is not finite: so the matrix is poisoned here.
    let formed_alone = form.write && !product;
    let (matrix, order, thread) = (tile.matrix, Order::new(tile), device::thread());
    // SAFETY: all threads are here; between the barriers the stage and the bins are only written, and each word by one
    // thread.
    unsafe {
        device::barrier();
        let (tall, wide) = ((tile.row, WIDTH_LOG2), (tile.column, WIDTH_LOG2));
        let (left, right) = (matrix.row_stride(), matrix.column_stride());
        if product {
            let factor = (p.factor + matrix.left, left);
            stage(p, b, factor, (first, LOW_RANK_TOGETHER), tall, (order::FACTOR, 0.0), |i| order.place(i));
            for k in 0..LOW_RANK_TOGETHER {
                device::bin_store(k * LOW_RANK_TILE + thread, 0);
            }
        }
        if form.rest {
            let left = (p.left + matrix.left, left);
            stage(p, b, left, (0, LOW_RANK_TOGETHER), tall, (order::LEFT, 0.0), |i| order.place(i));
            let right = (p.right + matrix.right, right);
            stage(p, b, right, (0, LOW_RANK_TOGETHER), wide, (order::RIGHT, NO_RIGHT), |i| i);
        }
        device::barrier();
    }
    if product && !form.form && quads::fit(b, tile) {
        // SAFETY: all threads are here; the stage holds P, and nothing else is in it.
        unsafe { quads::right(p, b, tile, first) };
        return;
    }
    let (mut index, groups) = (0, order.groups(tile));
    while index < groups {
        // These groups give a thread the same column, since their rows lie alike.
        let here = order.group(tile, index).column(thread);
        let mut sums = [0.0f32; TOGETHER];
        let behind = device::opaque(index + ALIKE);
        while index < behind {
            let group = order.group(tile, index);
            if group.rows > 0 && here < tile.columns() {
                let less = InStage { rank: p.rank, place: index * ROWS as u32, column: here };
                let at = (group.at(tile, here), group.stride, group.rows);
                // SAFETY: an element that is there is bound, and this thread's.
                let m = unsafe {
                    if group.rows >= ROWS as u32 {
                        elements::<true, ROWS>(p, b, form, at, &less)
                    } else {
                        elements::<false, ROWS>(p, b, form, at, &less)
                    }
                };
                // SAFETY: the marks are there, or the status.
                unsafe {
                    if formed_alone {
                        poison(p, b, tile, &m);
                    }
                    if scan {
                        tell(b, tile, &group, here, &m);
                    }
                }
                if product {
                    for four in 0..TOGETHER / FOUR {
                        if first + ((four * FOUR) as u32) < p.rank {
                            for k in four * FOUR..(four + 1) * FOUR {
                                let at = order::FACTOR + (k as u32 * LOW_RANK_TILE) + index * ROWS as u32;
                                // SAFETY: the stage holds eight columns of P.
                                let left: [f32; ROWS] = unsafe { loaded(at) };
                                for j in 0..ROWS {
                                    sums[k] = device::fma(m[j], left[j], sums[k]);
                                }
                            }
                        }
                    }
                }
            }
            index += 1;
        }
        if product {
            // SAFETY: all threads are here. Between two barriers each thread has a column of its own, since the columns
            // are turned alike.
            unsafe {
                device::barrier();
                for k in 0..TOGETHER {
                    let bin = k as u32 * LOW_RANK_TILE + here;
                    device::bin_store(bin, (f32::from_bits(device::bin_load(bin)) + sums[k]).to_bits());
                }
            }
        }
    }
    if product {
        // SAFETY: all threads are here, and nothing writes the bins after; the table and the share are there.
        unsafe {
            device::barrier();
            if thread < tile.columns() {
                let shares = p.shares + *b.word(matrix.index * matrix::WORDS + matrix::SHARES + 1);
                let from = (tile.row >> WIDTH_LOG2) * p.rank + first;
                for k in 0..LOW_RANK_TOGETHER {
                    if first + k < p.rank {
                        let at = shares + (from + k) * matrix.column_stride() + tile.column + thread;
                        *b.word(at) = device::bin_load(k * LOW_RANK_TILE + thread);
                    }
                }
            }
        }
    }
}

/// Marks the matrix where an element is not finite.
///
/// # Safety
/// The marks are there, and in this launch only atomics touch this one.
#[inline(always)]
unsafe fn poison(p: &LowRankParams, b: &Buffers, tile: &Tile, m: &[f32; ROWS]) {
    for j in 0..ROWS {
        if m[j].to_bits() & MAGNITUDE >= INF_BITS {
            let mark = p.marks + tile.matrix.index * mark::WORDS + mark::POISONED;
            // SAFETY: the caller ensures that the mark is there, and that only atomics touch it.
            unsafe { device::atomic_max(b.word(mark), 1) };
        }
    }
}

/// Leaves in the status where a column is first not finite.
///
/// # Safety
/// The status is there, and only atomics touch it.
#[inline(always)]
unsafe fn tell(b: &Buffers, tile: &Tile, group: &Group, here: u32, m: &[f32; ROWS]) {
    let first = tile.matrix.first + (tile.row + group.row) * tile.matrix.columns + tile.column + here;
    for j in 0..ROWS {
        if m[j].to_bits() & MAGNITUDE >= INF_BITS {
            // SAFETY: the caller ensures that the status is there, and that only atomics touch it.
            unsafe { device::atomic_max(b.status, !(first + j as u32 * group.stride)) };
        }
    }
}

/// Eight rows of one column of L R^T, where R's entries are in registers.
struct InRegisters<'a> {
    rank: u32,
    /// R's entries of the column.
    right: &'a [f32; MOST],
    /// Where the stage has L's entries of the rows.
    in_stage: u32,
}

impl Less<ROWS> for InRegisters<'_> {
    #[inline(always)]
    unsafe fn of(&self) -> [f32; ROWS] {
        let mut less = [0.0; ROWS];
        for four in 0..MOST / FOUR {
            let k = four * FOUR;
            if (k as u32) < self.rank {
                let rights = [self.right[k], self.right[k + 1], self.right[k + 2], self.right[k + 3]];
                // SAFETY: the stage holds all columns of L.
                less = unsafe { terms(less, four == 0, k as u32 * BAND + self.in_stage, BAND, rights) };
            }
        }
        less
    }
}

/// Forms this thread's column of the tile, above rank 8.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
unsafe fn formed(p: &LowRankParams, b: &Buffers, tile: &Tile, form: Form) {
    let matrix = tile.matrix;
    let here = tile.column + device::thread();
    let mut right = [NO_RIGHT; MOST];
    if form.rest && here < matrix.columns {
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
            if form.rest {
                let left = (p.left + matrix.left, matrix.row_stride());
                stage(p, b, left, (0, MOST as u32), (tile.row + band, BAND_LOG2), (0, 0.0), |i| i);
            }
            device::barrier();
        }
        let mut row = band;
        while here < matrix.columns && row < tile.rows() && row < band + BAND {
            let less = InRegisters { rank: p.rank, right: &right, in_stage: row - band };
            let group = Group::neighbours(tile, row);
            let at = (group.at(tile, device::thread()), group.stride, group.rows);
            // SAFETY: an element that is there is bound, and this thread's; the marks are there, or the status.
            unsafe {
                let m = if group.rows >= ROWS as u32 {
                    elements::<true, ROWS>(p, b, form, at, &less)
                } else {
                    elements::<false, ROWS>(p, b, form, at, &less)
                };
                if form.write {
                    poison(p, b, tile, &m);
                }
                if p.has(low_rank_flags::SCAN) {
                    tell(b, tile, &group, device::thread(), &m);
                }
            }
            row += ROWS as u32;
        }
        band += BAND;
    }
}

const _: () = assert!(BAND * MOST as u32 <= device::STAGE && MOST.is_multiple_of(FOUR));
