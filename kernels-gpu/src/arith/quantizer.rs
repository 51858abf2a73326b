//! A bucketed quantizer, whatever runs it: the PTX kernels and the CPU's loops are made for any [`Quantizer`], and add how
//! they measure a bucket.

use crate::params::EncodeParams;

/// A quantizer with scalars per bucket. Every function is inlined, so that a loop over elements holds nothing but its formula.
pub trait Quantizer {
    /// What encoding an element of a bucket needs.
    type Encoder: Words;
    /// What decoding an element of a bucket needs.
    type Decoder: Words;
    /// Scalars on the wire, per bucket: 1 or 2.
    const SCALARS: usize;
    /// Whether what is made up beside a bucket's elements, to fill a register or a vector, must be one of them. Else it is zero.
    const PADS_WITH_AN_ELEMENT: bool;

    /// The encoder of a bucket with this statistic.
    fn encoder(p: &EncodeParams, statistic: [u32; 2]) -> Self::Encoder;
    /// The same encoder as a constant in part, where the bucket is neither poisoned nor so small or large that it has to be
    /// lifted: nearly always, and then the compiler leaves out what the constants make idle.
    fn plain(encoder: &Self::Encoder) -> Option<Self::Encoder>;
    /// Whether the bucket holds a NaN or an infinity.
    fn holds_not_finite(encoder: &Self::Encoder) -> bool;
    /// The scalars on the wire, the first [`Quantizer::SCALARS`] of them.
    fn wire(encoder: &Self::Encoder) -> [f32; 2];
    /// The code of the value with these bits. Without `WIDE`, codes have at most 8 bits.
    fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Self::Encoder, value: u32, dither: u32) -> u32;
    /// The decoder of a bucket with these scalars.
    fn decoder(wire: [f32; 2], levels: u32) -> Self::Decoder;
    /// The same decoder as a constant in part, as in [`Quantizer::plain`].
    fn plain_decoder(decoder: &Self::Decoder) -> Option<Self::Decoder>;
    /// Whether the scalars say that the bucket holds a NaN or an infinity.
    fn poisoned(decoder: &Self::Decoder) -> bool;
    /// The value of a code.
    fn value(decoder: &Self::Decoder, bits: u32, levels: u32, code: u32) -> f32;
}

/// What is made of 32-bit words, which the lanes of a warp can hand to one another.
pub trait Words: Copy {
    /// The same, of the words that `take` gives for each in turn. Scalars on the wire are not handed on: they are the
    /// business of the lane that made them.
    #[must_use]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self;
}
