//! Tiles whose rows begin at sectors, read four columns at once: up to rank 8.
//!
//! A thread has four columns of four rows together, so that sixteen bytes are an access, and 128 bytes of a thread are
//! on their way from memory before the first is used. What has to be decided is decided once for sixteen elements, or
//! without a branch. Other tiles are taken in the order of `order.rs`.

use super::many::AHEAD;
use super::order::{FACTOR, LEFT, RIGHT, WIDTH, WIDTH_LOG2};
use super::{Buffers, FOUR, Form, Tile, value};
use crate::arith::float::bf16_to_f32;
use crate::arith::powersgd::{kept, term};
use crate::device::{self, WARP};
use crate::params::{LOW_RANK_TILE, LOW_RANK_TOGETHER, LowRankParams, THREADS, dtype, matrix};

/// Columns of a factor whose sums are in registers together.
const TOGETHER: usize = LOW_RANK_TOGETHER as usize;
/// Four columns of as many rows.
const SQUARE: usize = FOUR * FOUR;
/// Sums of four rows, or of four columns.
const SUMS: usize = TOGETHER * FOUR;
/// Elements after which every type is at a sector again.
const SECTOR: u32 = 16;
/// Threads that have the columns of a row, and how many rows the threads of a block have at once.
const ACROSS: u32 = LOW_RANK_TILE / FOUR as u32;
const DOWN: u32 = THREADS / ACROSS;

/// Four numbers of one access.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Four([f32; FOUR]);

/// Four halves of one access, in pairs.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct FourHalves([u32; 2]);

/// A type of elements, as four of them are read.
pub(super) trait Read {
    type Raw: Copy;
    const NONE: Self::Raw;

    /// # Safety
    /// The four elements from `at` on, a multiple of four, are bound.
    unsafe fn read(input: *const u8, at: u32) -> Self::Raw;

    /// The numbers, of the type that `dtype` says.
    fn numbers(raw: Self::Raw, dtype: u32) -> [f32; FOUR];
}

/// f32.
pub(super) struct Single;

/// f16 and bf16.
pub(super) struct Halves;

impl Read for Single {
    type Raw = [f32; FOUR];
    const NONE: Self::Raw = [0.0; FOUR];

    #[inline(always)]
    unsafe fn read(input: *const u8, at: u32) -> Self::Raw {
        // SAFETY: the caller ensures that the elements are bound.
        unsafe { (*input.cast::<f32>().add(at as usize).cast::<Four>()).0 }
    }

    #[inline(always)]
    fn numbers(raw: Self::Raw, _: u32) -> [f32; FOUR] {
        raw
    }
}

impl Read for Halves {
    type Raw = [u32; 2];
    const NONE: Self::Raw = [0; 2];

    #[inline(always)]
    unsafe fn read(input: *const u8, at: u32) -> Self::Raw {
        // SAFETY: the caller ensures that the elements are bound.
        unsafe { (*input.cast::<u16>().add(at as usize).cast::<FourHalves>()).0 }
    }

    #[inline(always)]
    fn numbers(raw: Self::Raw, dtype: u32) -> [f32; FOUR] {
        let mut numbers = [0.0; FOUR];
        for i in 0..FOUR {
            let half = (raw[i / 2] >> (i % 2 * 16)) as u16;
            numbers[i] = if dtype == dtype::F16 { device::half_to_f32(half) } else { bf16_to_f32(half) };
        }
        numbers
    }
}

/// Whether the rows of a tile begin at sectors, wherever the buffers are.
#[inline(always)]
pub(super) fn fit(b: &Buffers, tile: &Tile) -> bool {
    let buffers = b.input.addr() | b.residual.addr() | b.output.addr();
    (tile.matrix.columns | tile.at).is_multiple_of(SECTOR) && buffers.is_multiple_of(align_of::<Four>())
}

/// Forms four rows of a tile, from `row` on, a multiple of four, and multiplies them by eight columns of the right
/// factor: of each of those, this lane's part of the four rows' sums.
///
/// # Safety
/// The tile fits, its rows are there and this warp's, the stage is filled.
#[inline(always)]
pub(super) unsafe fn left<R: Read>(p: &LowRankParams, b: &Buffers, tile: &Tile, form: Form, row: u32) -> [f32; SUMS] {
    let lane = device::thread() % WARP;
    let stride = tile.matrix.columns;
    let mut sums = [0.0f32; SUMS];
    let mut here = lane * FOUR as u32;
    while here < tile.columns() {
        let at = tile.at + row * stride + here;
        // SAFETY: the caller ensures that the elements are bound and this lane's, and the stage filled.
        unsafe {
            let m = formed::<R>(p, b, form, (at, stride), (row, here));
            for four in 0..TOGETHER / FOUR {
                if (four * FOUR) as u32 >= p.rank {
                    continue;
                }
                for k in four * FOUR..(four + 1) * FOUR {
                    let q = device::stage_load_four(FACTOR + k as u32 * WIDTH + here);
                    for i in 0..FOUR {
                        for j in 0..FOUR {
                            sums[k * FOUR + j] = device::fma(m[j * FOUR + i], q[i], sums[k * FOUR + j]);
                        }
                    }
                }
            }
        }
        here += WARP * FOUR as u32;
    }
    sums
}

