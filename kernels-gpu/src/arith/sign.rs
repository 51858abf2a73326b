//! Signs with a scale. The scale of a bucket is the mean of its magnitudes (Karimireddy, Rebjock, Stich and Jaggi,
//! "Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019, algorithm 1), or 1 (Bernstein,
//! Wang, Azizzadenesheli and Anandkumar, "signSGD: Compressed optimisation for non-convex problems", ICML 2018,
//! algorithm 1).
//!
//! The mean does not depend on the order in which magnitudes are added: they are aligned to the largest as integers of
//! 32 bits, as in [`super::onebit`].

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, SIGN};
use super::fold::{Max, Sum, high, join, low};
use super::norm::{aligned_finely, alignment};
use super::onebit::{is_below, mean};
use super::quantizer::{Quantizer, Words};
use crate::params::{EncodeParams, encode_flags};

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Sign;

impl Quantizer for Sign {
    type Encoder = Encoder;
    type Decoder = Decoder;
    // The largest magnitude: NaN is above infinity, and infinity above every number.
    type First = Max;
    // The sum of aligned magnitudes, unless the scale is 1.
    type Second = Sum;
    // The sum, and how many elements it is of.
    type Total = (Sum, Sum);
    // The largest magnitude, the sum's low word, its high word, the elements, zeros: a sum has two words, as a count
    // has.
    type Partial = [u32; 8];
    const SCALARS: usize = 1;
    // A zero adds nothing.
    const PADS_WITH_AN_ELEMENT: bool = false;

    #[inline(always)]
    fn first(value: u32) -> Max {
        Max(value & MAGNITUDE)
    }

    #[inline(always)]
    fn looks_again(p: &EncodeParams) -> bool {
        !p.has(encode_flags::UNIT)
    }

    #[inline(always)]
    fn context(Max(largest): Max) -> u32 {
        alignment(largest)
    }

    #[inline(always)]
    unsafe fn second(value: u32, to: u32) -> Sum {
        Sum(u64::from(aligned_finely(value & MAGNITUDE, to)))
    }

    #[inline(always)]
    fn partial(Max(largest): Max, Sum(sum): Sum, elements: u32) -> [u32; 8] {
        [largest, low(sum), high(sum), elements, 0, 0, 0, 0]
    }

    #[inline(always)]
    fn statistic(p: &EncodeParams, partial: [u32; 8]) -> [u32; 2] {
        let first = Self::first_of(partial);
        Self::whole(p, first, Self::second_of(partial, Self::context(first)))
    }

    #[inline(always)]
    fn first_of([largest, ..]: [u32; 8]) -> Max {
        Max(largest)
    }

    #[inline(always)]
    fn second_of([largest, a, b, elements, ..]: [u32; 8], to: u32) -> (Sum, Sum) {
        // A sum of a span has 45 bits, so that a shift by 63 leaves nothing, as one by more would.
        (Sum(join([a, b]) >> to.wrapping_sub(alignment(largest)).min(63)), Sum(u64::from(elements)))
    }

    #[inline(always)]
    fn whole(p: &EncodeParams, Max(largest): Max, (Sum(sum), Sum(elements)): (Sum, Sum)) -> [u32; 2] {
        let scale = if p.has(encode_flags::UNIT) { 1.0 } else { mean(sum, low(elements), alignment(largest)) };
        [if largest >= INF_BITS { NAN_BITS } else { scale.to_bits() }, 0]
    }

    #[inline(always)]
    fn encoder(_: &EncodeParams, [scale, _]: [u32; 2]) -> Encoder {
        Encoder { keep: if scale >= INF_BITS { 0 } else { !0 }, wire: f32::from_bits(scale) }
    }

    #[inline(always)]
    fn plain(encoder: &Encoder) -> Option<Encoder> {
        (encoder.keep != 0).then_some(Encoder { keep: !0, ..*encoder })
    }

    #[inline(always)]
    fn holds_not_finite(encoder: &Encoder) -> bool {
        encoder.keep == 0
    }

    #[inline(always)]
    fn wire(encoder: &Encoder) -> [f32; 2] {
        [encoder.wire, 0.0]
    }

    #[inline(always)]
    unsafe fn code<const WIDE: bool>(_: &EncodeParams, encoder: &Encoder, value: u32, _dither: u32) -> u32 {
        (!is_below(value) as u32) & encoder.keep
    }

    #[inline(always)]
    fn decoder([scale, _]: [f32; 2], _levels: u32) -> Decoder {
        // A scale that no encoder writes (negative, infinite) reads as a poisoned bucket.
        Decoder { scale: if scale.to_bits() >= INF_BITS { f32::from_bits(NAN_BITS) } else { scale } }
    }

    #[inline(always)]
    fn plain_decoder(decoder: &Decoder) -> Option<Decoder> {
        (!Self::poisoned(decoder)).then_some(*decoder)
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        decoder.scale.to_bits() > INF_BITS
    }

    #[inline(always)]
    fn value(decoder: &Decoder, _bits: u32, _levels: u32, code: u32) -> f32 {
        // Of a poisoned bucket every code is 0, or is read as such: a NaN has one sign.
        let sign = !code << 31 & if Self::poisoned(decoder) { 0 } else { SIGN };
        f32::from_bits(decoder.scale.to_bits() | sign)
    }
}

/// What encoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// All ones, or zero for a bucket that holds a NaN or an infinity: its codes are all zero.
    pub keep: u32,
    /// The scalar on the wire.
    pub wire: f32,
}

impl Words for Encoder {
    #[inline(always)]
    fn handed_on(&self, mut take: impl FnMut(u32) -> u32) -> Self {
        Self { keep: take(self.keep), wire: 0.0 }
    }
}

/// What decoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The magnitude of every element; NaN in a poisoned bucket.
    pub scale: f32,
}

impl Words for Decoder {
    #[inline(always)]
    fn handed_on(&self, mut take: impl FnMut(u32) -> u32) -> Self {
        Self { scale: f32::from_bits(take(self.scale.to_bits())) }
    }
}
