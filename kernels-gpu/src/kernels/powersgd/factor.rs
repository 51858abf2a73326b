//! Orthonormal columns, by the Cholesky factorisation of their products in binary64.
//!
//! Source: Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa, "Shifted Cholesky QR for computing the QR
//! factorization of ill-conditioned matrices", SIAM J. Sci. Comput. 42 (2020). As `backend/cpu/orthonormal.rs`, but a
//! column is worked out from those before it as they were rounded, which no register has to hold; another sweep repairs
//! what that costs.

use super::{Buffers, Matrix, padded};
use crate::arith::philox::Stream;
use crate::arith::powersgd::{DEPENDENT, ENOUGH, seeded, usable};
use crate::device::{self, WARP};
use crate::params::{LowRankParams, THREADS, low_rank_flags, mark, matrix, outcome};

/// Words that a thread has on their way together: one block is alone on its multiprocessor, and hides no other's
/// waiting.
const AHEAD: usize = 8;
/// Rows of a thread that are on their way together. Each is summed and solved in the order that it would be alone.
const ROWS: usize = 4;
/// Columns whose products with as many others are in registers together.
const SIDE: usize = 4;
const PRODUCTS: usize = SIDE * SIDE;
/// Columns of the products' square in the stage.
const MOST: u32 = crate::arith::powersgd::MOST_RANK;
/// Where in the stage the products are, each of two words; the warps' parts of some; and the squares of the columns.
const GRAM: u32 = 0;
const PARTS: u32 = GRAM + 2 * MOST * MOST;
const SQUARES: u32 = PARTS + 2 * PRODUCTS as u32 * WARPS;
/// Warps of a block.
const WARPS: u32 = THREADS / WARP;
/// Sweeps at most. The first leaves columns that are orthonormal to 2^-24 over the least sine, which is 2^-22 or more;
/// a second one squares what is left, and the last finds nothing to do but in the worst of cases.
const SWEEPS: u32 = 4;

kernel! {
    /// Takes factors that were all-reduced, and makes their columns orthonormal.
    ///
    /// # What
    /// With `TAKE`, copies the matrix's factor from `values` into its padded place, unless an entry cannot be used:
    /// then the matrix is marked. With `ORTHONORMAL`, makes its columns orthonormal; a column that depends on those
    /// before it becomes zeros. With `SEED`, such columns are drawn anew and that is done again.
    ///
    /// Where the state is on the device: with `START`, first copies the factor that the last step ended with, and takes
    /// poison off the tensor; with `COMMIT`, last makes both factors those that the step ended with, unless the matrix
    /// is poisoned, and marks what became of the tensor. The tensors behind the matrices are those that are not
    /// compressed, and have no more than that.
    ///
    /// # Arguments
    /// * `p`; `workspace`: table, marks and the factors that `p.factor` tells.
    /// * `values`: with `TAKE`, the factors of all matrices as they were sent. Read.
    /// * `input`, `residual`, `status`, `output`: not used.
    ///
    /// # Thread mapping
    /// A block a matrix. Products: a warp every eighth row of 32; the triangle: a lane a row; its inverse: a thread a
    /// row of the factor.
    ///
    /// # Shared memory
    /// 9 KiB of the stage, and two words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each matrix from `p.first_tile` on; with `START` and `COMMIT`, one for each
    /// tensor.
    ///
    /// # Traffic
    /// The factor r/4 + 1 times a sweep, from the L2 cache after the first; most often there are two sweeps. Coalesced.
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
        // SAFETY: the matrix is in the table, by the launch contract; all that is branched on around a barrier is the
        // same in all threads.
        unsafe {
            let matrix = Matrix::load(&b, p.first_tile + device::block());
            let is_plain = matrix.index >= p.matrices;
            let factor = Factor::of(&p, &matrix);
            if p.has(low_rank_flags::START) {
                start(&p, &b, &matrix, factor, is_plain);
            }
            let mut poisoned = false;
            if p.has(low_rank_flags::TAKE) {
                poisoned = if is_plain { matrix.mark(&p, &b, mark::POISONED) != 0 } else { take(&p, &b, &matrix, factor) };
            }
            if p.has(low_rank_flags::COMMIT) {
                commit(&p, &b, &matrix, poisoned, is_plain);
            }
            if !p.has(low_rank_flags::ORTHONORMAL) || is_plain {
                return;
            }
            let mut dependent = orthonormalise(&p, &b, factor);
            if p.has(low_rank_flags::SEED) && dependent != 0 {
                let tensor = p.tensor.wrapping_add(*b.word(matrix.index * matrix::WORDS + matrix::TENSOR));
                let mut step = p.step;
                if p.has(low_rank_flags::START) {
                    step = [*b.word(p.steps), *b.word(p.steps + 1)];
                }
                let stream = Stream { key: p.key, tensor, step };
                let mut k = 0;
                while dependent != 0 {
                    if dependent & 1 != 0 {
                        let mut i = device::thread();
                        while i < factor.entries {
                            *b.number(factor.at(k, i)) = seeded(stream, k, i);
                            i += THREADS;
                        }
                    }
                    dependent >>= 1;
                    k += 1;
                }
                device::barrier();
                orthonormalise(&p, &b, factor);
            }
        }
    }
}

