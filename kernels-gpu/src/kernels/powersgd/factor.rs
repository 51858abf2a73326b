//! Orthonormal columns, by the Cholesky factorisation of their products in binary64.
//!
//! Source: Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa, "Shifted Cholesky QR for computing the QR
//! factorization of ill-conditioned matrices", SIAM J. Sci. Comput. 42 (2020). As in `backend/cpu/orthonormal.rs`, a
//! row is worked out in binary64, and rounded when it is done.

use super::products::{PARTS, PRODUCTS, SIDE, columns, products, wide};
use super::share::Share;
use super::{Buffers, padded};
use crate::arith::philox::Stream;
use crate::arith::powersgd::{DEPENDENT, MOST_RANK, ONE_SWEEP, seeded};
use crate::device::{self, WARP};
use crate::params::{LowRankParams, THREADS, low_rank_flags, mark, matrix, outcome};

/// Products of different blocks that a thread has on their way together.
const AHEAD: usize = 8;
/// Groups of four columns.
const FOURS: usize = MOST_RANK as usize / SIDE;
/// Where in the stage the least squared sine is, after the products.
const LEAST: u32 = PARTS - 2;
/// Sweeps at most. A sweep squares the departure from orthonormal, so a third finds nothing to do but in the worst of
/// cases.
const SWEEPS: u32 = 3;

kernel! {
    /// Makes the columns of factors orthonormal, from the products that `powersgd_products` left.
    ///
    /// # What
    /// With `ORTHONORMAL`, makes the columns orthonormal; a column that depends on those before it becomes zeros. With
    /// `SEED`, such columns are drawn anew and that is done again. With `COMMIT`, where the state is on the device,
    /// makes both factors those that the step ended with, unless the matrix is poisoned, and marks what became of the
    /// tensor.
    ///
    /// # Arguments
    /// * `p`; `workspace`: table, marks, the factors that `p.factor` tells, and the blocks' products.
    /// * `input`, `residual`, `status`, `output`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block some rows of a matrix's factor, a thread a row. Every block factorises the products itself: a lane a
    /// row of the triangle. Where one sweep is not enough, or columns are drawn anew, the matrix's first block works on
    /// all rows alone, and the others do nothing.
    ///
    /// # Shared memory
    /// 9.3 KiB of the stage, and a word.
    ///
    /// # Launch contract
    /// As that of `powersgd_products`, which was launched over the same blocks before; with `COMMIT`, one more for each
    /// tensor that is not compressed.
    ///
    /// # Traffic
    /// The block's rows, read and written; the products of all of the matrix's blocks. With `COMMIT`, both factors, read
    /// and written. Coalesced.
    ///
    /// # Determinism
    /// Run to run: every sum is in one order.
    ///
    /// # Edge cases
    /// Columns of zeros stay zeros, or are seeded.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn powersgd_factor(
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
            if p.has(low_rank_flags::COMMIT) {
                commit(&p, &b, &share);
            }
            if !p.has(low_rank_flags::ORTHONORMAL) || share.is_plain {
                return;
            }
            gather(&p, &b, &share);
            orthonormalise(&p, &b, &share);
        }
    }
}

/// Makes the columns orthonormal, or zero, from their products, which are in the stage.
///
/// # Safety
/// All threads arrive together, and no other block touches this block's rows.
#[inline(always)]
unsafe fn orthonormalise(p: &LowRankParams, b: &Buffers, share: &Share) {
    // SAFETY: the caller brings all threads here, and what is branched on is the same in all of them.
    unsafe {
        let (mut dependent, mut least) = triangle(p);
        let mut draws = p.has(low_rank_flags::SEED);
        let mut rows = share.rows;
        if least < ONE_SWEEP || draws && dependent != 0 {
            // Not over in one sweep over these rows: the first block works on all of them, the others do nothing.
            if share.index != 0 {
                return;
            }
            rows = [0, share.factor.entries];
        }
        let mut sweep = 1;
        loop {
            solve(p, b, share, rows);
            if least >= ONE_SWEEP || sweep == SWEEPS {
                if !draws || dependent == 0 {
                    return;
                }
                draw(p, b, share, dependent);
                (draws, sweep) = (false, 0);
            }
            sweep += 1;
            device::barrier();
            products(p, b, share.factor, rows, |at, sum| device::stage_store_wide(numbered(at), sum));
            let (more, next) = triangle(p);
            (dependent, least) = (dependent | more, next);
        }
    }
}

/// Draws columns anew: those that have a bit.
///
/// # Safety
/// No other block touches the factor.
#[inline(always)]
unsafe fn draw(p: &LowRankParams, b: &Buffers, share: &Share, mut columns: u32) {
    // SAFETY: the words are in the table and the workspace, and the entries this thread's.
    unsafe {
        let tensor = p.tensor.wrapping_add(*b.word(share.matrix.index * matrix::WORDS + matrix::TENSOR));
        let mut step = p.step;
        if p.has(low_rank_flags::START) {
            step = [*b.word(p.steps), *b.word(p.steps + 1)];
        }
        let stream = Stream { key: p.key, tensor, step };
        let mut k = 0;
        while columns != 0 {
            if columns & 1 != 0 {
                let mut i = device::thread();
                while i < share.factor.entries {
                    *b.number(share.factor.at(k, i)) = seeded(stream, k, i);
                    i += THREADS;
                }
            }
            columns >>= 1;
            k += 1;
        }
    }
}

