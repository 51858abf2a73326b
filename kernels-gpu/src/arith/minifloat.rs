//! Casts to small formats, rounded stochastically or to nearest even, with a scale per bucket that is a power of two,
//! or 1: f16, bf16, E4M3 and E5M2 ("OCP 8-bit floating point specification", revision 1.0, 2023), E2M1 and INT8 ("OCP
//! microscaling formats specification", version 1.0, 2023), and INT16, which is INT8 with more bits.
//!
//! The bits of a binary32 number rise with it, so that a code is a part of them: the exponent above the lowest one that
//! the format has, and the mantissa's upper bits. Below, the code is a multiple of the smallest subnormal. What is cut
//! off is rounded by an addition of integers. The largest finite code is the highest level; greater magnitudes become
//! that.
//!
//! Integers are a format of two exponents with the same distance of numbers: all codes are multiples of one step. Where
//! the scale is held up from below, so is the step, and no error is above half of it: that of INCEPTIONN (Li et al.,
//! MICRO 2018).

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, SIGN, pow2};
use super::fold::Max;
use super::quantizer::{Quantizer, Words};
use crate::params::{EncodeParams, encode_flags};

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Minifloat;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of a code, the sign among them.
    pub bits: u32,
    /// The largest finite code: how many values there are above zero.
    pub levels: u32,
    /// Bits of the mantissa.
    pub mantissa: u32,
    /// Exponent of the lowest normal number.
    pub lowest: i32,
}

/// The formats.
pub const FORMATS: [Format; 7] = [
    Format { bits: 4, levels: 7, mantissa: 1, lowest: 0 },
    Format { bits: 8, levels: 123, mantissa: 2, lowest: -14 },
    Format { bits: 8, levels: 126, mantissa: 3, lowest: -6 },
    Format { bits: 16, levels: 31_743, mantissa: 10, lowest: -14 },
    Format { bits: 16, levels: 32_639, mantissa: 7, lowest: -126 },
    Format { bits: 8, levels: 127, mantissa: 6, lowest: 0 },
    Format { bits: 16, levels: 32_767, mantissa: 14, lowest: 0 },
];

/// 1 for the levels of this one of the formats, else 0.
#[inline(always)]
const fn is(levels: u32, format: usize) -> u32 {
    (levels == FORMATS[format].levels) as u32
}

impl Format {
    /// The format with so many levels; of another number, bf16.
    #[inline(always)]
    pub const fn of(levels: u32) -> Self {
        // Sums: a chain of comparisons with branches would be gone through for every element. A GPU would keep an array
        // in memory.
        let bits = 16 - 12 * is(levels, 0) - 8 * (is(levels, 1) + is(levels, 2) + is(levels, 5));
        let up = 3 * is(levels, 3) + 7 * is(levels, 6);
        let mantissa = 7 + up - 6 * is(levels, 0) - 5 * is(levels, 1) - 4 * is(levels, 2) - is(levels, 5);
        let from_0 = is(levels, 0) + is(levels, 5) + is(levels, 6);
        let up = 126 * from_0 + 112 * (is(levels, 1) + is(levels, 3)) + 120 * is(levels, 2);
        let other = from_0 + is(levels, 1) + is(levels, 2) + is(levels, 3) == 0;
        Self { bits, levels: if other { FORMATS[4].levels } else { levels }, mantissa, lowest: up as i32 - 126 }
    }

    /// Bits of a binary32 mantissa that a code does not have.
    #[inline(always)]
    const fn dropped(self) -> u32 {
        23 - self.mantissa
    }

    /// Whether its numbers are multiples of one step.
    pub const fn is_integer(self) -> bool {
        self.levels >> self.mantissa == 1
    }

    /// Exponent of the largest number.
    pub const fn highest(self) -> i32 {
        (self.levels >> self.mantissa) as i32 - 1 + self.lowest
    }

    /// What the bucket's scale makes of the lowest normal number: its biased exponent. Given the bits of the largest
    /// magnitude, the scale is the smallest power of two with which that has a code; but none makes a number subnormal,
    /// or too large.
    #[inline(always)]
    fn base(self, largest: u32) -> u32 {
        let fraction = self.levels << self.dropped() & 0x007f_ffff;
        let top = ((largest + (0x007f_ffff - fraction)) >> 23).min(254);
        (top as i32 + self.lowest - self.highest()).max(1) as u32
    }
}