/// Gradient + residual of four columns of four rows, which becomes the residual.
///
/// # Safety
/// The elements from `at` on, a multiple of four, are bound and this thread's, the stage is filled.
#[inline(always)]
unsafe fn formed<R: Read>(
    p: &LowRankParams,
    b: &Buffers,
    form: Form,
    (at, stride): (u32, u32),
    (row, here): (u32, u32),
) -> [f32; SQUARE] {
    // All loads stand before the first use of one, so that they are in flight together.
    let mut raw = [R::NONE; FOUR];
    let mut old = [0.0; SQUARE];
    for j in 0..FOUR {
        // SAFETY: the caller's.
        raw[j] = unsafe { R::read(b.input, at + j as u32 * stride) };
    }
    if form.feedback {
        for j in 0..FOUR {
            // SAFETY: the caller's.
            let some = unsafe { residual(b, at + j as u32 * stride) };
            for i in 0..FOUR {
                old[j * FOUR + i] = some[i];
            }
        }
        if form.rest {
            // SAFETY: the stage is filled.
            let less = unsafe { product(p.rank, row, |k| device::stage_load_four(RIGHT + k * WIDTH + here)) };
            for i in 0..SQUARE {
                old[i] = kept(old[i] - less[i], 0.0);
            }
        }
    }
    let mut sums = [0.0; SQUARE];
    for j in 0..FOUR {
        let numbers = R::numbers(raw[j], p.dtype);
        for i in 0..FOUR {
            sums[j * FOUR + i] = numbers[i] + old[j * FOUR + i];
        }
    }
    if form.write {
        for i in 0..SQUARE {
            // Of what is not finite, what was there stays.
            old[i] = if sums[i].is_finite() { sums[i] } else { old[i] };
        }
        // Where something was taken off, zero was put in the place of what is not finite.
        if !form.rest {
            for i in 0..SQUARE {
                old[i] = kept(old[i], 0.0);
            }
        }
        // Places are made anew: all of them would wait in registers for the gradient.
        let again = device::opaque(at);
        for j in 0..FOUR {
            let of = [old[j * FOUR], old[j * FOUR + 1], old[j * FOUR + 2], old[j * FOUR + 3]];
            // SAFETY: the caller's.
            unsafe { *b.residual.add((again + j as u32 * stride) as usize).cast::<Four>() = Four(of) };
        }
    }
    sums
}

/// # Safety
/// The four elements from `at` on, a multiple of four, are bound.
#[inline(always)]
unsafe fn residual(b: &Buffers, at: u32) -> [f32; FOUR] {
    // SAFETY: the caller's.
    unsafe { (*b.residual.add(at as usize).cast::<Four>()).0 }
}

/// Four columns of four rows of L R^T, from `row` on: `rights` gives R's four entries of a column. None fused, in the
/// order of the columns: the CPU's bits.
///
/// # Safety
/// The stage has L's entries.
#[inline(always)]
unsafe fn product(rank: u32, row: u32, rights: impl Fn(u32) -> [f32; FOUR]) -> [f32; SQUARE] {
    let mut less = [0.0; SQUARE];
    for four in 0..TOGETHER / FOUR {
        if (four * FOUR) as u32 >= rank {
            continue;
        }
        for k in four * FOUR..(four + 1) * FOUR {
            // SAFETY: the caller ensures that L is in the stage.
            let left = unsafe { device::stage_load_four(LEFT + k as u32 * WIDTH + row) };
            let right = rights(k as u32);
            for j in 0..FOUR {
                for i in 0..FOUR {
                    let sum = less[j * FOUR + i];
                    less[j * FOUR + i] = if k == 0 { left[j] * right[i] } else { term(sum, left[j], right[i]) };
                }
            }
        }
    }
    less
}

