//! The factors, from the shares of their tiles.

use super::{Buffers, Matrix, padded, refused};
use crate::arith::float::{NAN_BITS, canonical};
use crate::device;
use crate::params::{LOW_RANK_TILE, LowRankParams, THREADS, low_rank_flags, mark, matrix};

/// Shares that a thread has on their way together.
const AHEAD: usize = 8;

kernel! {
    /// Sums the shares of a factor, and writes it as it is sent.
    ///
    /// # What
    /// Entry `i` of column `k` is the sum over the tiles that hold row `i` (with `RIGHT`, column `i`), in binary64 and
    /// in order. Of a matrix of which a factor could not be used, all entries are NaN. With `FORMED`, marks that
    /// nothing was sent yet of what the residual now holds, unless it was not formed.
    ///
    /// # Arguments
    /// * `p`; `workspace`: table, marks and shares. Read; with `FORMED`, a mark of each matrix is written.
    /// * `status`: with `GUARDED`, read.
    /// * `values`: the factors of all matrices, without padding. Written.
    /// * `input`, `residual`, `output`: not used.
    ///
    /// # Thread mapping
    /// A block 256 entries of a column, a thread one.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, from `p.first_tile` on, of those that the table's `FIRST_GROUP` counts.
    ///
    /// # Traffic
    /// Coalesced; a factor's column begins at any entry of what is sent.
    ///
    /// # Determinism
    /// Run to run.
    ///
    /// # Edge cases
    /// Every NaN is the one NaN.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn powersgd_gather(
        p: LowRankParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        status: *mut u32,
        output: *mut f32,
        values: *mut f32,
    ) {
        let b = Buffers { input, residual, workspace, status, output, values };
        let side = u32::from(p.has(low_rank_flags::RIGHT));
        let group = p.first_tile + device::block();
        // SAFETY: the words are in the table.
        let word = |index: u32, at: u32| unsafe { *b.word(index * matrix::WORDS + at + side) };
        // The last matrix whose first group is this one or an earlier one.
        let (mut index, mut behind) = (0, p.matrices);
        while behind - index > 1 {
            let middle = (index + behind) / 2;
            if word(middle, matrix::FIRST_GROUP) <= group {
                index = middle;
            } else {
                behind = middle;
            }
        }
        // SAFETY: the matrix is in the table.
        let matrix = unsafe { Matrix::load(&b, index) };
        let (entries, across) =
            if side == 1 { (matrix.columns, matrix.rows) } else { (matrix.rows, matrix.columns) };
        // Which column of the factor, and which part of it: at most 31 turns, and no division.
        let each = entries.div_ceil(THREADS);
        let (mut k, mut part) = (0, group - word(index, matrix::FIRST_GROUP));
        while part >= each {
            part -= each;
            k += 1;
        }
        if p.has(low_rank_flags::FORMED)
            && group == word(index, matrix::FIRST_GROUP)
            && device::thread() == 0
        {
            // SAFETY: the marks are there. This thread alone writes this mark, and the status is only read.
            unsafe {
                if !refused(&p, &b) {
                    *b.word(p.marks + index * mark::WORDS + mark::SENT) = 0;
                }
            }
        }
        let entry = part * THREADS + device::thread();
        if entry >= entries {
            return;
        }
        let from = p.shares + word(index, matrix::SHARES) + k * padded(entries) + entry;
        let mut sum = 0.0f64;
        let (tiles, each) = (across.div_ceil(LOW_RANK_TILE), p.rank * padded(entries));
        let mut first = 0;
        while first < tiles {
            // On their way together, and added in their order; what is not there is zero, and changes no sum.
            let mut ahead = [0.0; AHEAD];
            for k in 0..AHEAD {
                if first + (k as u32) < tiles {
                    // SAFETY: the share is there.
                    ahead[k] = unsafe { *b.number(from + (first + k as u32) * each) };
                }
            }
            for k in 0..AHEAD {
                sum += f64::from(ahead[k]);
            }
            first += AHEAD as u32;
        }
        // SAFETY: the marks and the entry are there.
        unsafe {
            let value = if matrix.mark(&p, &b, mark::POISONED) != 0 { f32::from_bits(NAN_BITS) } else { sum as f32 };
            *b.values.add((word(index, matrix::SENT) + k * entries + entry) as usize) = canonical(value);
        }
    }
}
