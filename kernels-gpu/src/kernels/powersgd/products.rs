//! The first half of making columns orthonormal: a factor is taken, and its columns are multiplied with one another.

use super::Buffers;
use super::share::{Factor, Share};
use crate::arith::powersgd::{MOST_RANK, usable};
use crate::device::{self, WARP};
use crate::params::{LowRankParams, THREADS, low_rank_flags, mark, matrix};

/// Columns whose products with as many others are in registers together.
pub(super) const SIDE: usize = 4;
pub(super) const PRODUCTS: usize = SIDE * SIDE;
/// Where in the stage warps leave their parts of a square. What is before it belongs to `factor.rs`.
pub(super) const PARTS: u32 = 2 * MOST_RANK * (MOST_RANK + 1) + 2;
/// Rows of a thread that are on their way together.
const ROWS: usize = 2;
/// Columns of a row that are on their way together.
const AHEAD: u32 = 8;
/// Warps of a block.
const WARPS: u32 = THREADS / WARP;

kernel! {
    /// Takes factors that were all-reduced, and multiplies their columns with one another.
    ///
    /// # What
    /// With `TAKE`, copies the matrix's factor from `values` into its padded place. An entry that cannot be used marks
    /// the matrix. With `START`, where the state is on the device, copies the factor that the last step ended with, and
    /// takes poison off the tensor. With `ORTHONORMAL`, leaves the products of all pairs of columns, summed over this
    /// block's rows, for `powersgd_factor`.
    ///
    /// # Arguments
    /// * `p`; `workspace`: table, marks, the factors that `p.factor` tells, and the blocks' products.
    /// * `values`: with `TAKE`, the factors of all matrices as they were sent. Read.
    /// * `input`, `residual`, `status`, `output`: not used.
    ///
    /// # Thread mapping
    /// A block some rows of a matrix's factor, a warp a square of 4 x 4 products, a lane a row. Where there are fewer
    /// squares than warps, warps share the rows of a square.
    ///
    /// # Shared memory
    /// 1 KiB of the stage.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, from `p.first_tile` on, of those that the table's `FIRST_SHARE` counts; with `START`, one
    /// more for each tensor that is not compressed.
    ///
    /// # Traffic
    /// The factor once to copy it, and ceil(r/4) times to multiply it, mostly from the L1 cache. Coalesced.
    ///
    /// # Determinism
    /// Run to run: every sum is in one order.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn powersgd_products(
        p: LowRankParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        status: *mut u32,
        output: *mut f32,
        values: *mut f32,
    ) {
        let b = Buffers { input, residual, workspace, status, output, values };
        // SAFETY: the tensor is in the table, by the launch contract; all that is branched on around a barrier is the
        // same in all threads.
        unsafe {
            let share = Share::here(&p, &b);
            if p.has(low_rank_flags::START) {
                start(&p, &b, &share);
            }
            if share.is_plain {
                return;
            }
            if p.has(low_rank_flags::TAKE) {
                take(&p, &b, &share);
            }
            if p.has(low_rank_flags::ORTHONORMAL) {
                device::barrier();
                let to = share.products(&p, share.index);
                // SAFETY: the words are this block's.
                products(&p, &b, share.factor, share.rows, |at, sum| *wide(&b, to + 2 * at) = sum);
            }
        }
    }
}

/// Begins a step of a state that is on the device.
///
/// # Safety
/// No other block touches the block's rows of the factor. The tensor's marks are written by its first block alone.
#[inline(always)]
unsafe fn start(p: &LowRankParams, b: &Buffers, share: &Share) {
    let (matrix, factor) = (&share.matrix, share.factor);
    // SAFETY: the caller ensures that no other block touches the rows, nor the marks that are written.
    unsafe {
        if share.index == 0 && device::thread() == 0 {
            *b.word(p.marks + matrix.index * mark::WORDS + mark::POISONED) = 0;
        }
        if share.is_plain {
            return;
        }
        let ended = if p.has(low_rank_flags::RIGHT) { p.right + matrix.right } else { p.left + matrix.left };
        // The padding goes with the last rows.
        let end = if share.index + 1 == share.count { factor.stride } else { share.rows[1] };
        copy(p, b, factor, [share.rows[0], end], (b.number(ended), factor.stride));
    }
}

