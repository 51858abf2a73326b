//! Products by factors of more than eight columns, all at once, on tensor cores: the matrix is read once.
//!
//! Tensor cores multiply TF32 numbers, which have 11 bits of binary32's 24, and sum in binary32. So a number x is
//! written as big + small, big = x rounded to TF32 and small = x - big rounded to it, which leaves 2^-22 of x at most,
//! and a product is small big' + big small' + big big': what is left out, small small', is 2^-22 of it at most. An
//! element of the matrix of which big is infinite, within 2^-12 of the largest, counts as not finite.
//!
//! An instruction multiplies 16 x 8 by 8 x 8. With g = lane / 4 and t = lane % 4 a lane has of A the rows g and g + 8,
//! of the columns t and then t + 4; of B the rows t and t + 4 of column g; of their product the columns 2 t and 2 t + 1
//! of row g and then of g + 8. A is always the transposed factor, 16 of its columns; B is eight columns of eight rows
//! of M, transposed for the left product. Lanes read M as 32 neighbours of a row, and exchange what they have read
//! until each has what it needs of B.

use super::{Buffers, ROWS, Tile};
use crate::device::{self, WARP};
use crate::params::{LOW_RANK_TILE, LowRankParams, THREADS, matrix};

/// Columns of a factor in an instruction, and how many of them the largest rank takes.
const SIXTEEN: u32 = 16;
const HALVES: usize = crate::arith::powersgd::MOST_RANK.div_ceil(SIXTEEN) as usize;
/// Entries of the factor's columns that are in the stage together, in both parts.
const BAND: u32 = 64;
/// Words of a fragment of A, of all lanes.
const FRAGMENT: u32 = 4 * WARP;
/// Groups of eight rows of a warp, in the left product; groups of eight columns, in the right one.
const GROUPS: usize = 4;
/// Rows of four columns whose loads are in flight together, up to rank 8.
pub(super) const AHEAD: usize = 8;
/// Warps of a block.
const WARPS: u32 = THREADS / WARP;

/// A number of A or B, in two parts.
#[derive(Clone, Copy)]
struct Parts<const N: usize> {
    big: [u32; N],
    small: [u32; N],
}

impl<const N: usize> Parts<N> {
    #[inline(always)]
    fn of(x: [f32; N]) -> Self {
        let mut parts = Self { big: [0; N], small: [0; N] };
        for i in 0..N {
            parts.big[i] = device::tf32(x[i]);
            parts.small[i] = device::tf32(x[i] - f32::from_bits(parts.big[i]));
        }
        parts
    }
}

/// Copies 64 entries, from `first` on, of all columns of a factor into the stage, in both parts, as fragments of A:
/// eight entries after another, and of each the two halves of the columns.
///
/// # Safety
/// As `stage` of the module above.
#[inline(always)]
unsafe fn stage(p: &LowRankParams, b: &Buffers, (factor, stride): (u32, u32), first: u32) {
    let mut word = device::thread();
    // No constant, by which the loop would be unrolled.
    let behind = device::opaque(BAND * SIXTEEN * HALVES as u32);
    while word < behind {
        let (k, i) = (word / BAND, word % BAND);
        let mut entry = 0.0;
        if k < p.rank && first + i < stride {
            // SAFETY: the caller ensures that the factor has this column, and the column this entry.
            entry = unsafe { *b.number(factor + k * stride + first + i) };
        }
        let parts = Parts::of([entry]);
        let lane = k % 8 * 4 + i % 4;
        let at = place(i / 8, k / SIXTEEN) + lane * 4 + k / 8 % 2 + i / 4 % 2 * 2;
        // SAFETY: the words are this thread's.
        unsafe {
            device::stage_store(at, f32::from_bits(parts.big[0]));
            device::stage_store(at + FRAGMENT, f32::from_bits(parts.small[0]));
        }
        word += THREADS;
    }
}

/// Where in the stage a fragment's big part is; the small one follows.
#[inline(always)]
fn place(eight: u32, half: u32) -> u32 {
    (eight * HALVES as u32 + half) * 2 * FRAGMENT
}

/// A fragment of A.
///
/// # Safety
/// It is in the stage.
#[inline(always)]
unsafe fn fragment(eight: u32, half: u32) -> Parts<4> {
    let at = place(eight, half) + device::thread() % WARP * 4;
    // SAFETY: the caller ensures that the fragment is in the stage.
    unsafe {
        Parts {
            big: device::stage_load_four(at).map(f32::to_bits),
            small: device::stage_load_four(at + FRAGMENT).map(f32::to_bits),
        }
    }
}