/// The tile's share of M^T P, of what was formed, of eight columns of P from `first` on, which are in the stage.
///
/// # Safety
/// All threads of the block arrive together. The tile fits, the share is there, the rest of the stage and the bins are
/// free.
#[inline(always)]
pub(super) unsafe fn right(p: &LowRankParams, b: &Buffers, tile: &Tile, first: u32) {
    let (matrix, thread) = (tile.matrix, device::thread());
    let (across, down) = (thread % ACROSS, thread / ACROSS);
    let here = across * FOUR as u32;
    let mut sums = [0.0f32; SUMS];
    if here < tile.columns() {
        let mut row = down * EIGHT as u32;
        while row < tile.rows() {
            let at = tile.at + row * matrix.columns + here;
            let rows = tile.rows() - row;
            // SAFETY: rows below `rows` are bound; P is in the stage.
            unsafe {
                for part in 0..EIGHT / AHEAD {
                    let before = (part * AHEAD) as u32;
                    let from = (at + before * matrix.columns, matrix.columns, rows.saturating_sub(before));
                    if rows >= EIGHT as u32 {
                        ahead::<true>(p, b, from, row + before, first, &mut sums);
                    } else {
                        ahead::<false>(p, b, from, row + before, first, &mut sums);
                    }
                }
            }
            row += DOWN * EIGHT as u32;
        }
    }
    // SAFETY: all threads are here; between barriers each word is one thread's. The table and the share are there.
    unsafe {
        device::barrier();
        for i in 0..SUMS {
            let word = i as u32 * ACROSS + across;
            if down == 0 {
                device::bin_store(word, sums[i].to_bits());
            } else {
                device::stage_store((down - 1) * PARTS + word, sums[i]);
            }
        }
        device::barrier();
        if thread < tile.columns() {
            let shares = p.shares + *b.word(matrix.index * matrix::WORDS + matrix::SHARES + 1);
            let from = (tile.row >> WIDTH_LOG2) * p.rank + first;
            for k in 0..LOW_RANK_TOGETHER {
                if first + k < p.rank {
                    let word = (k * FOUR as u32 + thread % FOUR as u32) * ACROSS + thread / FOUR as u32;
                    let mut sum = f32::from_bits(device::bin_load(word));
                    for part in 0..DOWN - 1 {
                        sum += device::stage_load(part * PARTS + word);
                    }
                    *b.number(shares + (from + k) * matrix.column_stride() + tile.column + thread) = sum;
                }
            }
        }
    }
}

/// Rows that a thread takes one after another where nothing is formed.
const EIGHT: usize = 2 * FOUR;
/// Words of the sums of a part of the rows.
const PARTS: u32 = SUMS as u32 * ACROSS;

/// Adds [`AHEAD`] rows of four columns, times P.
///
/// # Safety
/// The rows below `rows` are bound, all of them with `FULL`. P is in the stage.
#[inline(always)]
unsafe fn ahead<const FULL: bool>(
    p: &LowRankParams,
    b: &Buffers,
    (at, stride, rows): (u32, u32, u32),
    row: u32,
    first: u32,
    sums: &mut [f32; SUMS],
) {
    let mut m = [[0.0; FOUR]; AHEAD];
    for j in 0..AHEAD {
        if FULL || (j as u32) < rows {
            // SAFETY: the caller's.
            m[j] = unsafe { residual(b, at + j as u32 * stride) };
        }
    }
    for four in 0..TOGETHER / FOUR {
        if first + (four * FOUR) as u32 >= p.rank {
            continue;
        }
        for k in four * FOUR..(four + 1) * FOUR {
            for half in 0..AHEAD / FOUR {
                let from = FACTOR + k as u32 * WIDTH + row + (half * FOUR) as u32;
                // SAFETY: P is in the stage.
                let left = unsafe { device::stage_load_four(from) };
                for j in 0..FOUR {
                    for i in 0..FOUR {
                        sums[k * FOUR + i] = device::fma(m[half * FOUR + j][i], left[j], sums[k * FOUR + i]);
                    }
                }
            }
        }
    }
}

/// Writes L R^T of the tile, of factors of eight columns at most, which are in the stage.
///
/// # Safety
/// The tile fits and is bound.
#[inline(always)]
pub(super) unsafe fn expand(p: &LowRankParams, b: &Buffers, tile: &Tile, poisoned: bool) {
    let here = device::thread() % ACROSS * FOUR as u32;
    if here >= tile.columns() {
        return;
    }
    let mut rights = [[0.0; FOUR]; TOGETHER];
    for k in 0..TOGETHER {
        // SAFETY: R is in the stage.
        rights[k] = unsafe { device::stage_load_four(RIGHT + k as u32 * WIDTH + here) };
    }
    let mut row = device::thread() / ACROSS * FOUR as u32;
    while row < tile.rows() {
        // SAFETY: L is in the stage.
        let sums = unsafe { product(p.rank, row, |k| rights[k as usize]) };
        for j in 0..FOUR {
            if row + (j as u32) < tile.rows() {
                let at = tile.at + (row + j as u32) * tile.matrix.columns + here;
                let mut of = [0.0; FOUR];
                for i in 0..FOUR {
                    of[i] = value(poisoned, sums[j * FOUR + i]);
                }
                // SAFETY: the elements are bound, and this thread's.
                unsafe { *b.output.add(at as usize).cast::<Four>() = Four(of) };
            }
        }
        row += DOWN * FOUR as u32;
    }
}

const _: () = assert!(PARTS == device::BINS && (DOWN - 1) * PARTS <= device::STAGE);