/// Copies the factor from what was all-reduced, and marks the matrix if an entry cannot be used.
///
/// # Safety
/// No other block touches the block's rows of the factor, and only atomic operations the matrix's poison.
#[inline(always)]
unsafe fn take(p: &LowRankParams, b: &Buffers, share: &Share) {
    let right = u32::from(p.has(low_rank_flags::RIGHT));
    // SAFETY: the caller's; the factor is as long in `values` as here, but for the padding.
    unsafe {
        let sent = *b.word(share.matrix.index * matrix::WORDS + matrix::SENT + right);
        let from = b.values.add(sent as usize);
        if copy(p, b, share.factor, share.rows, (from, share.factor.entries)) {
            device::atomic_max(b.word(p.marks + share.matrix.index * mark::WORDS + mark::POISONED), 1);
        }
    }
}

/// Copies rows of a factor whose columns are `stride` apart. Whether an entry of this thread's cannot be used.
///
/// # Safety
/// The factor is there, and no other thread touches the rows that are written.
#[inline(always)]
unsafe fn copy(
    p: &LowRankParams,
    b: &Buffers,
    factor: Factor,
    [first, end]: [u32; 2],
    (from, stride): (*const f32, u32),
) -> bool {
    let mut bad = false;
    let mut row = first + device::thread();
    while row < end {
        let mut column = 0;
        while column < p.rank {
            let mut ahead = [0.0; AHEAD as usize];
            for k in 0..AHEAD {
                if column + k < p.rank {
                    // SAFETY: the caller ensures that the factor is there.
                    ahead[k as usize] = unsafe { *from.add(((column + k) * stride + row) as usize) };
                }
            }
            for k in 0..AHEAD {
                if column + k < p.rank {
                    bad |= !usable(ahead[k as usize]);
                    // SAFETY: as above; the row is this thread's.
                    unsafe { *b.number(factor.at(column + k, row)) = ahead[k as usize] };
                }
            }
            column += AHEAD;
        }
        row += THREADS;
    }
    bad
}

/// Hands the products of all pairs of columns, over some rows, to `store` with their numbers. They are numbered by
/// squares of 4 x 4 products, row by row of the triangle.
///
/// # Safety
/// All threads arrive together, after a barrier after the rows were written. Nothing reads the stage from [`PARTS`] on.
#[inline(always)]
pub(super) unsafe fn products(
    p: &LowRankParams,
    b: &Buffers,
    factor: Factor,
    rows: [u32; 2],
    store: impl Fn(u32, f64),
) {
    let (thread, lane, warp) = (device::thread(), device::thread() % WARP, device::thread() / WARP);
    let fours = p.rank.div_ceil(SIDE as u32);
    let squares = fours * (fours + 1) / 2;
    // How many warps share a square.
    let together_log2 = match squares {
        1 => 3,
        3 => 1,
        _ => 0,
    };
    let mut item = warp;
    while item < squares << together_log2 {
        let (first, second) = columns(item >> together_log2);
        let step_log2 = WARP.trailing_zeros() + together_log2;
        let step = 1 << step_log2;
        let mut sums = [0.0f64; PRODUCTS];
        let mut row = rows[0] + (item & ((1 << together_log2) - 1)) * WARP + lane;
        // As long for all lanes, since they meet in shuffles.
        let mut left = (rows[1] - rows[0]).div_ceil(1 << (step_log2 + ROWS.trailing_zeros()));
        while left != 0 {
            // What is not there is zero, and changes no sum.
            // SAFETY: the columns are there.
            let (a, c) = unsafe {
                let a = entries(p, b, factor, (row, step, rows[1]), first);
                (a, if second == first { a } else { entries(p, b, factor, (row, step, rows[1]), second) })
            };
            for r in 0..ROWS {
                for i in 0..SIDE {
                    for j in 0..SIDE {
                        let at = i * SIDE + j;
                        sums[at] = device::fma_wide(f64::from(a[r][i]), f64::from(c[r][j]), sums[at]);
                    }
                }
            }
            row += ROWS as u32 * step;
            left -= 1;
        }
        // SAFETY: all lanes are here; a word is written by one of them.
        unsafe {
            let sum = over_lanes(sums);
            if lane < PRODUCTS as u32 {
                let at = item * PRODUCTS as u32 + lane;
                if together_log2 == 0 {
                    store(at, sum);
                } else {
                    device::stage_store_wide(PARTS + 2 * at, sum);
                }
            }
        }
        item += WARPS;
    }
    if together_log2 != 0 {
        // SAFETY: all threads are here, since the number of squares is the same in all.
        unsafe { device::barrier() };
        if thread < squares * PRODUCTS as u32 {
            let (square, product) = (thread / PRODUCTS as u32, thread % PRODUCTS as u32);
            let mut sum = 0.0;
            let mut part = 0;
            while part < 1 << together_log2 {
                let item = (square << together_log2) + part;
                // SAFETY: a warp stored it before the barrier.
                sum += unsafe { device::stage_load_wide(PARTS + 2 * (item * PRODUCTS as u32 + product)) };
                part += 1;
            }
            store(thread, sum);
        }
    }
}

