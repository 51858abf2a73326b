//! QSGD (Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding", NIPS 2017,
//! section 3.1): each magnitude, as a fraction of its bucket's norm, is rounded stochastically to one of `s` levels.

#[cfg(not(target_arch = "nvptx64"))]
use super::float::pow2;
use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, SIGN, lift};
use super::fold::{Max, Sum, high, join, low};
use super::norm;
use super::quantizer::{Quantizer, Words};
#[cfg(not(target_arch = "nvptx64"))]
use super::round::level_by_draw;
use super::round::{level, level_of_31_bits, unshifted};
use crate::params::{EncodeParams, encode_flags};

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Qsgd;

impl Quantizer for Qsgd {
    type Encoder = Encoder;
    type Decoder = Decoder;
    // The largest magnitude: NaN is above infinity, and infinity above every number.
    type First = Max;
    // With the L2 norm, the sum of squares.
    type Second = Sum;
    // Such a sum takes up to 79 bits. Its halves are summed apart, each in 64 bits.
    type Total = (Sum, Sum);
    // The bits of the largest magnitude, the sum's low word, its high word, 0.
    type Partial = [u32; 4];
    const SCALARS: usize = 1;
    const PADS_WITH_AN_ELEMENT: bool = false;

    #[inline(always)]
    fn first(value: u32) -> Max {
        Max(value & MAGNITUDE)
    }

    #[inline(always)]
    fn looks_again(p: &EncodeParams) -> bool {
        p.has(encode_flags::L2)
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
    fn partial(Max(largest): Max, Sum(sum): Sum, _elements: u32) -> [u32; 4] {
        let sum = if largest < INF_BITS { sum } else { 0 };
        [largest, low(sum), high(sum), 0]
    }

    #[inline(always)]
    fn statistic(p: &EncodeParams, [largest, low, high, _]: [u32; 4]) -> [u32; 2] {
        if !p.has(encode_flags::L2) {
            return [if largest >= INF_BITS { NAN_BITS } else { largest }, 0];
        }
        let norm = norm::from_sum(join([low, high]), 0, norm::alignment(largest)).to_bits();
        let norm = if largest == 0 { 0 } else { norm };
        [if largest >= INF_BITS { NAN_BITS } else { norm }, 0]
    }

    #[inline(always)]
    fn first_of([largest, ..]: [u32; 4]) -> Max {
        Max(largest)
    }

    #[inline(always)]
    fn second_of([largest, low, high, _]: [u32; 4], alignment: u32) -> (Sum, Sum) {
        let shifted = join([low, high]) >> (2 * (alignment - norm::alignment(largest)).min(31));
        (Sum(shifted & 0xffff_ffff), Sum(shifted >> 32))
    }

    #[inline(always)]
    fn whole(p: &EncodeParams, Max(largest): Max, (Sum(below), Sum(above)): (Sum, Sum)) -> [u32; 2] {
        let norm = if largest >= INF_BITS {
            NAN_BITS
        } else if largest == 0 || !p.has(encode_flags::L2) {
            largest
        } else {
            let (sum, halvings) = norm::reduce(u128::from(below) + (u128::from(above) << 32));
            norm::from_sum(sum, halvings, norm::alignment(largest)).to_bits()
        };
        [norm, 0]
    }

    #[inline(always)]
    fn encoder(p: &EncodeParams, [norm, _]: [u32; 2]) -> Encoder {
        Encoder::new(f32::from_bits(norm), p.levels, p.fraction, p.beta())
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
        // SAFETY: the caller's promise is passed on.
        unsafe { encoder.code::<WIDE>(value, dither, p.fraction, p.levels, p.bits) }
    }

    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    unsafe fn code_by_draw<const BITS: u32>(p: &EncodeParams, encoder: &Encoder, value: u32, draw: u32) -> u32 {
        let scaled = f32::from_bits(value & MAGNITUDE) * (encoder.inverse * pow2(16 - p.fraction as i32));
        // SAFETY: as in `Encoder::code`; a power of two changes no bit but where the product is far below 1.
        let level = unsafe {
            if BITS < 7 {
                level_by_draw::<false>(scaled, draw, p.levels)
            } else {
                level_by_draw::<true>(scaled, draw, p.levels)
            }
        };
        level | value >> (32 - BITS) & (1 << (BITS - 1))
    }

    #[inline(always)]
    unsafe fn high(p: &EncodeParams, encoder: &Encoder, value: u32, draw: u32) -> u32 {
        let scaled = f32::from_bits(value & (encoder.keep & MAGNITUDE)) * encoder.lift * encoder.inverse;
        // SAFETY: as in `Encoder::code`. The level's fraction takes what is left of 31 bits, so it ends below the
        // highest.
        let sum = unsafe { unshifted(scaled, draw, p.fraction, p.levels) };
        sum | value & (encoder.keep & SIGN)
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], levels: u32) -> Decoder {
        Decoder::new(wire[0], levels)
    }

    #[inline(always)]
    fn plain_decoder(decoder: &Decoder) -> Option<Decoder> {
        let plain = decoder.keep != 0 && decoder.lower == 1.0;
        plain.then_some(Decoder { lower: 1.0, keep: !0, fill: 0, ..*decoder })
    }