/// `c` + A B; the small products first.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn add(c: [f32; 4], a: &Parts<4>, b: &Parts<2>) -> [f32; 4] {
    // SAFETY: the caller brings all lanes here.
    unsafe {
        let c = device::mma(a.small, b.big, c);
        let c = device::mma(a.big, b.small, c);
        device::mma(a.big, b.big, c)
    }
}

/// Exchanges, of eight values of a lane, bits of the index of a value for bits of the lane's: bit `i` for bit `i` +
/// `first`, of the first `BITS`.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn turn<const BITS: usize>(mut values: [f32; ROWS], first: u32) -> [f32; ROWS] {
    for bit in 0..BITS {
        let mask = 1 << (first + bit as u32);
        let upper = device::thread() & mask != 0;
        for low in 0..ROWS {
            let high = low | 1 << bit;
            if low == high {
                continue;
            }
            let give = if upper { values[low] } else { values[high] };
            // SAFETY: the caller brings all lanes here.
            let other = unsafe { f32::from_bits(device::shuffle_xor(give.to_bits(), mask)) };
            if upper {
                values[low] = other;
            } else {
                values[high] = other;
            }
        }
    }
    values
}

/// Eight elements of a column, `stride` apart; those that are not there are zero.
///
/// # Safety
/// The first `rows` are bound.
#[inline(always)]
unsafe fn eight<const FULL: bool>(b: &Buffers, at: u32, stride: u32, rows: u32) -> [f32; ROWS] {
    let mut values = [0.0; ROWS];
    for j in 0..ROWS {
        if FULL || (j as u32) < rows {
            // SAFETY: the caller ensures that the first `rows` elements are bound.
            values[j] = unsafe { *b.residual.add((at + j as u32 * stride) as usize) };
        }
    }
    values
}

/// A tile's share of M Q, of what was formed. A warp has 32 rows.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
pub(super) unsafe fn left(p: &LowRankParams, b: &Buffers, tile: &Tile) {
    let (matrix, lane) = (tile.matrix, device::thread() % WARP);
    let row = device::thread() / WARP * WARP;
    let rows = tile.rows().saturating_sub(row);
    let mut sums = [[[0.0f32; 4]; GROUPS]; HALVES];
    let mut band = 0;
    while band < tile.columns() {
        // SAFETY: all threads are here; between the barriers the stage is only written, and each word by one thread.
        unsafe {
            device::barrier();
            stage(p, b, (p.factor + matrix.right, matrix.column_stride()), tile.column + band);
            device::barrier();
        }
        let mut strip = band;
        while strip < tile.columns() && strip < band + BAND && rows > 0 {
            let mut m = [[0.0; ROWS]; GROUPS];
            let at = tile.at + row * matrix.columns + strip + lane;
            // SAFETY: what is read is bound; all lanes are here.
            unsafe {
                if rows >= WARP && strip + WARP <= tile.columns() {
                    for group in 0..GROUPS {
                        let at = at + (group * ROWS) as u32 * matrix.columns;
                        m[group] = eight::<true>(b, at, matrix.columns, ROWS as u32);
                    }
                } else if strip + lane < tile.columns() {
                    for group in 0..GROUPS {
                        let before = (group * ROWS) as u32;
                        let at = at + before * matrix.columns;
                        m[group] = eight::<false>(b, at, matrix.columns, rows.saturating_sub(before));
                    }
                }
                // Of row g the columns t, t + 4, up to t + 28.
                for group in 0..GROUPS {
                    m[group] = turn::<3>(m[group], 2);
                }
                for four in 0..WARP as usize / 8 {
                    let mut columns = [Parts { big: [0; 2], small: [0; 2] }; GROUPS];
                    for group in 0..GROUPS {
                        columns[group] = Parts::of([m[group][2 * four], m[group][2 * four + 1]]);
                    }
                    for half in 0..HALVES {
                        if half as u32 * SIXTEEN < p.rank {
                            let a = fragment((strip - band) / 8 + four as u32, half as u32);
                            for group in 0..GROUPS {
                                sums[half][group] = add(sums[half][group], &a, &columns[group]);
                            }
                        }
                    }
                }
            }
            strip += WARP;
        }
        band += BAND;
    }
    // SAFETY: the table is there.
    let shares = unsafe { *b.word(matrix.index * matrix::WORDS + matrix::SHARES) };
    let from = p.shares + shares + tile.column / LOW_RANK_TILE * p.rank * matrix.row_stride();
    // SAFETY: the share is there.
    unsafe { write(p, b, (from, matrix.row_stride()), tile.row + row, &sums) };
}

