//! What a bucketed quantizer brings to the kernels: its formula, and how its statistic is folded.

use super::statistic::Grouping;
use super::tile::{Place, Tile};
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

/// A quantizer with scalars a bucket; formulas come from [`crate::arith`].
pub(super) trait Quantizer {
    /// What encoding an element of a bucket needs.
    type Encoder: Copy;
    /// What decoding an element of a bucket needs.
    type Decoder: Copy;
    /// Scalars on the wire, a bucket.
    const SCALARS: usize;
    /// Whether what lies behind the last element of a warp must look like that element; else it looks like zero.
    const PAD_WITH_LAST: bool;

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
    /// The encoder of a bucket with this statistic.
    fn encoder(p: &EncodeParams, statistic: [u32; 2]) -> Self::Encoder;
    /// The encoder that lane `from` has.
    ///
    /// # Safety
    /// As [`crate::device::shuffle`].
    unsafe fn encoder_of(encoder: &Self::Encoder, from: u32) -> Self::Encoder;
    /// The same encoder as a constant in part, where the bucket is neither poisoned nor so small or large that it has
    /// to be lifted: nearly always, and then the compiler leaves out what the constants make idle.
    fn plain(encoder: &Self::Encoder) -> Option<Self::Encoder>;
    /// The scalars on the wire, the first [`Quantizer::SCALARS`] of them.
    fn wire(encoder: &Self::Encoder) -> [f32; 2];
    /// The code of a value.
    fn code(p: &EncodeParams, encoder: &Self::Encoder, value: u32, dither: u32) -> u32;
    /// The decoder of a bucket with these scalars.
    fn decoder(wire: [f32; 2], levels: u32) -> Self::Decoder;
    /// The decoder that lane `from` has.
    ///
    /// # Safety
    /// As [`crate::device::shuffle`].
    unsafe fn decoder_of(decoder: &Self::Decoder, from: u32) -> Self::Decoder;
    /// The same decoder as a constant in part, as in [`Quantizer::plain`].
    fn plain_decoder(decoder: &Self::Decoder) -> Option<Self::Decoder>;
    /// Whether the bucket holds a NaN or an infinity.
    fn poisoned(decoder: &Self::Decoder) -> bool;
    /// The value of a code.
    fn value(decoder: &Self::Decoder, bits: u32, levels: u32, code: u32) -> f32;
}