impl Quantizer for Minifloat {
    type Encoder = Encoder;
    type Decoder = Decoder;
    // The largest magnitude: NaN is above infinity, and infinity above every number.
    type First = Max;
    type Second = ();
    type Total = ();
    // The bits of the largest magnitude, zeros.
    type Partial = [u32; 4];
    const SCALARS: usize = 1;
    const PADS_WITH_AN_ELEMENT: bool = false;

    #[inline(always)]
    fn first(value: u32) -> Max {
        Max(value & MAGNITUDE)
    }

    #[inline(always)]
    fn looks_again(_: &EncodeParams) -> bool {
        false
    }

    #[inline(always)]
    fn context(_: Max) -> u32 {
        0
    }

    #[inline(always)]
    unsafe fn second(_value: u32, _context: u32) {}

    #[inline(always)]
    fn partial(Max(largest): Max, (): (), _elements: u32) -> [u32; 4] {
        [largest, 0, 0, 0]
    }

    #[inline(always)]
    fn statistic(_: &EncodeParams, [largest, ..]: [u32; 4]) -> [u32; 2] {
        [if largest >= INF_BITS { NAN_BITS } else { largest }, 0]
    }

    #[inline(always)]
    fn first_of([largest, ..]: [u32; 4]) -> Max {
        Max(largest)
    }

    #[inline(always)]
    fn second_of(_partial: [u32; 4], _context: u32) {}

    #[inline(always)]
    fn whole(p: &EncodeParams, Max(largest): Max, (): ()) -> [u32; 2] {
        Self::statistic(p, [largest, 0, 0, 0])
    }

    #[inline(always)]
    fn encoder(p: &EncodeParams, [largest, _]: [u32; 2]) -> Encoder {
        if largest >= INF_BITS {
            return Encoder { base: 1, keep: 0, wire: f32::from_bits(NAN_BITS) };
        }
        let format = Format::of(p.levels);
        let least =
            if p.has(encode_flags::AT_LEAST) { ((p.beta >> 23) as i32 + format.lowest).max(1) as u32 } else { 1 };
        let base =
            if p.has(encode_flags::UNIT) { (127 + format.lowest) as u32 } else { format.base(largest).max(least) };
        Encoder { base, keep: !0, wire: pow2(base as i32 - 127 - format.lowest) }
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
    unsafe fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Encoder, value: u32, dither: u32) -> u32 {
        let dropped = Format::of(p.levels).dropped();
        let place = encoder.place(value);
        // Ties go to the even code.
        let even = (1 << (dropped - 1)) - 1 + (place >> dropped & 1);
        let up = if p.has(encode_flags::NEAREST) { even } else { dither >> (p.fraction - dropped) };
        let sign = value >> (32 - p.bits) & (encoder.keep & 1 << (p.bits - 1));
        ((place + up) >> dropped).min(p.levels) | sign
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], levels: u32) -> Decoder {
        let poisoned = wire[0].to_bits() >= INF_BITS;
        let (keep, fill) = if poisoned { (0, NAN_BITS) } else { (!0, 0) };
        let unit = pow2(126 + Format::of(levels).lowest);
        Decoder { unit, scale: if poisoned { 0.0 } else { wire[0] }, keep, fill }
    }

    #[inline(always)]
    fn plain_decoder(decoder: &Decoder) -> Option<Decoder> {
        (decoder.keep != 0).then_some(Decoder { keep: !0, fill: 0, ..*decoder })
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        decoder.keep == 0
    }

    #[inline(always)]
    fn value(decoder: &Decoder, bits: u32, levels: u32, code: u32) -> f32 {
        let sign = code << (32 - bits) & SIGN;
        let code = (code & ((1 << (bits - 1)) - 1)).min(levels);
        // As a number of binary32, whose exponents begin elsewhere.
        let magnitude = f32::from_bits(code << Format::of(levels).dropped()) * decoder.unit * decoder.scale;
        f32::from_bits((magnitude.to_bits() | sign) & decoder.keep | decoder.fill)
    }
}

