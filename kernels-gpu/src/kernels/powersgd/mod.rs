//! PowerSGD: what its kernels share. Where things are, and how gradient + residual is formed.
//!
//! A tile is 256 rows of 256 columns. The sums of a tile are in binary32, with fused multiply-adds, each in one order;
//! what the tiles of a row or a column give is summed in binary64, in order. So they are the same from run to run, and
//! off by less than the CPU's, whose order is another. Above rank 8 tensor cores sum, where there are any: see
//! `tensor.rs`.

mod expand;
mod factor;
mod gather;
mod left;
// Products by more than eight columns. Where there are tensor cores; `device/mod.rs` says the same.
#[cfg_attr(all(target_arch = "nvptx64", target_feature = "sm_80", not(feature = "rust-cuda")), path = "tensor.rs")]
#[cfg_attr(not(all(target_arch = "nvptx64", target_feature = "sm_80", not(feature = "rust-cuda"))), path = "eight.rs")]
mod many;
mod order;
mod plain;
mod products;
mod quads;
mod right;
mod share;

use crate::arith::float::{NAN_BITS, bf16_to_f32};
use crate::arith::powersgd::{kept, term};
use crate::device;
use crate::params::{
    LOW_RANK_PAD, LOW_RANK_TILE, LOW_RANK_TILE_WORDS, LowRankParams, dtype, low_rank_flags, mark, matrix,
};

/// Rows that are worked on together: as many are in flight from memory.
const ROWS: usize = 8;
/// Columns of a factor that are worked on together, with a branch for all of them.
const FOUR: usize = 4;
/// What a right factor is padded with: times a left one's zero it is what changes no number it is added to, minus zero
/// included.
const NO_RIGHT: f32 = -0.0;

/// The kernels' buffers, in the order in which they take them.
#[derive(Clone, Copy)]
struct Buffers {
    /// The gradient, in its own type.
    input: *const u8,
    /// The residual, or gradient + residual.
    residual: *mut f32,
    /// Everything between passes.
    workspace: *mut u32,
    /// Where the first element is that is not finite.
    status: *mut u32,
    /// L R^T.
    output: *mut f32,
    /// The factors as they are sent.
    values: *mut f32,
}

impl Buffers {
    /// A word of the workspace.
    ///
    /// # Safety
    /// It is there.
    #[inline(always)]
    unsafe fn word(&self, at: u32) -> *mut u32 {
        // SAFETY: the caller ensures that the word is there.
        unsafe { self.workspace.add(at as usize) }
    }

    /// A number of the workspace.
    ///
    /// # Safety
    /// It is there.
    #[inline(always)]
    unsafe fn number(&self, at: u32) -> *mut f32 {
        // SAFETY: the caller ensures that the word is there.
        unsafe { self.word(at).cast() }
    }
}

/// A matrix of the table.
#[derive(Clone, Copy)]
struct Matrix {
    index: u32,
    first: u32,
    rows: u32,
    columns: u32,
    /// Where its left and its right factor begin among all, padded.
    left: u32,
    right: u32,
}

impl Matrix {
    /// # Safety
    /// The table has a matrix of this index.
    #[inline(always)]
    unsafe fn load(b: &Buffers, index: u32) -> Self {
        // SAFETY: the caller ensures that the table has this matrix.
        let word = |at: u32| unsafe { *b.word(index * matrix::WORDS + at) };
        Self {
            index,
            first: word(matrix::FIRST),
            rows: word(matrix::ROWS),
            columns: word(matrix::COLUMNS),
            left: word(matrix::PADDED),
            right: word(matrix::PADDED + 1),
        }
    }

    /// From a column of the left factor to the next.
    #[inline(always)]
    fn row_stride(&self) -> u32 {
        padded(self.rows)
    }

    /// From a column of the right factor to the next.
    #[inline(always)]
    fn column_stride(&self) -> u32 {
        padded(self.columns)
    }

    /// # Safety
    /// The marks are there.
    #[inline(always)]
    unsafe fn mark(&self, p: &LowRankParams, b: &Buffers, which: u32) -> u32 {
        // SAFETY: the caller ensures that the marks are there.
        unsafe { *b.word(p.marks + self.index * mark::WORDS + which) }
    }
}

/// Entries of a factor's column with its padding.
#[inline(always)]
fn padded(entries: u32) -> u32 {
    entries.div_ceil(LOW_RANK_PAD) * LOW_RANK_PAD
}