/// Ends a step of a state that is on the device.
///
/// # Safety
/// No other block touches the words of the factors that this block copies. The tensor's marks are written by its first
/// block alone.
#[inline(always)]
unsafe fn commit(p: &LowRankParams, b: &Buffers, share: &Share) {
    let matrix = &share.matrix;
    // SAFETY: the caller ensures that no other block touches the words that are copied, nor the marks that are written.
    unsafe {
        let poisoned = matrix.mark(p, b, mark::POISONED) != 0;
        if share.index == 0 && device::thread() == 0 {
            let marks = p.marks + matrix.index * mark::WORDS;
            let wary = *b.word(marks + mark::WARY_FOR);
            let keeps = p.has(low_rank_flags::FEEDBACK) && wary == 0;
            let (mut sent, mut next, mut what) = (1, wary.saturating_sub(1), outcome::SENT);
            if poisoned {
                sent = if keeps { 0 } else { mark::DROPPED };
                next = mark::WARY;
                what = if keeps { outcome::KEPT } else { outcome::DROPPED };
            }
            // The residual of a tensor that is not compressed is what it is.
            *b.word(marks + mark::SENT) = if share.is_plain { 0 } else { sent };
            *b.word(marks + mark::WARY_FOR) = next;
            *b.word(marks + mark::OUTCOME) = what;
            if matrix.index == 0 {
                let low = (*b.word(p.steps)).wrapping_add(1);
                *b.word(p.steps) = low;
                *b.word(p.steps + 1) = (*b.word(p.steps + 1)).wrapping_add(u32::from(low == 0));
            }
        }
        if share.is_plain || poisoned {
            return;
        }
        // The step's factors are as far from those that it ends with on both sides.
        let ended = if p.has(low_rank_flags::RIGHT) { p.right } else { p.left };
        let distance = p.factor - ended;
        for side in 0..2 {
            let (to, entries) =
                if side == 0 { (p.left + matrix.left, matrix.rows) } else { (p.right + matrix.right, matrix.columns) };
            share.copy(b.word(to + distance), b.word(to), p.rank * padded(entries));
        }
    }
}

/// Where the product of two columns is in the stage. A row of 33 puts a column's products in banks of their own.
#[inline(always)]
fn product_at(i: u32, j: u32) -> u32 {
    2 * (i * (MOST_RANK + 1) + j)
}

/// Where the product with a number is in the stage.
#[inline(always)]
fn numbered(at: u32) -> u32 {
    let (first, second) = columns(at / PRODUCTS as u32);
    let within = at % PRODUCTS as u32;
    product_at(first + within / SIDE as u32, second + within % SIDE as u32)
}

/// Sums the products that the matrix's blocks left, in the order of the blocks, into the stage.
///
/// # Safety
/// All threads arrive together, and nothing reads the stage; the products were left by an earlier launch.
#[inline(always)]
unsafe fn gather(p: &LowRankParams, b: &Buffers, share: &Share) {
    let from = share.products(p, 0);
    let each = share.products(p, 1) - from;
    let mut at = device::thread();
    while at < each / 2 {
        let mut sum = 0.0f64;
        let mut first = 0;
        while first < share.count {
            // On their way together, and added in their order; what is not there is zero, and changes no sum.
            let mut ahead = [0.0; AHEAD];
            for k in 0..AHEAD {
                if first + (k as u32) < share.count {
                    // SAFETY: the caller ensures that the products are there.
                    ahead[k] = unsafe { *wide(b, from + (first + k as u32) * each + 2 * at) };
                }
            }
            for k in 0..AHEAD {
                sum += ahead[k];
            }
            first += AHEAD as u32;
        }
        // SAFETY: the word is this thread's.
        unsafe { device::stage_store_wide(numbered(at), sum) };
        at += THREADS;
    }
}