/// What encoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// The biased exponent of the lowest normal number, times the scale.
    base: u32,
    /// All ones, or zero for a bucket that holds a NaN or an infinity: its codes are all zero.
    keep: u32,
    /// The scalar that goes on the wire.
    wire: f32,
}

impl Encoder {
    /// The code of the value with these bits, not rounded yet, above the bits of a mantissa that a code does not have.
    /// Below the lowest normal number, the last bit says whether anything is left of what has no place there.
    #[inline(always)]
    fn place(&self, value: u32) -> u32 {
        let magnitude = value & (self.keep & MAGNITUDE);
        let exponent = (magnitude >> 23).max(1);
        let implied = (magnitude >> 23).min(1) << 23;
        let mantissa = magnitude & 0x007f_ffff | implied;
        let above = exponent.max(self.base);
        let down = (above - exponent).min(31);
        let rest = (mantissa & ((1 << down) - 1)).min(1);
        (mantissa >> down | rest) + ((above - self.base) << 23)
    }
}

impl Words for Encoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let [base, keep] = [self.base, self.keep].map(take);
        Self { base, keep, wire: 0.0 }
    }
}

/// What decoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// What makes a code's exponent one of binary32.
    unit: f32,
    /// The scale.
    scale: f32,
    /// All ones, or zero for a poisoned bucket.
    keep: u32,
    /// Zero, or the bits of NaN for a poisoned bucket.
    fill: u32,
}

impl Words for Decoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let [unit, scale, keep, fill] = [self.unit.to_bits(), self.scale.to_bits(), self.keep, self.fill].map(take);
        Self { unit: f32::from_bits(unit), scale: f32::from_bits(scale), keep, fill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_end_where_their_specifications_say() {
        let ends = [6.0, 57_344.0, 448.0, 65_504.0, 3.389_531_4e38, 127.0 / 64.0, 32_767.0 / 16_384.0];
        for (format, end) in FORMATS.into_iter().zip(ends) {
            assert_eq!(Format::of(format.levels), format);
            assert_eq!(Format::of(format.levels + 1).levels == format.levels + 1, format.levels == 126);
            let decoder = Minifloat::decoder([1.0, 0.0], format.levels);
            let value = |code| Minifloat::value(&decoder, format.bits, format.levels, code);
            assert_eq!((value(format.levels), value(0)), (end, 0.0));
            // The largest code has the largest exponent, and the first normal one the lowest.
            assert_eq!((end.to_bits() >> 23) as i32 - 127, format.highest());
            assert_eq!(value(1 << format.mantissa), pow2(format.lowest));
            assert_eq!(value(1) * pow2(format.mantissa as i32), pow2(format.lowest));
        }
    }

    #[test]
    fn integers_are_multiples_of_one_step() {
        let integers: std::vec::Vec<_> = FORMATS.into_iter().filter(|format| format.is_integer()).collect();
        assert_eq!(integers, [FORMATS[5], FORMATS[6]]);
        for format in integers {
            let decoder = Minifloat::decoder([1.0, 0.0], format.levels);
            for code in 0..=format.levels {
                let right = code as f32 * pow2(-(format.mantissa as i32));
                assert_eq!(Minifloat::value(&decoder, format.bits, format.levels, code), right);
            }
        }
    }

    #[test]
    fn the_scale_is_the_smallest_with_which_the_largest_has_a_code() {
        let e4m3 = Format::of(126);
        let scale = |largest: f32| pow2(e4m3.base(largest.to_bits()) as i32 - 127 - e4m3.lowest);
        assert_eq!([448.0, 448.1, 1.0, 1.75, 1.76].map(scale), [1.0, 2.0, 2f32.powi(-8), 2f32.powi(-8), 2f32.powi(-7)]);
        // No number becomes subnormal, and no decoded one infinite.
        assert_eq!([0.0, 1e-45, f32::MAX].map(scale), [2f32.powi(-120), 2f32.powi(-120), 2f32.powi(119)]);
    }
}