/// The tile of this block.
#[derive(Clone, Copy)]
struct Tile {
    matrix: Matrix,
    row: u32,
    column: u32,
    /// Where the tile's first element is in what is bound.
    at: u32,
}

impl Tile {
    /// # Safety
    /// The list of tiles and the table are there, and the launch has no more blocks than tiles.
    #[inline(always)]
    unsafe fn here(p: &LowRankParams, b: &Buffers) -> Self {
        // Read again later, nothing of it is to wait in a register meanwhile.
        let at = p.tiles + device::opaque(p.first_tile + device::block()) * LOW_RANK_TILE_WORDS;
        // SAFETY: the caller ensures that table and list are there, and that the list has a tile for each block.
        unsafe {
            let matrix = Matrix::load(b, *b.word(at));
            let (row, column) = (*b.word(at + 1), *b.word(at + 2));
            Self { matrix, row, column, at: matrix.first - p.first + row * matrix.columns + column }
        }
    }

    /// Rows of the tile.
    #[inline(always)]
    fn rows(&self) -> u32 {
        (self.matrix.rows - self.row).min(LOW_RANK_TILE)
    }

    /// Columns of the tile.
    #[inline(always)]
    fn columns(&self) -> u32 {
        (self.matrix.columns - self.column).min(LOW_RANK_TILE)
    }
}

/// What gradient + residual is formed from.
#[derive(Clone, Copy)]
struct Form {
    form: bool,
    /// Whether there is a residual to add.
    feedback: bool,
    /// Whether L R^T is to be taken off the residual.
    rest: bool,
    /// Whether the residual becomes what is formed.
    write: bool,
}

/// Whether a look at all elements has found one that is not finite, and the residual is to stay.
///
/// # Safety
/// With `GUARDED`, the status is there, and this launch does not write it.
#[inline(always)]
unsafe fn refused(p: &LowRankParams, b: &Buffers) -> bool {
    // SAFETY: the caller ensures that with `GUARDED` the status is there, and not written meanwhile.
    p.has(low_rank_flags::GUARDED) && unsafe { *b.status } != 0
}

impl Form {
    /// # Safety
    /// The marks are there, and with `GUARDED` the status.
    #[inline(always)]
    unsafe fn new(p: &LowRankParams, b: &Buffers, matrix: &Matrix) -> Self {
        let form = p.has(low_rank_flags::FORM);
        let mut sent = mark::DROPPED;
        if form && p.has(low_rank_flags::FEEDBACK) {
            // SAFETY: the caller ensures that the marks are there.
            sent = unsafe { matrix.mark(p, b, mark::SENT) };
        }
        // SAFETY: the caller ensures that with `GUARDED` the status is there.
        let write = form && !p.has(low_rank_flags::SCAN) && !unsafe { refused(p, b) };
        Self { form, feedback: sent != mark::DROPPED, rest: sent == 1, write }
    }
}

/// What is taken off the residuals of `N` elements. No closure: one of this length is not inlined.
trait Less<const N: usize> {
    /// # Safety
    /// What it is made of is in the stage.
    unsafe fn of(&self) -> [f32; N];
}