/// Makes of the products the triangle L with L L^T = the products, with the inverse of its diagonal in place of it;
/// zero there for a column that depends on those before it. A bit for each such, and the least squared sine of one that
/// does not, in all threads.
///
/// # Safety
/// All threads arrive together, after they stored the products in the stage.
#[inline(always)]
unsafe fn triangle(p: &LowRankParams) -> (u32, f64) {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    // SAFETY: all threads are here. Between two barriers a word is either read, or written by one thread.
    unsafe {
        device::barrier();
        if warp == 0 {
            let (mut dependent, mut least) = (0, 1.0f64);
            let mut j = 0;
            while j < p.rank {
                let below = lane > j && lane < p.rank;
                let square = device::stage_load_wide(product_at(j, j));
                let (mut rest, mut sum) = (square, 0.0);
                if below {
                    sum = device::stage_load_wide(product_at(lane, j));
                }
                let mut k = 0;
                while k < j {
                    let of = device::stage_load_wide(product_at(j, k));
                    rest = device::fma_wide(-of, of, rest);
                    if below {
                        sum = device::fma_wide(-of, device::stage_load_wide(product_at(lane, k)), sum);
                    }
                    k += 1;
                }
                let mut inverse = 0.0;
                // Written so that a square that is zero or not finite makes the column dependent.
                if square > 0.0 && rest > DEPENDENT * square {
                    let sine = rest / square;
                    least = if sine < least { sine } else { least };
                    inverse = 1.0 / device::sqrt(rest);
                } else {
                    dependent |= 1 << j;
                }
                device::warp_barrier();
                if below {
                    device::stage_store_wide(product_at(lane, j), sum * inverse);
                } else if lane == j {
                    device::stage_store_wide(product_at(j, j), inverse);
                }
                device::warp_barrier();
                j += 1;
            }
            if lane == 0 {
                device::shared_store(0, dependent);
                device::stage_store_wide(LEAST, least);
            }
        }
        device::barrier();
        (device::shared_load(0), device::stage_load_wide(LEAST))
    }
}

/// Multiplies rows of the factor by the inverse transposed triangle.
///
/// # Safety
/// No other thread touches the rows; the triangle is in the stage.
#[inline(always)]
unsafe fn solve(p: &LowRankParams, b: &Buffers, share: &Share, [first, end]: [u32; 2]) {
    let mut row = first + device::thread();
    while row < end {
        // SAFETY: the row is this thread's, and the factor has these columns.
        unsafe {
            let mut raw = loaded(p, b, share, row, 0);
            let mut done = [[0.0; SIDE]; FOURS];
            four::<0>(p, b, share, row, &mut raw, &mut done);
            four::<1>(p, b, share, row, &mut raw, &mut done);
            four::<2>(p, b, share, row, &mut raw, &mut done);
            four::<3>(p, b, share, row, &mut raw, &mut done);
            four::<4>(p, b, share, row, &mut raw, &mut done);
            four::<5>(p, b, share, row, &mut raw, &mut done);
            four::<6>(p, b, share, row, &mut raw, &mut done);
            four::<7>(p, b, share, row, &mut raw, &mut done);
        }
        row += THREADS;
    }
}

/// Four columns of a row from `first` on, and zero for those that are not there.
///
/// # Safety
/// As [`solve`].
#[inline(always)]
unsafe fn loaded(p: &LowRankParams, b: &Buffers, share: &Share, row: u32, first: u32) -> [f32; SIDE] {
    let mut values = [0.0; SIDE];
    for k in 0..SIDE {
        let column = first + k as u32;
        if column < p.rank {
            // SAFETY: the caller ensures that the row is there.
            values[k] = unsafe { *b.number(share.factor.at(column, row)) };
        }
    }
    values
}

/// Four columns of a row: what they have in common with earlier ones is taken off, then with each other.
///
/// # Safety
/// As [`solve`]; the row is this thread's, and its earlier columns are done.
#[inline(always)]
unsafe fn four<const F: usize>(
    p: &LowRankParams,
    b: &Buffers,
    share: &Share,
    row: u32,
    raw: &mut [f32; SIDE],
    done: &mut [[f64; SIDE]; FOURS],
) {
    let first = (F * SIDE) as u32;
    if first >= p.rank {
        return;
    }
    let mut sums = raw.map(f64::from);
    // SAFETY: the triangle is in the stage; beyond the rank the stage holds products with zeros.
    unsafe {
        // On their way while these are worked out.
        *raw = loaded(p, b, share, row, first + SIDE as u32);
        less::<F, 0>(&mut sums, done);
        less::<F, 1>(&mut sums, done);
        less::<F, 2>(&mut sums, done);
        less::<F, 3>(&mut sums, done);
        less::<F, 4>(&mut sums, done);
        less::<F, 5>(&mut sums, done);
        less::<F, 6>(&mut sums, done);
        for k in 0..SIDE {
            let column = first + k as u32;
            if column < p.rank {
                let value = sums[k] * device::stage_load_wide(product_at(column, column));
                done[F][k] = value;
                *b.number(share.factor.at(column, row)) = value as f32;
                for other in k + 1..SIDE {
                    let of = device::stage_load_wide(product_at(first + other as u32, column));
                    sums[other] = device::fma_wide(-of, value, sums[other]);
                }
            }
        }
    }
}

/// Takes off four columns what they have in common with four earlier ones.
///
/// # Safety
/// As [`four`].
#[inline(always)]
unsafe fn less<const F: usize, const BEFORE: usize>(sums: &mut [f64; SIDE], done: &[[f64; SIDE]; FOURS]) {
    if BEFORE >= F {
        return;
    }
    for c in 0..SIDE {
        for k in 0..SIDE {
            // SAFETY: the caller ensures that the triangle is in the stage.
            let of = unsafe { device::stage_load_wide(product_at((F * SIDE + k) as u32, (BEFORE * SIDE + c) as u32)) };
            sums[k] = device::fma_wide(-of, done[BEFORE][c], sums[k]);
        }
    }
}
