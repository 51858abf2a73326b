//! What a bucketed quantizer brings to the kernels beside its formula: how a block measures a bucket.

use super::statistic::Grouping;
use super::tile::{Place, Tile};
use crate::arith::quantizer::{Quantizer, Words};
use crate::device;
use crate::params::{EncodeParams, PARTIAL_WORDS};

/// A partial statistic, read as one.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Partial(pub(super) [u32; PARTIAL_WORDS as usize]);

/// Partial statistics of one tensor.
#[derive(Clone, Copy)]
pub(super) struct Partials {
    pub(super) first: *const Partial,
    pub(super) count: u32,
}

/// A quantizer whose buckets a block can measure.
pub(super) trait Measured: Quantizer {
    /// Each lane gets the partial statistic of the bucket that what it owns lies in.
    ///
    /// # Safety
    /// All threads of the block arrive together.
    unsafe fn statistic(p: &EncodeParams, place: Place, tile: &Tile, grouping: Grouping) -> [u32; 4];
    /// The statistic of a bucket that is a whole tensor, from its partial ones. Every thread gets it.
    ///
    /// # Safety
    /// All threads of the block arrive together; the partial statistics are there, at least one.
    unsafe fn fold(p: &EncodeParams, partials: Partials) -> [u32; 2];
    /// The statistic of a bucket whose only partial statistic this is.
    fn finish(p: &EncodeParams, partial: [u32; 4]) -> [u32; 2];
}

/// The encoder or the decoder that lane `from` has.
///
/// # Safety
/// As [`device::shuffle`].
#[inline(always)]
pub(super) unsafe fn of_lane<W: Words>(words: &W, from: u32) -> W {
    // SAFETY: the caller brings all lanes of the warp here.
    words.handed_on(|word| unsafe { device::shuffle(word, from) })
}
