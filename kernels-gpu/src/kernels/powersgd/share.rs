//! A block's part of a factor while columns are made orthonormal: some of the rows, of all columns.

use super::{Buffers, Matrix, padded};
use crate::device;
use crate::params::{
    LowRankParams, THREADS, low_rank_flags, low_rank_products, low_rank_share_log2, low_rank_shares, matrix,
};

/// Words that a thread has on their way together.
const AHEAD: usize = 8;

/// Where a matrix's factor is.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    start: u32,
    pub(super) stride: u32,
    pub(super) entries: u32,
}

impl Factor {
    #[inline(always)]
    fn of(p: &LowRankParams, matrix: &Matrix) -> Self {
        let (start, entries) =
            if p.has(low_rank_flags::RIGHT) { (matrix.right, matrix.columns) } else { (matrix.left, matrix.rows) };
        Self { start: p.factor + start, stride: padded(entries), entries }
    }

    /// The word of an entry.
    #[inline(always)]
    pub(super) fn at(&self, column: u32, entry: u32) -> u32 {
        self.start + column * self.stride + entry
    }
}

/// What a block has to do with a tensor.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) matrix: Matrix,
    /// The tensor is not compressed, and has no factor.
    pub(super) is_plain: bool,
    pub(super) factor: Factor,
    /// The block's place among those of the factor, and how many they are.
    pub(super) index: u32,
    pub(super) count: u32,
    /// The block's rows: the first, and the one after the last.
    pub(super) rows: [u32; 2],
    /// Where the products of the factor's first block are.
    products: u32,
}

impl Share {
    /// # Safety
    /// The table has all matrices, and after them a tensor that is not compressed for each block beyond the matrices'.
    #[inline(always)]
    pub(super) unsafe fn here(p: &LowRankParams, b: &Buffers) -> Self {
        let group = p.first_tile + device::block();
        let side = u32::from(p.has(low_rank_flags::RIGHT));
        // SAFETY: the word is in the table.
        let first = |index: u32| unsafe { *b.word(index * matrix::WORDS + matrix::FIRST_SHARE + side) };
        // The last matrix whose first block is this one or an earlier one.
        let (mut index, mut end) = (0, p.matrices);
        while end - index > 1 {
            let middle = (index + end) / 2;
            if first(middle) <= group {
                index = middle;
            } else {
                end = middle;
            }
        }
        let (mut share, mut count, mut is_plain) = (group, 0, true);
        if p.matrices != 0 {
            // SAFETY: the matrix is in the table.
            let factor = Factor::of(p, &unsafe { Matrix::load(b, index) });
            count = low_rank_shares(factor.entries);
            share = group - first(index);
            is_plain = share >= count;
        }
        if is_plain {
            index = p.matrices + share - count;
            (share, count) = (0, 1);
        }
        // SAFETY: the caller ensures that the tensor is in the table.
        let matrix = unsafe { Matrix::load(b, index) };
        let factor = Factor::of(p, &matrix);
        let rows = 1 << low_rank_share_log2(factor.entries);
        Self {
            matrix,
            is_plain,
            factor,
            index: share,
            count,
            rows: [share * rows, factor.entries.min(share * rows + rows)],
            products: p.shares + (group - share) * low_rank_products(p.rank),
        }
    }

    /// Where the products of one of the factor's blocks are.
    #[inline(always)]
    pub(super) fn products(&self, p: &LowRankParams, index: u32) -> u32 {
        self.products + index * low_rank_products(p.rank)
    }

    /// Copies this block's part of as many words.
    ///
    /// # Safety
    /// They are there, and no thread touches what is written before the next barrier, or launch.
    #[inline(always)]
    pub(super) unsafe fn copy(&self, from: *const u32, to: *mut u32, words: u32) {
        let step = self.count * THREADS;
        let mut first = self.index * THREADS + device::thread();
        while first < words {
            let mut ahead = [0; AHEAD];
            for k in 0..AHEAD {
                let at = first + k as u32 * step;
                if at < words {
                    // SAFETY: the caller ensures that the words are there.
                    ahead[k] = unsafe { *from.add(at as usize) };
                }
            }
            for k in 0..AHEAD {
                let at = first + k as u32 * step;
                if at < words {
                    // SAFETY: as above; the word is this thread's.
                    unsafe { *to.add(at as usize) = ahead[k] };
                }
            }
            first += AHEAD as u32 * step;
        }
    }
}