/// Where a matrix's factor is.
#[derive(Clone, Copy)]
struct Factor {
    start: u32,
    stride: u32,
    entries: u32,
}

impl Factor {
    #[inline(always)]
    fn of(p: &LowRankParams, matrix: &Matrix) -> Self {
        let (start, entries) =
            if p.has(low_rank_flags::RIGHT) { (matrix.right, matrix.columns) } else { (matrix.left, matrix.rows) };
        Self { start: p.factor + start, stride: padded(entries), entries }
    }

    #[inline(always)]
    fn at(&self, column: u32, entry: u32) -> u32 {
        self.start + column * self.stride + entry
    }
}

/// Begins a step of a state that is on the device.
///
/// # Safety
/// All threads arrive together, and nothing else touches the tensor's factor and marks.
#[inline(always)]
unsafe fn start(p: &LowRankParams, b: &Buffers, matrix: &Matrix, factor: Factor, is_plain: bool) {
    // SAFETY: the caller brings all threads here, and nothing else touches the tensor's factor and marks.
    unsafe {
        if device::thread() == 0 {
            let marks = p.marks + matrix.index * mark::WORDS;
            *b.word(marks + mark::POISONED) = 0;
        }
        if is_plain {
            return;
        }
        let ended = if p.has(low_rank_flags::RIGHT) { p.right + matrix.right } else { p.left + matrix.left };
        copy(b.word(ended), b.word(factor.start), p.rank * factor.stride);
        device::barrier();
    }
}

/// Copies words, which all threads share out.
///
/// # Safety
/// They are there, and no thread touches what is written before the next barrier.
#[inline(always)]
unsafe fn copy(from: *const u32, to: *mut u32, words: u32) {
    let mut first = device::thread();
    while first < words {
        let mut ahead = [0; AHEAD];
        for k in 0..AHEAD {
            let at = first + k as u32 * THREADS;
            if at < words {
                // SAFETY: the caller ensures that the words are there.
                ahead[k] = unsafe { *from.add(at as usize) };
            }
        }
        for k in 0..AHEAD {
            let at = first + k as u32 * THREADS;
            if at < words {
                // SAFETY: the caller's: the word is this thread's.
                unsafe { *to.add(at as usize) = ahead[k] };
            }
        }
        first += AHEAD as u32 * THREADS;
    }
}

/// Ends a step of a state that is on the device.
///
/// # Safety
/// As [`start`], of both factors, after a barrier behind what was written of them; `poisoned` is the same in all
/// threads.
#[inline(always)]
unsafe fn commit(p: &LowRankParams, b: &Buffers, matrix: &Matrix, poisoned: bool, is_plain: bool) {
    // SAFETY: the caller brings all threads here, and nothing else touches the tensor's factors and marks.
    unsafe {
        if device::thread() == 0 {
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
            *b.word(marks + mark::SENT) = if is_plain { 0 } else { sent };
            *b.word(marks + mark::WARY_FOR) = next;
            *b.word(marks + mark::OUTCOME) = what;
            if matrix.index == 0 {
                let low = (*b.word(p.steps)).wrapping_add(1);
                *b.word(p.steps) = low;
                *b.word(p.steps + 1) = (*b.word(p.steps + 1)).wrapping_add(u32::from(low == 0));
            }
        }
        if is_plain || poisoned {
            return;
        }
        // Both factors of the step lie as far behind those that it ends with.
        let ended = if p.has(low_rank_flags::RIGHT) { p.right } else { p.left };
        let behind = p.factor - ended;
        for side in 0..2 {
            let (from, entries) =
                if side == 0 { (p.left + matrix.left, matrix.rows) } else { (p.right + matrix.right, matrix.columns) };
            copy(b.word(from + behind), b.word(from), p.rank * padded(entries));
        }
    }
}