/// A number of two words of the workspace.
///
/// # Safety
/// It is there, at an even word.
#[inline(always)]
pub(super) unsafe fn wide(b: &Buffers, at: u32) -> *mut f64 {
    // SAFETY: the caller ensures that the words are there.
    unsafe { b.word(at).cast() }
}

/// The first columns of a square of products: of its rows and of its columns.
#[inline(always)]
pub(super) fn columns(square: u32) -> (u32, u32) {
    let (mut row, mut before) = (0, 0);
    while before + row < square {
        row += 1;
        before += row;
    }
    (SIDE as u32 * row, SIDE as u32 * (square - before))
}

/// Entries of four columns from `first` on, of the rows `row`, `row + step` and so on below `end`; zero for those that
/// are not there.
///
/// # Safety
/// The factor is there.
#[inline(always)]
unsafe fn entries(
    p: &LowRankParams,
    b: &Buffers,
    factor: Factor,
    (row, step, end): (u32, u32, u32),
    first: u32,
) -> [[f32; SIDE]; ROWS] {
    let mut values = [[0.0; SIDE]; ROWS];
    for r in 0..ROWS {
        let row = row + r as u32 * step;
        for k in 0..SIDE {
            let column = first + k as u32;
            if row < end && column < p.rank {
                // SAFETY: the entry is there.
                values[r][k] = unsafe { *b.number(factor.at(column, row)) };
            }
        }
    }
    values
}

/// The sums over the lanes: in lane `i`, and 16 lanes on, that of value `i`.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn over_lanes(mut values: [f64; PRODUCTS]) -> f64 {
    let lane = device::thread() % WARP;
    // SAFETY: the caller brings all lanes here.
    let across = |value: f64, mask: u32| unsafe {
        let bits = value.to_bits();
        let [low, high] = [bits as u32, (bits >> 32) as u32].map(|word| u64::from(device::shuffle_xor(word, mask)));
        f64::from_bits(low | high << 32)
    };
    for step in 0..4 {
        let (mask, half) = (8u32 >> step, 8usize >> step);
        let upper = lane & mask != 0;
        for i in 0..half {
            let (keep, give) = if upper { (values[i + half], values[i]) } else { (values[i], values[i + half]) };
            values[i] = keep + across(give, mask);
        }
    }
    values[0] + across(values[0], 16)
}

const _: () = assert!(PARTS + 2 * WARPS * PRODUCTS as u32 <= device::STAGE);
