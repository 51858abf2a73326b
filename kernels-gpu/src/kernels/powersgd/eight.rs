//! Products by factors of more than eight columns, eight at a time: on targets without tensor cores for binary32.
//!
//! The matrix is read again for each eight columns.

use super::{Buffers, Form, Tile, left, right};
use crate::device;
use crate::params::{LOW_RANK_TOGETHER, LowRankParams};

/// Rows of four columns whose loads are in flight together. More of them would leave too few registers for two blocks
/// on the oldest targets.
pub(super) const AHEAD: usize = 4;
/// M was formed.
const FORMED: Form = Form { form: false, feedback: false, rest: false, write: false };

/// A tile's share of M Q, of what was formed.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
pub(super) unsafe fn left(p: &LowRankParams, b: &Buffers, tile: &Tile) {
    let mut column = 0;
    while column < p.rank {
        // SAFETY: all threads are here, as all that is branched on is the block's.
        unsafe {
            if column > 0 {
                device::barrier();
            }
            left::columns(p, b, tile, FORMED, column);
        }
        column += LOW_RANK_TOGETHER;
    }
}

/// A tile's share of M^T P, of what was formed.
///
/// # Safety
/// As [`left`].
#[inline(always)]
pub(super) unsafe fn right(p: &LowRankParams, b: &Buffers, tile: &Tile) {
    let mut column = 0;
    while column < p.rank {
        // SAFETY: as above.
        unsafe { right::product(p, b, tile, FORMED, column) };
        column += LOW_RANK_TOGETHER;
    }
}