/// Copies the factor from what was all-reduced, or marks the matrix. Whether it is poisoned.
///
/// # Safety
/// All threads arrive together, and nothing else touches the matrix's factor and marks.
#[inline(always)]
unsafe fn take(p: &LowRankParams, b: &Buffers, matrix: &Matrix, factor: Factor) -> bool {
    let right = u32::from(p.has(low_rank_flags::RIGHT));
    // SAFETY: the caller's; the factor is as long in `values` as here, but for the padding.
    unsafe {
        let sent = *b.word(matrix.index * matrix::WORDS + matrix::SENT + right);
        let mark = b.word(p.marks + matrix.index * mark::WORDS + mark::POISONED);
        let mut bad = *mark != 0;
        let mut first = device::thread();
        while first < p.rank * factor.entries {
            let mut ahead = [0.0; AHEAD];
            for k in 0..AHEAD {
                let at = first + k as u32 * THREADS;
                if at < p.rank * factor.entries {
                    ahead[k] = *b.values.add((sent + at) as usize);
                }
            }
            for k in 0..AHEAD {
                bad |= !usable(ahead[k]);
            }
            first += AHEAD as u32 * THREADS;
        }
        // Whether any thread has seen one: a word a warp.
        let votes = device::ballot(bad);
        if device::thread().is_multiple_of(WARP) {
            device::shared_store(device::thread() / WARP, votes);
        }
        device::barrier();
        let mut any = 0;
        for warp in 0..WARPS {
            any |= device::shared_load(warp);
        }
        if any != 0 {
            if device::thread() == 0 {
                *mark = 1;
            }
            return true;
        }
        for k in 0..p.rank {
            let from = b.values.add((sent + k * factor.entries) as usize);
            copy(from.cast(), b.word(factor.at(k, 0)), factor.entries);
        }
        device::barrier();
    }
    false
}

/// Makes the columns orthonormal, or zero. A bit for each that depended on those before it.
///
/// # Safety
/// All threads arrive together, after a barrier behind what was written of the factor.
#[inline(always)]
unsafe fn orthonormalise(p: &LowRankParams, b: &Buffers, factor: Factor) -> u32 {
    let mut dependent = 0;
    let mut sweep = 0;
    while sweep < SWEEPS {
        // SAFETY: the caller brings all threads here, a barrier after the factor was written.
        let least = unsafe {
            products(p, b, factor);
            let (zero, least) = triangle(p);
            dependent |= zero;
            solve(p, b, factor);
            least
        };
        // The same in all threads: all have read the same squares.
        sweep = if least >= ENOUGH { SWEEPS } else { sweep + 1 };
    }
    dependent
}

/// Where the product of two columns is.
#[inline(always)]
fn product_at(i: u32, j: u32) -> u32 {
    GRAM + 2 * (i * MOST + j)
}

/// Leaves the products of all pairs of columns in the stage, and their squares once more.
///
/// # Safety
/// As [`orthonormalise`].
#[inline(always)]
unsafe fn products(p: &LowRankParams, b: &Buffers, factor: Factor) {
    let (thread, lane, warp) = (device::thread(), device::thread() % WARP, device::thread() / WARP);
    let mut first = 0;
    while first < p.rank {
        let mut second = 0;
        while second <= first {
            let mut sums = [0.0f64; PRODUCTS];
            let mut row = thread;
            while row < factor.entries {
                // What is not there is zero, and changes no sum.
                // SAFETY: the columns are there.
                let a = unsafe { entries(p, b, factor, row, first) };
                let mut c = a;
                if second != first {
                    // SAFETY: as above.
                    c = unsafe { entries(p, b, factor, row, second) };
                }
                for r in 0..ROWS {
                    for i in 0..SIDE {
                        for j in 0..SIDE {
                            let at = i * SIDE + j;
                            sums[at] = device::fma_wide(f64::from(a[r][i]), f64::from(c[r][j]), sums[at]);
                        }
                    }
                }
                row += ROWS as u32 * THREADS;
            }
            // SAFETY: all threads are here; a word of the stage is written by one of them, and read behind a barrier.
            unsafe {
                let sum = over_lanes(sums);
                if lane < PRODUCTS as u32 {
                    device::stage_store_wide(PARTS + 2 * (warp * PRODUCTS as u32 + lane), sum);
                }
                device::barrier();
                if thread < PRODUCTS as u32 {
                    let mut sum = 0.0;
                    for warp in 0..WARPS {
                        sum += device::stage_load_wide(PARTS + 2 * (warp * PRODUCTS as u32 + thread));
                    }
                    let (i, j) = (first + thread / SIDE as u32, second + thread % SIDE as u32);
                    device::stage_store_wide(product_at(i, j), sum);
                    if i == j {
                        device::stage_store_wide(SQUARES + 2 * i, sum);
                    }
                }
                device::barrier();
            }
            second += SIDE as u32;
        }
        first += SIDE as u32;
    }
}