    #[inline(always)]
    fn plain_handed_on(decoder: &Decoder, take: impl FnMut(u32) -> u32) -> Decoder {
        let [step, top] = [decoder.step.to_bits(), decoder.top.to_bits()].map(take).map(f32::from_bits);
        Decoder { step, top, lower: 1.0, keep: !0, fill: 0 }
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        decoder.keep == 0
    }

    #[inline(always)]
    fn value(decoder: &Decoder, bits: u32, _levels: u32, code: u32) -> f32 {
        decoder.value(code, bits)
    }
}

/// What encoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Power of two that lifts a tiny bucket out of the subnormal range.
    pub lift: f32,
    /// Fixed-point levels per unit of lifted magnitude.
    pub inverse: f32,
    /// All ones, or zero for a bucket that holds a NaN or an infinity: its codes are all zero.
    pub keep: u32,
    /// The scalar that goes on the wire: the norm, times the contraction factor.
    pub wire: f32,
}

impl Encoder {
    /// From the bucket's norm. A `norm` that is not finite marks the bucket as poisoned.
    ///
    /// `beta` is 1 for the unbiased codec, 1/(1 + omega) for the contraction.
    #[inline(always)]
    pub fn new(norm: f32, levels: u32, fraction: u32, beta: f32) -> Self {
        let (up, _) = lift(norm);
        let inverse = if norm > 0.0 { (levels << fraction) as f32 / (norm * up) } else { 0.0 };
        if norm.to_bits() >= INF_BITS {
            return Self { lift: 1.0, inverse: 0.0, keep: 0, wire: f32::from_bits(NAN_BITS) };
        }
        Self { lift: up, inverse, keep: !0, wire: norm * beta }
    }

    /// The code of the value with these bits: its level, and its sign in the top bit of `bits`.
    ///
    /// # Safety
    /// The value's magnitude is at most the norm that this encoder was made from, or the encoder is a poisoned one;
    /// levels and fraction are those it was made for. Without `WIDE` there are fewer than
    /// [`WIDE_LEVELS`](super::round::WIDE_LEVELS) levels.
    #[inline(always)]
    pub unsafe fn code<const WIDE: bool>(&self, value: u32, dither: u32, fraction: u32, levels: u32, bits: u32) -> u32 {
        let scaled = f32::from_bits(value & (self.keep & MAGNITUDE)) * self.lift * self.inverse;
        // SAFETY: magnitude <= norm, so the product is at most levels * 2^fraction * (1 + 2^-22), which is below 2^32,
        // and below 2^31 for fewer than WIDE_LEVELS; a poisoned bucket's magnitudes were cleared, and 0 * 0 is 0.
        let level = unsafe {
            if WIDE {
                level(scaled, dither, fraction, levels)
            } else {
                level_of_31_bits(scaled, dither, fraction, levels)
            }
        };
        level | value >> (32 - bits) & (self.keep & 1 << (bits - 1))
    }
}

impl Words for Encoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let [lift, inverse, keep] = [self.lift.to_bits(), self.inverse.to_bits(), self.keep].map(take);
        Self { lift: f32::from_bits(lift), inverse: f32::from_bits(inverse), keep, wire: 0.0 }
    }
}

/// What decoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The lifted value of one level.
    pub step: f32,
    /// The lifted norm: no decoded magnitude passes it, whatever the code.
    pub top: f32,
    /// The power of two that undoes the lift.
    pub lower: f32,
    /// All ones, or zero for a poisoned bucket.
    pub keep: u32,
    /// Zero, or the bits of NaN for a poisoned bucket.
    pub fill: u32,
}

impl Decoder {
    /// From the bucket's scalar on the wire. A scalar that no encoder writes (negative, infinite) reads as a poisoned
    /// bucket.
    #[inline(always)]
    pub fn new(wire: f32, levels: u32) -> Self {
        let poisoned = wire.to_bits() >= INF_BITS;
        let norm = if poisoned { 0.0 } else { wire };
        let (up, lower) = lift(norm);
        let top = norm * up;
        let (keep, fill) = if poisoned { (0, NAN_BITS) } else { (!0, 0) };
        Self { step: top / levels as f32, top, lower, keep, fill }
    }

    /// The value of a code.
    #[inline(always)]
    pub fn value(&self, code: u32, bits: u32) -> f32 {
        let sign = code << (32 - bits) & SIGN;
        let level = code & ((1 << (bits - 1)) - 1);
        // Through i32, because a conversion from u32 takes several instructions on a CPU without AVX-512.
        let product = self.step * (level as i32 as f32);
        let lifted = if product > self.top { self.top } else { product };
        f32::from_bits(((lifted * self.lower).to_bits() | sign) & self.keep | self.fill)
    }
}

impl Words for Decoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let words = [self.step.to_bits(), self.top.to_bits(), self.lower.to_bits(), self.keep, self.fill];
        let [step, top, lower, keep, fill] = words.map(take);
        let [step, top, lower] = [step, top, lower].map(f32::from_bits);
        Self { step, top, lower, keep, fill }
    }
}
