//! Ternary codes: minus a bucket's scale, zero, or the scale.
//!
//! Stochastic (Wen, Xu, Yan, Wu, Wang, Chen and Li, "TernGrad: Ternary gradients to reduce communication in distributed
//! deep learning", NIPS 2017, equations 2 and 3): the scale is the largest magnitude, or so many standard deviations if
//! that is less, and a magnitude is the scale with the probability of their ratio. To nearest (Lim, Andersen and
//! Kaminsky, "3LC: Lightweight and effective traffic compression for distributed machine learning", SysML 2019,
//! equations 1 to 3): the scale is the largest magnitude times a factor, and magnitudes of half of it or more are the
//! scale.

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, SIGN, lift};
use super::fold::{Max, Sum, high, join, low};
use super::norm;
use super::quantizer::{Quantizer, Words};
use super::round::level_of_31_bits;
use crate::params::{EncodeParams, encode_flags};

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Ternary;

impl Quantizer for Ternary {
    type Encoder = Encoder;
    type Decoder = Decoder;
    // The largest magnitude: NaN is above infinity, and infinity above every number.
    type First = Max;
    // With clipping, the sum of squares.
    type Second = Sum;
    // Such a sum takes up to 79 bits. Its halves are summed apart, each in 64 bits, and then the elements that it is
    // of.
    type Total = ((Sum, Sum), Sum);
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
        p.has(encode_flags::CLIPPED)
    }

    #[inline(always)]
    fn context(Max(largest): Max) -> u32 {
        norm::alignment(largest)
    }

    #[inline(always)]
    unsafe fn second(value: u32, alignment: u32) -> Sum {
        // SAFETY: the value is of the bucket with this context, so its magnitude is at most the largest.
        Sum(unsafe { norm::aligned_square(value & MAGNITUDE, alignment) })
    }

    #[inline(always)]
    fn partial(Max(largest): Max, Sum(sum): Sum, elements: u32) -> [u32; 8] {
        let sum = if largest < INF_BITS { sum } else { 0 };
        [largest, low(sum), high(sum), elements, 0, 0, 0, 0]
    }

    #[inline(always)]
    fn statistic(p: &EncodeParams, [largest, low, high, elements, ..]: [u32; 8]) -> [u32; 2] {
        scale(p, largest, |alignment, factor| {
            norm::deviations(join([low, high]), 0, alignment, u64::from(elements), factor)
        })
    }

    #[inline(always)]
    fn first_of([largest, ..]: [u32; 8]) -> Max {
        Max(largest)
    }

    #[inline(always)]
    fn second_of([largest, low, high, elements, ..]: [u32; 8], alignment: u32) -> ((Sum, Sum), Sum) {
        let shifted = join([low, high]) >> (2 * alignment.wrapping_sub(norm::alignment(largest)).min(31));
        ((Sum(shifted & 0xffff_ffff), Sum(shifted >> 32)), Sum(u64::from(elements)))
    }

    #[inline(always)]
    fn whole(
        p: &EncodeParams,
        Max(largest): Max,
        ((Sum(below), Sum(above)), Sum(elements)): ((Sum, Sum), Sum),
    ) -> [u32; 2] {
        scale(p, largest, |alignment, factor| {
            let (sum, halvings) = norm::reduce(u128::from(below) + (u128::from(above) << 32));
            norm::deviations(sum, halvings, alignment, elements, factor)
        })
    }

    #[inline(always)]
    fn encoder(p: &EncodeParams, [scale, _]: [u32; 2]) -> Encoder {
        // A factor that went into the scale is none of the wire's.
        let factor = if p.has(encode_flags::CLIPPED | encode_flags::NEAREST) { 1.0 } else { p.beta() };
        Encoder::new(f32::from_bits(scale), p.fraction, factor)
    }

    #[inline(always)]
    fn plain(encoder: &Encoder) -> Option<Encoder> {
        let plain = encoder.keep != 0 && encoder.lift == 1.0;
        plain.then_some(Encoder { lift: 1.0, keep: !0, ..*encoder })
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
    unsafe fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Encoder, value: u32, dither: u32) -> u32 {
        let magnitude = (value & (encoder.keep & MAGNITUDE)).min(encoder.top);
        let scaled = f32::from_bits(magnitude) * encoder.lift * encoder.inverse;
        // SAFETY: the magnitude is at most the scale, so the product is at most 2^fraction * (1 + 2^-22), and the
        // fraction of one level is 30 bits; of a poisoned bucket, magnitudes were cleared.
        let level = unsafe { level_of_31_bits(scaled, dither, p.fraction, 1) };
        level | value >> 30 & (encoder.keep & 2)
    }

    #[inline(always)]
    fn decoder([scale, _]: [f32; 2], _levels: u32) -> Decoder {
        // A scale that no encoder writes (negative, infinite) reads as a poisoned bucket.
        let poisoned = scale.to_bits() >= INF_BITS;
        let (keep, fill) = if poisoned { (0, NAN_BITS) } else { (!0, 0) };
        Decoder { scale: scale.to_bits(), keep, fill }
    }

    #[inline(always)]
    fn plain_decoder(decoder: &Decoder) -> Option<Decoder> {
        (decoder.keep != 0).then_some(Decoder { keep: !0, fill: 0, ..*decoder })
    }

    #[inline(always)]
    fn plain_handed_on(decoder: &Decoder, mut take: impl FnMut(u32) -> u32) -> Decoder {
        Decoder { scale: take(decoder.scale), keep: !0, fill: 0 }
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        decoder.keep == 0
    }

    #[inline(always)]
    fn value(decoder: &Decoder, _bits: u32, _levels: u32, code: u32) -> f32 {
        let value = (code & 1).wrapping_neg() & decoder.scale | code << 30 & SIGN;
        f32::from_bits(value & decoder.keep | decoder.fill)
    }
}