/// A tile's share of M^T P, of what was formed. A warp has 32 columns.
///
/// # Safety
/// As [`left`].
#[inline(always)]
pub(super) unsafe fn right(p: &LowRankParams, b: &Buffers, tile: &Tile) {
    let (matrix, lane) = (tile.matrix, device::thread() % WARP);
    let column = device::thread() / WARP * WARP;
    // Of a lane's number its columns' upper bits are the lower ones, which are exchanged.
    let here = column + lane / 4 + lane % 4 * 8;
    let mut sums = [[[0.0f32; 4]; GROUPS]; HALVES];
    let mut band = 0;
    while band < tile.rows() {
        // SAFETY: all threads are here; between the barriers the stage is only written, and each word by one thread.
        unsafe {
            device::barrier();
            stage(p, b, (p.factor + matrix.left, matrix.row_stride()), tile.row + band);
            device::barrier();
        }
        let mut row = band;
        while row < tile.rows() && row < band + BAND && column < tile.columns() {
            const DEEP: usize = 2;
            let rows = tile.rows() - row;
            let mut m = [[0.0; ROWS]; DEEP];
            let at = tile.at + row * matrix.columns + here;
            // SAFETY: what is read is bound; all lanes are here.
            unsafe {
                if rows >= (DEEP * ROWS) as u32 && column + WARP <= tile.columns() {
                    for deep in 0..DEEP {
                        let at = at + (deep * ROWS) as u32 * matrix.columns;
                        m[deep] = eight::<true>(b, at, matrix.columns, ROWS as u32);
                    }
                } else if here < tile.columns() {
                    for deep in 0..DEEP {
                        let before = (deep * ROWS) as u32;
                        let at = at + before * matrix.columns;
                        m[deep] = eight::<false>(b, at, matrix.columns, rows.saturating_sub(before));
                    }
                }
                for deep in 0..DEEP {
                    // Of the rows t, and then of t + 4, the columns g, g + 8, g + 16 and g + 24.
                    let m = turn::<2>(m[deep], 0);
                    let mut columns = [Parts { big: [0; 2], small: [0; 2] }; GROUPS];
                    for group in 0..GROUPS {
                        columns[group] = Parts::of([m[group], m[GROUPS + group]]);
                    }
                    for half in 0..HALVES {
                        if half as u32 * SIXTEEN < p.rank {
                            let a = fragment((row - band) / 8 + deep as u32, half as u32);
                            for group in 0..GROUPS {
                                sums[half][group] = add(sums[half][group], &a, &columns[group]);
                            }
                        }
                    }
                }
            }
            row += (DEEP * ROWS) as u32;
        }
        band += BAND;
    }
    // SAFETY: the table is there.
    let shares = unsafe { *b.word(matrix.index * matrix::WORDS + matrix::SHARES + 1) };
    let from = p.shares + shares + tile.row / LOW_RANK_TILE * p.rank * matrix.column_stride();
    // SAFETY: the share is there.
    unsafe { write(p, b, (from, matrix.column_stride()), tile.column + column, &sums) };
}

/// Writes 32 entries of the columns of a share, from `first` on: eight of each group.
///
/// # Safety
/// The share begins at word `from`, an even one, and has columns `stride` apart, an even number of words.
#[inline(always)]
unsafe fn write(
    p: &LowRankParams,
    b: &Buffers,
    (from, stride): (u32, u32),
    first: u32,
    sums: &[[[f32; 4]; GROUPS]; HALVES],
) {
    let lane = device::thread() % WARP;
    for half in 0..HALVES {
        for group in 0..GROUPS {
            for upper in 0..2 {
                let k = half as u32 * SIXTEEN + upper as u32 * 8 + lane / 4;
                let entry = first + (group * ROWS) as u32 + lane % 4 * 2;
                let [low, high] = [0, 1].map(|i: usize| u64::from(sums[half][group][upper * 2 + i].to_bits()));
                if k < p.rank && entry < stride {
                    // SAFETY: the caller's; columns are padded to an even number of entries.
                    unsafe { *b.word(from + k * stride + entry).cast::<u64>() = low | high << 32 };
                }
            }
        }
    }
}

const _: () = assert!(BAND / 8 * HALVES as u32 * 2 * FRAGMENT <= device::STAGE && WARPS * WARP == LOW_RANK_TILE);