/// `N` elements of a column, from `at` on and `stride` apart: gradient + residual, or what was left of it before. With
/// `FULL` all are there, else those below `rows`; of others nothing is read, and they are zero.
///
/// `less` gives what is taken off the residuals. With `form.write` the residual becomes the sum, unless that is not
/// finite.
///
/// # Safety
/// The elements are bound, and no other thread's; what `less` is made of is there.
#[inline(always)]
unsafe fn elements<const FULL: bool, const N: usize>(
    p: &LowRankParams,
    b: &Buffers,
    form: Form,
    (at, stride, rows): (u32, u32, u32),
    less: &impl Less<N>,
) -> [f32; N] {
    let there = |j: usize| FULL || (j as u32) < rows;
    let place = |j: usize| (at + j as u32 * stride) as usize;
    let mut old = [0.0; N];
    if !form.form {
        for j in 0..N {
            if there(j) {
                // SAFETY: the caller's, as the element is there.
                old[j] = unsafe { *b.residual.add(place(j)) };
            }
        }
        return old;
    }
    // All loads stand before the first use of one, so that they are in flight together.
    let mut raw = [0; N];
    if p.dtype == dtype::F32 {
        for j in 0..N {
            if there(j) {
                // SAFETY: as above.
                raw[j] = unsafe { *b.input.cast::<u32>().add(place(j)) };
            }
        }
    } else {
        for j in 0..N {
            if there(j) {
                // SAFETY: as above.
                raw[j] = u32::from(unsafe { *b.input.cast::<u16>().add(place(j)) });
            }
        }
    }
    if form.feedback {
        for j in 0..N {
            if there(j) {
                // SAFETY: as above.
                old[j] = unsafe { *b.residual.add(place(j)) };
            }
        }
        if form.rest {
            // SAFETY: the caller ensures that the factors' entries that `less` is made of are in the stage.
            let less = unsafe { less.of() };
            for j in 0..N {
                old[j] = kept(old[j] - less[j], 0.0);
            }
        }
    }
    if p.dtype == dtype::F16 {
        raw = raw.map(|half| device::half_to_f32(half as u16).to_bits());
    } else if p.dtype == dtype::BF16 {
        raw = raw.map(|half| bf16_to_f32(half as u16).to_bits());
    }
    // Places are made anew: all of them would wait in registers for the gradient.
    let again = device::opaque(at);
    let mut sums = [0.0; N];
    for j in 0..N {
        sums[j] = f32::from_bits(raw[j]) + old[j];
        if there(j) {
            if form.write {
                // SAFETY: as above.
                unsafe { *b.residual.add((again + j as u32 * stride) as usize) = kept(sums[j], old[j]) };
            }
        } else {
            sums[j] = 0.0;
        }
    }
    sums
}

/// Copies entries of `columns` columns of a factor into the stage, column by column, `width` of each from `first` on.
/// What is not there is `pad`; `place` is where in its column an entry is put.
///
/// # Safety
/// The factor begins at word `factor` and has `p.rank` columns, `stride` apart; the stage has room from `to` on, which
/// nothing reads.
#[inline(always)]
unsafe fn stage(
    p: &LowRankParams,
    b: &Buffers,
    (factor, stride): (u32, u32),
    (column, columns): (u32, u32),
    (first, width_log2): (u32, u32),
    (to, pad): (u32, f32),
    place: impl Fn(u32) -> u32,
) {
    let mut word = device::thread();
    while word < columns << width_log2 {
        let i = word & ((1 << width_log2) - 1);
        let k = column + (word >> width_log2);
        let mut entry = pad;
        if k < p.rank && first + i < stride {
            // SAFETY: the caller ensures that the factor has this column, and the column this entry.
            entry = unsafe { *b.number(factor + k * stride + first + i) };
        }
        // SAFETY: the word is this thread's.
        unsafe { device::stage_store(to + word - i + place(i), entry) };
        word += crate::params::THREADS;
    }
}

/// Four columns' terms of `N` entries of L R^T, added in order: `lefts` is where the rows' entries of the first column
/// are in the stage, `from` a column to the next.
///
/// # Safety
/// The entries are there.
#[inline(always)]
unsafe fn terms<const N: usize>(
    mut sums: [f32; N],
    first: bool,
    lefts: u32,
    from: u32,
    rights: [f32; FOUR],
) -> [f32; N] {
    for k in 0..FOUR {
        // SAFETY: the caller ensures that the entries are in the stage.
        let left: [f32; N] = unsafe { loaded(lefts + k as u32 * from) };
        for j in 0..N {
            sums[j] = if first && k == 0 { left[j] * rights[k] } else { term(sums[j], left[j], rights[k]) };
        }
    }
    sums
}

/// What is written of an entry of L R^T.
#[inline(always)]
fn value(poisoned: bool, sum: f32) -> f32 {
    if poisoned { f32::from_bits(NAN_BITS) } else { sum }
}

/// `N` words of the stage, a multiple of four.
///
/// # Safety
/// As [`device::stage_load_four`].
#[inline(always)]
unsafe fn loaded<const N: usize>(at: u32) -> [f32; N] {
    let mut words = [0.0; N];
    for four in 0..N / FOUR {
        // SAFETY: the caller keeps the contract of `stage_load_four` for all `N` words.
        let some = unsafe { device::stage_load_four(at + (four * FOUR) as u32) };
        for i in 0..FOUR {
            words[four * FOUR + i] = some[i];
        }
    }
    words
}
