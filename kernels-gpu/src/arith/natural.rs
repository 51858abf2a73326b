//! Natural compression and natural dithering (Horváth et al., "Natural compression for distributed deep learning",
//! 2019, definitions 1 and 4): each magnitude is rounded stochastically to one of the two powers of two around it.
//!
//! Level `l` of L stands for the bucket's scale times 2^(l - L), level 0 for zero. The bits of a binary32 number are
//! already its place between powers of two, so that a level is a shift and an addition of integers.
//!
//! 8 bits are natural compression: the scale is the smallest power of two that no magnitude passes, 2^127 at most, and
//! levels reach down by a factor of 2^126. Fewer bits are natural dithering: the scale is the largest magnitude, and
//! what is rounded is a magnitude's part of it.

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, SIGN, lift};
use super::fold::Max;
use super::quantizer::{Quantizer, Words};
use crate::params::EncodeParams;

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Natural;

/// Bits of a number's fraction, which are the place between two levels.
const PLACE: u32 = 23;

/// Levels of natural compression.
const COMPRESSION: u32 = 127;

/// The biased exponent of what natural dithering's largest magnitude is scaled to: 2^23, so that neither a part of a
/// large scale nor the scale's inverse is subnormal.
const PARTS: u32 = 127 + PLACE;

impl Quantizer for Natural {
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
        Encoder::new(largest, p.levels, p.beta())
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
        let sign = value >> (32 - p.bits) & (encoder.keep & 1 << (p.bits - 1));
        encoder.level(value, dither >> (p.fraction - PLACE), p.levels) | sign
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], _levels: u32) -> Decoder {
        let poisoned = wire[0].to_bits() >= INF_BITS;
        let (keep, fill) = if poisoned { (0, NAN_BITS) } else { (!0, 0) };
        Decoder { top: if poisoned { 0.0 } else { wire[0] }, keep, fill }
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
        let level = (code & ((1 << (bits - 1)) - 1)).min(levels);
        // 2^(level - levels), or zero.
        let part = f32::from_bits((127 + level - levels) << PLACE & (level.min(1)).wrapping_neg());
        f32::from_bits(((decoder.top * part).to_bits() | sign) & decoder.keep | decoder.fill)
    }
}

/// What encoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Power of two that lifts a tiny bucket of natural dithering out of the subnormal range.
    lift: f32,
    /// What a lifted magnitude is multiplied by: 1 in natural compression.
    inverse: f32,
    /// The biased exponent of the lowest level above zero that is used: a normal number's.
    base: u32,
    /// Levels between that one and zero, which are not used.
    gap: u32,
    /// All ones, or zero for a bucket that holds a NaN or an infinity: its codes are all zero.
    keep: u32,
    /// The scalar that goes on the wire: the scale, times the contraction factor.
    wire: f32,
}

impl Encoder {
    /// From the bits of the largest magnitude; of a NaN where the bucket is poisoned.
    #[inline(always)]
    fn new(largest: u32, levels: u32, beta: f32) -> Self {
        if largest >= INF_BITS {
            return Self { lift: 1.0, inverse: 0.0, base: 1, gap: 0, keep: 0, wire: f32::from_bits(NAN_BITS) };
        }
        if levels < COMPRESSION {
            let scale = f32::from_bits(largest);
            let (lift, _) = lift(scale);
            let inverse = if largest > 0 { (1 << PLACE) as f32 / (scale * lift) } else { 0.0 };
            return Self { lift, inverse, base: PARTS + 1 - levels, gap: 0, keep: !0, wire: scale * beta };
        }
        let top = ((largest + ((1 << PLACE) - 1)) >> PLACE).min(254);
        // The exponent of level 1, if there were numbers so small.
        let lowest = top as i32 - levels as i32 + 1;
        let (base, wire) = (lowest.max(1) as u32, f32::from_bits(top << PLACE) * beta);
        Self { lift: 1.0, inverse: 1.0, base, gap: (base as i32 - lowest) as u32, keep: !0, wire }
    }

    /// The level of the value with these bits, which is at most the scale, or saturates. The dither is of 23 bits.
    #[inline(always)]
    fn level(&self, value: u32, dither: u32, levels: u32) -> u32 {
        let magnitude = (f32::from_bits(value & (self.keep & MAGNITUDE)) * self.lift * self.inverse).to_bits();
        let exponent = (magnitude >> PLACE).max(1);
        let implied = (magnitude >> PLACE).min(1) << PLACE;
        let mantissa = magnitude & ((1 << PLACE) - 1) | implied;
        // Above the lowest level the place is the number's own bits; below it is that between zero and the lowest
        // level.
        let above = exponent.max(self.base);
        let place = (mantissa >> (above - exponent).min(31)) + ((above - self.base) << PLACE);
        let used = (place + dither) >> PLACE;
        (used + (self.gap & used.min(1).wrapping_neg())).min(levels)
    }
}

impl Words for Encoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let words = [self.lift.to_bits(), self.inverse.to_bits(), self.base, self.gap, self.keep];
        let [lift, inverse, base, gap, keep] = words.map(take);
        let [lift, inverse] = [lift, inverse].map(f32::from_bits);
        Self { lift, inverse, base, gap, keep, wire: 0.0 }
    }
}

