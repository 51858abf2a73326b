//! A bucketed quantizer, whatever runs it: the PTX kernels and the CPU's loops are made for any [`Quantizer`].
//!
//! A bucket is looked at once, twice or three times, and what is seen folds into its *statistic*. Where the bucket is a
//! whole tensor, each span of 8192 elements leaves a *partial statistic* in memory; those are folded the same way.

use super::fold::{Fold, Sum};
use crate::params::EncodeParams;

/// A quantizer with scalars per bucket. Every function is inlined, so that a loop over elements holds nothing but its
/// formula.
pub trait Quantizer {
    /// What encoding an element of a bucket needs.
    type Encoder: Words;
    /// What decoding an element of a bucket needs.
    type Decoder: Words;
    /// What a first look at each value of a bucket tells.
    type First: Fold;
    /// What a second look tells, which may depend on the first: `()` where there is none.
    type Second: Fold;
    /// What a second look at partial statistics tells: wider than [`Quantizer::Second`] where a tensor's sums are.
    type Total: Fold;
    /// A partial statistic, as words in memory: 4 or 8 of them.
    type Partial: Copy + Default + AsRef<[u32]> + AsMut<[u32]>;

    /// Scalars on the wire, per bucket: 1 or 2.
    const SCALARS: usize;
    /// Whether what is made up beside a bucket's elements, to fill a register or a vector, must be one of them. Else it
    /// is zero.
    const PADS_WITH_AN_ELEMENT: bool;

    /// What the first look sees in the value with these bits.
    fn first(value: u32) -> Self::First;
    /// Whether there is a second look.
    fn looks_again(p: &EncodeParams) -> bool;
    /// What the second look has to know of the first, in a word.
    fn context(first: Self::First) -> u32;
    /// What the second look sees in the value with these bits.
    ///
    /// # Safety
    /// The context is that of a first look at a bucket with this value in it.
    unsafe fn second(value: u32, context: u32) -> Self::Second;
    /// The partial statistic of so many elements.
    fn partial(first: Self::First, second: Self::Second, elements: u32) -> Self::Partial;
    /// The statistic of a bucket whose only partial statistic this is: two words, in which a NaN or an infinity shows.
    fn statistic(p: &EncodeParams, partial: Self::Partial) -> [u32; 2];

    /// Whether there is a third look, which depends on what the others told: of a codec whose scale is of its codes,
    /// and which takes no tensor that is one bucket.
    const LOOKS_THRICE: bool = false;
    /// What the third look sees in the value with these bits.
    ///
    /// # Safety
    /// The context is the first word that the statistic of a bucket with this value in it had before this look.
    #[inline(always)]
    unsafe fn third(_p: &EncodeParams, _value: u32, _context: u32) -> Sum {
        Sum::NONE
    }
    /// The partial statistic with what the third look saw.
    #[inline(always)]
    fn completed(partial: Self::Partial, _third: Sum) -> Self::Partial {
        partial
    }

    /// What the first look sees in a partial statistic.
    fn first_of(partial: Self::Partial) -> Self::First;
    /// What the second look sees in a partial statistic of a tensor with this context.
    fn second_of(partial: Self::Partial, context: u32) -> Self::Total;
    /// The statistic of a bucket that is a whole tensor.
    fn whole(p: &EncodeParams, first: Self::First, total: Self::Total) -> [u32; 2];

    /// The encoder of a bucket with this statistic.
    fn encoder(p: &EncodeParams, statistic: [u32; 2]) -> Self::Encoder;
    /// The same encoder as a constant in part, where the bucket is neither poisoned nor so small or large that it has
    /// to be lifted: nearly always, and then the compiler leaves out what the constants make idle.
    fn plain(encoder: &Self::Encoder) -> Option<Self::Encoder>;
    /// Whether the bucket holds a NaN or an infinity.
    fn holds_not_finite(encoder: &Self::Encoder) -> bool;
    /// The scalars on the wire, the first [`Quantizer::SCALARS`] of them.
    fn wire(encoder: &Self::Encoder) -> [f32; 2];
    /// The code of the value with these bits.
    ///
    /// # Safety
    /// The encoder is of these parameters, and of a bucket with this value in it. The dither is below `2^p.fraction`.
    /// Without `WIDE`, codes have at most 8 bits.
    unsafe fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Self::Encoder, value: u32, dither: u32) -> u32;
    /// The same code in the highest bits of a word, above others of no meaning, with the dither of a 16-bit draw: for
    /// every level that a width of at most 8 bits has. Bits above the draw's own are not looked at.
    ///
    /// # Safety
    /// As [`Quantizer::code`] without `WIDE`.
    #[inline(always)]
    unsafe fn high(p: &EncodeParams, encoder: &Self::Encoder, value: u32, draw: u32) -> u32 {
        // SAFETY: the caller's promise is passed on, and the dither is below 2^fraction.
        unsafe { Self::code::<false>(p, encoder, value, super::round::dither16(draw, p.fraction)) << (32 - p.bits) }
    }
    /// The code of the value with these bits, with the dither of a 16-bit draw: what [`Quantizer::code`] gives, in
    /// whatever takes a CPU the fewest instructions. Bits above the draw's own are not looked at.
    ///
    /// # Safety
    /// As [`Quantizer::code`], for the width `BITS`, which is the parameters', and a plain encoder.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    unsafe fn code_by_draw<const BITS: u32>(p: &EncodeParams, encoder: &Self::Encoder, value: u32, draw: u32) -> u32 {
        let dither = super::round::dither16(draw, p.fraction);
        // SAFETY: the caller's promise is passed on, and the dither is below 2^fraction.
        unsafe {
            if BITS == 16 {
                Self::code::<true>(p, encoder, value, dither)
            } else {
                Self::code::<false>(p, encoder, value, dither)
            }
        }
    }
    /// The decoder of a bucket with these scalars.
    fn decoder(wire: [f32; 2], levels: u32) -> Self::Decoder;
    /// The same decoder as a constant in part, as in [`Quantizer::plain`].
    fn plain_decoder(decoder: &Self::Decoder) -> Option<Self::Decoder>;
    /// A decoder that [`Quantizer::plain_decoder`] knows as plain, as a lane hands it on: without the words that are
    /// constants then.
    #[inline(always)]
    fn plain_handed_on(decoder: &Self::Decoder, take: impl FnMut(u32) -> u32) -> Self::Decoder {
        decoder.handed_on(take)
    }
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