/// The statistic: the scale of a bucket with this largest magnitude, and how many standard deviations of an alignment
/// make the largest that it may be.
#[inline(always)]
fn scale(p: &EncodeParams, largest: u32, deviations: impl FnOnce(u32, f32) -> f32) -> [u32; 2] {
    let scale = if largest >= INF_BITS {
        NAN_BITS
    } else if p.has(encode_flags::CLIPPED) {
        deviations(norm::alignment(largest), p.beta()).to_bits().min(largest)
    } else if p.has(encode_flags::NEAREST) {
        (f32::from_bits(largest) * p.beta()).min(f32::MAX).to_bits()
    } else {
        largest
    };
    [scale, 0]
}

/// What encoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Power of two that lifts a tiny bucket out of the subnormal range.
    lift: f32,
    /// Fixed-point levels per unit of lifted magnitude.
    inverse: f32,
    /// The bits of the scale, which counts for every magnitude above it.
    top: u32,
    /// All ones, or zero for a bucket that holds a NaN or an infinity: its codes are all zero.
    keep: u32,
    /// The scalar that goes on the wire: the scale, times the contraction factor.
    wire: f32,
}

impl Encoder {
    /// From the bucket's scale. One that is not finite marks the bucket as poisoned.
    #[inline(always)]
    fn new(scale: f32, fraction: u32, beta: f32) -> Self {
        if scale.to_bits() >= INF_BITS {
            return Self { lift: 1.0, inverse: 0.0, top: 0, keep: 0, wire: f32::from_bits(NAN_BITS) };
        }
        let (up, _) = lift(scale);
        let inverse = if scale > 0.0 { (1u32 << fraction) as f32 / (scale * up) } else { 0.0 };
        Self { lift: up, inverse, top: scale.to_bits(), keep: !0, wire: scale * beta }
    }
}

impl Words for Encoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let [lift, inverse, top, keep] = [self.lift.to_bits(), self.inverse.to_bits(), self.top, self.keep].map(take);
        Self { lift: f32::from_bits(lift), inverse: f32::from_bits(inverse), top, keep, wire: 0.0 }
    }
}

/// What decoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The bits of the scale.
    scale: u32,
    /// All ones, or zero for a poisoned bucket.
    keep: u32,
    /// Zero, or the bits of NaN for a poisoned bucket.
    fill: u32,
}

impl Words for Decoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let [scale, keep, fill] = [self.scale, self.keep, self.fill].map(take);
        Self { scale, keep, fill }
    }
}