/// What decoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The value of the highest level.
    top: f32,
    /// All ones, or zero for a poisoned bucket.
    keep: u32,
    /// Zero, or the bits of NaN for a poisoned bucket.
    fill: u32,
}

impl Words for Decoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let [top, keep, fill] = [self.top.to_bits(), self.keep, self.fill].map(take);
        Self { top: f32::from_bits(top), keep, fill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(encoder: &Encoder, value: f32, dither: u32, bits: u32) -> f32 {
        let levels = (1 << (bits - 1)) - 1;
        let decoder = Natural::decoder([encoder.wire, 0.0], levels);
        Natural::value(&decoder, bits, levels, encoder.level(value.to_bits(), dither, levels))
    }

    /// Of all places between two powers of two, and of all 2^23 dithers: as many go up as the place is large. So the
    /// expectation is the number itself, exactly.
    #[test]
    fn rounding_is_unbiased_by_enumeration_of_the_dithers() {
        let encoder = Encoder::new(3.0f32.to_bits(), 127, 1.0);
        for place in [0, 1, 2, 77, 1 << 22, (1 << 23) - 1] {
            let value = f32::from_bits(0.25f32.to_bits() + place);
            // The count is monotone in the dither, so its edge says how many go up.
            let goes_up = |dither: u32| decoded(&encoder, value, dither, 8) == 0.5;
            let edge = (1 << 23) - place;
            assert!(place == 0 || goes_up(edge), "{place}");
            assert!(!goes_up(edge - 1), "{place}");
            assert_eq!(decoded(&encoder, value, 0, 8), 0.25);
        }
    }

    /// Natural dithering of 2 bits has the levels 0 and the largest magnitude alone; of 3 bits a half and a quarter of
    /// it as well.
    #[test]
    fn few_bits_have_few_levels() {
        for scale in [1.0, 0.9, 3.0, 1e30, 1e-30, 2e38] {
            for (bits, part, below, above) in [
                (2, 0.7, 0.0, 1.0),
                (3, 0.7, 0.5, 1.0),
                (3, 0.3, 0.25, 0.5),
                (3, 0.2, 0.0, 0.25),
                (4, 0.01, 0.0, 0.015625),
            ] {
                let (x, most) = (part * scale, (1 << 23) - 1);
                let encoder = Encoder::new(f32::to_bits(scale), (1 << (bits - 1)) - 1, 1.0);
                assert_eq!(decoded(&encoder, x, 0, bits), below * scale, "{bits} bits, {x} of {scale}");
                assert_eq!(decoded(&encoder, x, most, bits), above * scale, "{bits} bits, {x} of {scale}");
                assert_eq!([0, most].map(|dither| decoded(&encoder, scale, dither, bits)), [scale; 2]);
            }
        }
    }

    /// The share of dithers that go up is a magnitude's place between the two levels around it.
    #[test]
    fn rounding_to_parts_of_the_largest_magnitude_is_unbiased() {
        let encoder = Encoder::new(3.0f32.to_bits(), 7, 1.0);
        for (x, below, above) in [(2.0, 1.5, 3.0), (1.4, 0.75, 1.5), (0.03, 0.0, 0.046875)] {
            let (mut low, mut high) = (0, 1 << 23);
            while low < high {
                let middle = (low + high) / 2;
                let value = decoded(&encoder, x, middle, 4);
                assert!(value == below || value == above, "{x}: {value}");
                if value == above { high = middle } else { low = middle + 1 }
            }
            let up = f64::from((1 << 23) - low) / f64::from(1 << 23);
            let mean = f64::from(below) * (1.0 - up) + f64::from(above) * up;
            let most = f64::from(above - below) * 2f64.powi(-22);
            assert!((mean - f64::from(x)).abs() <= most, "{x}: {mean}");
        }
    }

    #[test]
    fn powers_of_two_stay_and_what_is_beyond_the_range_is_cut() {
        let decode = |largest: f32, x: f32, dither| decoded(&Encoder::new(largest.to_bits(), 127, 1.0), x, dither, 8);
        let most = (1 << 23) - 1;
        for exponent in -126..=127 {
            let x = 2f32.powi(exponent);
            assert_eq!([decode(x, x, 0), decode(x, x, most)], [x; 2], "2^{exponent}");
        }
        // Above 2^127 there is no power of two.
        assert_eq!(decode(f32::MAX, f32::MAX, 0), 2f32.powi(127));
        assert_eq!(decode(f32::MAX, f32::MAX, most), 2f32.powi(127));
        // A subnormal number goes to zero or the smallest normal one.
        let tiny = f32::from_bits(1);
        assert_eq!([decode(tiny, tiny, 0), decode(tiny, tiny, most)], [0.0, f32::MIN_POSITIVE]);
        assert_eq!([decode(1.0, tiny, 0), decode(1.0, tiny, most)], [0.0, f32::MIN_POSITIVE]);
        assert_eq!(decode(0.0, 0.0, most), 0.0);
        // 2^127 above 127 levels: the lowest is 2.
        assert_eq!([decode(f32::MAX, 1.0, 0), decode(f32::MAX, 1.0, most)], [0.0, 2.0]);
    }
}