/// Entries of four columns from `first` on, of the rows `row`, `row + 256` and so on; zero for those that are not
/// there.
///
/// # Safety
/// The factor is there.
#[inline(always)]
unsafe fn entries(p: &LowRankParams, b: &Buffers, factor: Factor, row: u32, first: u32) -> [[f32; SIDE]; ROWS] {
    let mut values = [[0.0; SIDE]; ROWS];
    for r in 0..ROWS {
        let row = row + r as u32 * THREADS;
        for k in 0..SIDE {
            let column = first + k as u32;
            if row < factor.entries && column < p.rank {
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

/// Makes of the products the triangle L with L L^T = the products, with the inverse of its diagonal in place of it;
/// zero there for a column that depends on those before it. A bit for each such, and the least squared sine of one that
/// does not.
///
/// # Safety
/// As [`orthonormalise`]; the products are in the stage.
#[inline(always)]
unsafe fn triangle(p: &LowRankParams) -> (u32, f64) {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    let (mut dependent, mut least) = (0, 1.0);
    let mut j = 0;
    while j < p.rank {
        // SAFETY: all threads are here. Between two barriers a word is either read, or written by one thread.
        unsafe {
            let square = device::stage_load_wide(SQUARES + 2 * j);
            let rest = device::stage_load_wide(product_at(j, j));
            let mut inverse = 0.0;
            // Written so that a square that is zero makes the column dependent.
            if square > 0.0 && rest > DEPENDENT * square {
                let sine = rest / square;
                least = if sine < least { sine } else { least };
                inverse = 1.0 / device::sqrt(rest);
            } else {
                dependent |= 1 << j;
            }
            device::barrier();
            if warp == 0 && lane >= j && lane < p.rank {
                let at = product_at(lane, j);
                let product = if lane == j { 1.0 } else { device::stage_load_wide(at) };
                device::stage_store_wide(at, product * inverse);
            }
            device::barrier();
            let mut k = j + 1 + warp;
            while k <= lane && lane < p.rank {
                let term = device::stage_load_wide(product_at(lane, j)) * device::stage_load_wide(product_at(k, j));
                let at = product_at(lane, k);
                device::stage_store_wide(at, device::stage_load_wide(at) - term);
                k += WARPS;
            }
            device::barrier();
        }
        j += 1;
    }
    (dependent, least)
}

/// Multiplies the factor by the inverse transposed triangle.
///
/// # Safety
/// As [`orthonormalise`]; the triangle is in the stage.
#[inline(always)]
unsafe fn solve(p: &LowRankParams, b: &Buffers, factor: Factor) {
    let mut row = device::thread();
    while row < factor.entries {
        let mut first = 0;
        while first < p.rank {
            // SAFETY: the rows are this thread's.
            unsafe { solve_four(p, b, factor, row, first) };
            first += SIDE as u32;
        }
        row += ROWS as u32 * THREADS;
    }
    // SAFETY: the caller brings all threads here.
    unsafe { device::barrier() };
}

/// Rows of four columns: what they have in common with earlier ones is taken off, then with each other.
///
/// # Safety
/// The rows `row`, `row + 256` and so on are this thread's, and their earlier columns are done; the triangle is in the
/// stage.
#[inline(always)]
unsafe fn solve_four(p: &LowRankParams, b: &Buffers, factor: Factor, row: u32, first: u32) {
    // SAFETY: the caller ensures that the rows are this thread's, and that the factor has these columns.
    let mut sums = unsafe { entries(p, b, factor, row, first) }.map(|row| row.map(f64::from));
    let mut before = 0;
    // Both are multiples of four.
    while before < first {
        // SAFETY: as above; beyond the rank the stage holds products with zeros.
        unsafe {
            let earlier = entries(p, b, factor, row, before);
            for c in 0..SIDE {
                for k in 0..SIDE {
                    let of = device::stage_load_wide(product_at(first + k as u32, before + c as u32));
                    for r in 0..ROWS {
                        sums[r][k] = device::fma_wide(-of, f64::from(earlier[r][c]), sums[r][k]);
                    }
                }
            }
        }
        before += SIDE as u32;
    }
    for k in 0..SIDE {
        let column = first + k as u32;
        if column < p.rank {
            // SAFETY: as above.
            unsafe {
                let inverse = device::stage_load_wide(product_at(column, column));
                let mut values = [0.0; ROWS];
                for r in 0..ROWS {
                    values[r] = (sums[r][k] * inverse) as f32;
                    if row + r as u32 * THREADS < factor.entries {
                        *b.number(factor.at(column, row + r as u32 * THREADS)) = values[r];
                    }
                }
                for other in k + 1..SIDE {
                    let of = device::stage_load_wide(product_at(first + other as u32, column));
                    for r in 0..ROWS {
                        sums[r][other] = device::fma_wide(-of, f64::from(values[r]), sums[r][other]);
                    }
                }
            }
        }
    }
}

const _: () = assert!(SQUARES + 2 * MOST <= device::STAGE);
