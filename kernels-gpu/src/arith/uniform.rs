//! Stochastic uniform quantization between a bucket's minimum and maximum (Suresh et al., "Distributed mean
//! estimation with limited communication", ICML 2017, section 2.2, "stochastic k-level quantization").

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, from_key, lift, pow2, to_key};
use super::fold::{Max, Min};
use super::quantizer::{Quantizer, Words};
#[cfg(not(target_arch = "nvptx64"))]
use super::round::level_by_draw;
use super::round::{level_of_31_bits, unshifted};
use crate::params::EncodeParams;

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Uniform;

impl Quantizer for Uniform {
    type Encoder = Encoder;
    type Decoder = Decoder;
    // The extremes, as keys that order as the numbers do. A NaN is above infinity or below minus infinity, by its sign.
    type First = (Min, Max);
    type Second = ();
    type Total = ();
    // The smallest key, the largest key, 0, 0.
    type Partial = [u32; 4];
    const SCALARS: usize = 2;
    // A zero could lie outside of the bucket's range.
    const PADS_WITH_AN_ELEMENT: bool = true;

    #[inline(always)]
    fn first(value: u32) -> (Min, Max) {
        (Min(to_key(value)), Max(to_key(value)))
    }

    #[inline(always)]
    fn looks_again(_: &EncodeParams) -> bool {
        false
    }

    #[inline(always)]
    fn context(_: (Min, Max)) -> u32 {
        0
    }

    #[inline(always)]
    unsafe fn second(_value: u32, _context: u32) {}

    #[inline(always)]
    fn partial((Min(low), Max(high)): (Min, Max), (): (), _elements: u32) -> [u32; 4] {
        [low, high, 0, 0]
    }

    #[inline(always)]
    fn statistic(_: &EncodeParams, [low, high, ..]: [u32; 4]) -> [u32; 2] {
        [from_key(low), from_key(high)]
    }

    #[inline(always)]
    fn first_of([low, high, ..]: [u32; 4]) -> (Min, Max) {
        (Min(low), Max(high))
    }

    #[inline(always)]
    fn second_of(_: [u32; 4], _context: u32) {}

    #[inline(always)]
    fn whole(_: &EncodeParams, (Min(low), Max(high)): (Min, Max), (): ()) -> [u32; 2] {
        [from_key(low), from_key(high)]
    }

    #[inline(always)]
    fn encoder(p: &EncodeParams, statistic: [u32; 2]) -> Encoder {
        let [low, high] = statistic.map(f32::from_bits);
        Encoder::new(low, high, p.levels, p.fraction, p.beta())
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
        encoder.wire
    }

    #[inline(always)]
    unsafe fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Encoder, value: u32, dither: u32) -> u32 {
        // SAFETY: the caller's promise is passed on.
        unsafe { encoder.code(value, dither, p.fraction, p.levels) }
    }

    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    unsafe fn code_by_draw<const BITS: u32>(p: &EncodeParams, encoder: &Encoder, value: u32, draw: u32) -> u32 {
        let above = f32::from_bits(value) - encoder.low;
        let scaled = above * (encoder.inverse * pow2(16 - p.fraction as i32));
        // SAFETY: as in `Encoder::code`; a power of two changes no bit but where the product is far below 1.
        unsafe {
            if BITS < 6 {
                level_by_draw::<false>(scaled, draw, p.levels)
            } else {
                level_by_draw::<true>(scaled, draw, p.levels)
            }
        }
    }

    #[inline(always)]
    unsafe fn high(p: &EncodeParams, encoder: &Encoder, value: u32, draw: u32) -> u32 {
        let above = f32::from_bits(value & encoder.keep) * encoder.lift - encoder.low;
        // A bit more of fraction, so that the level ends with the highest bit, changes no level.
        // SAFETY: as in `Encoder::code`, and twice that.
        unsafe { unshifted(above * (encoder.inverse * 2.0), draw, p.fraction + 1, p.levels) }
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], levels: u32) -> Decoder {
        Decoder::new(wire[0], wire[1], levels)
    }

    #[inline(always)]
    fn plain_decoder(decoder: &Decoder) -> Option<Decoder> {
        let plain = decoder.keep != 0 && decoder.lower == 1.0;
        plain.then_some(Decoder { lower: 1.0, keep: !0, fill: 0, ..*decoder })
    }

    #[inline(always)]
    fn plain_handed_on(decoder: &Decoder, take: impl FnMut(u32) -> u32) -> Decoder {
        let words = [decoder.low.to_bits(), decoder.high.to_bits(), decoder.step.to_bits()];
        let [low, high, step] = words.map(take).map(f32::from_bits);
        Decoder { low, high, step, lower: 1.0, keep: !0, fill: 0 }
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        decoder.keep == 0
    }

    #[inline(always)]
    fn value(decoder: &Decoder, _bits: u32, levels: u32, code: u32) -> f32 {
        decoder.value(code, levels)
    }
}

/// The scale that keeps a range's arithmetic normal and finite, and its inverse, from its larger end's magnitude.
#[inline(always)]
fn range_lift(largest: f32) -> (f32, f32) {
    // The difference of two numbers near the largest finite one overflows; half of it does not.
    if largest >= pow2(126) { (0.5, 2.0) } else { lift(largest) }
}

#[inline(always)]
fn magnitude(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & MAGNITUDE)
}

#[inline(always)]
fn not_finite(x: f32) -> bool {
    x.to_bits() & MAGNITUDE >= INF_BITS
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The number after a normal one that is not negative.
#[inline(always)]
fn next_above(x: f32) -> f32 {
    f32::from_bits(x.to_bits() + 1)
}

/// What encoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Power of two that keeps the arithmetic normal and finite.
    pub lift: f32,
    /// The lifted minimum.
    pub low: f32,
    /// Fixed-point levels per unit of lifted distance from the minimum.
    pub inverse: f32,
    /// All ones, or zero for a poisoned bucket.
    pub keep: u32,
    /// The scalars that go on the wire: minimum and maximum, each times the contraction factor.
    pub wire: [f32; 2],
}

impl Encoder {
    /// From the bucket's minimum and maximum; either not finite marks the bucket as poisoned.
    #[inline(always)]
    pub fn new(low: f32, high: f32, levels: u32, fraction: u32, beta: f32) -> Self {
        if not_finite(low) || not_finite(high) {
            let nan = f32::from_bits(NAN_BITS);
            return Self { lift: 1.0, low: 0.0, inverse: 0.0, keep: 0, wire: [nan, nan] };
        }
        let (up, _) = range_lift(larger(magnitude(low), magnitude(high)));
        let range = high * up - low * up;
        let full = (levels << fraction) as f32;
        let quotient = full / range;
        // A quotient that was rounded down may leave the maximum just below the top level. The next larger number does
        // not.
        let rounded_up = if range * quotient < full { next_above(quotient) } else { quotient };
        let inverse = if range > 0.0 { rounded_up } else { 0.0 };
        Self { lift: up, low: low * up, inverse, keep: !0, wire: [low * beta, high * beta] }
    }

    /// The code of the value with these bits.
    ///
    /// # Safety
    /// The value is between the minimum and the maximum that this encoder was made from, or the encoder is a poisoned
    /// one; levels and fraction are those it was made for, and the levels fewer than
    /// [`WIDE_LEVELS`](super::round::WIDE_LEVELS). So safe code cannot call it:
    ///
    /// ```compile_fail,E0133
    /// use gradwire_kernels::arith::uniform::Encoder;
    /// Encoder::new(0.0, 1.0, 15, 27, 1.0).code(f32::MAX.to_bits(), u32::MAX, 0, 0);
    /// ```
    #[inline(always)]
    pub unsafe fn code(&self, value: u32, dither: u32, fraction: u32, levels: u32) -> u32 {
        let above = f32::from_bits(value & self.keep) * self.lift - self.low;
        // SAFETY: minimum <= value <= maximum and rounding is monotone, so 0 <= above <= range, and the product is at
        // most levels * 2^fraction * (1 + 2^-22) < 2^31; a poisoned bucket's values were cleared.
        unsafe { level_of_31_bits(above * self.inverse, dither, fraction, levels) }
    }
}

impl Words for Encoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let words = [self.lift.to_bits(), self.low.to_bits(), self.inverse.to_bits(), self.keep];
        let [lift, low, inverse, keep] = words.map(take);
        let [lift, low, inverse] = [lift, low, inverse].map(f32::from_bits);
        Self { lift, low, inverse, keep, wire: [0.0; 2] }
    }
}

/// What decoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The lifted minimum.
    pub low: f32,
    /// The lifted maximum, which the top level decodes to and no value passes.
    pub high: f32,
    /// The lifted distance of two levels.
    pub step: f32,
    /// The power of two that undoes the lift.
    pub lower: f32,
    /// All ones, or zero for a poisoned bucket.
    pub keep: u32,
    /// Zero, or the bits of NaN for a poisoned bucket.
    pub fill: u32,
}

impl Decoder {
    /// From the bucket's scalars on the wire. Scalars that no encoder writes (not finite, or out of order) read as a
    /// poisoned bucket.
    #[inline(always)]
    pub fn new(low: f32, high: f32, levels: u32) -> Self {
        if not_finite(low) || not_finite(high) || low > high {
            return Self { low: 0.0, high: 0.0, step: 0.0, lower: 1.0, keep: 0, fill: NAN_BITS };
        }
        let (up, lower) = range_lift(larger(magnitude(low), magnitude(high)));
        let (low, high) = (low * up, high * up);
        Self { low, high, step: (high - low) / levels as f32, lower, keep: !0, fill: 0 }
    }

    /// The value of a code.
    #[inline(always)]
    pub fn value(&self, code: u32, levels: u32) -> f32 {
        let between = self.low + self.step * (code as i32 as f32);
        // Without a branch: a device has the code in a lane of its own.
        let lifted = if (code >= levels) | (between > self.high) { self.high } else { between };
        f32::from_bits((lifted * self.lower).to_bits() & self.keep | self.fill)
    }
}

impl Words for Decoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let words =
            [self.low.to_bits(), self.high.to_bits(), self.step.to_bits(), self.lower.to_bits(), self.keep, self.fill];
        let [low, high, step, lower, keep, fill] = words.map(take);
        let [low, high, step, lower] = [low, high, step, lower].map(f32::from_bits);
        Self { low, high, step, lower, keep, fill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::round::{dither_nearest, dither16, fraction_bits};

    #[test]
    fn the_extremes_of_any_range_decode_exactly_whatever_the_draw() {
        let mut state = 0x1234_5678_9abc_def0u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let mut rounded_up = 0;
        for turn in 0..400_000u32 {
            // Any two finite numbers, and neighbours, since ranges of a few units round worst.
            let low = f32::from_bits(random());
            let high =
                if turn % 4 == 0 { f32::from_bits(low.to_bits() ^ (random() % 64)) } else { f32::from_bits(random()) };
            if !low.is_finite() || !high.is_finite() {
                continue;
            }
            let (low, high) = if low <= high { (low, high) } else { (high, low) };
            let levels = (1 << (1 + turn % 8)) - 1;
            let fraction = fraction_bits(levels);
            let encoder = Encoder::new(low, high, levels, fraction, 1.0);
            let decoder = Decoder::new(low, high, levels);
            let (up, _) = range_lift(larger(magnitude(low), magnitude(high)));
            rounded_up += u32::from(encoder.inverse != (levels << fraction) as f32 / (high * up - low * up));
            // The least dither of a 16-bit draw, of a 32-bit draw, and the nearest: others are between it and the
            // greatest.
            for dither in
                [dither16(0, fraction), dither16(65535, fraction), 0, (1 << fraction) - 1, dither_nearest(fraction)]
            {
                // SAFETY: the values are the minimum and the maximum, and the dither is below 2^fraction.
                let [least, largest] =
                    [low, high].map(|value| unsafe { encoder.code(value.to_bits(), dither, fraction, levels) });
                if high > low {
                    assert_eq!(largest, levels, "{low:e} to {high:e}");
                }
                assert_eq!(least, 0, "{low:e} to {high:e}");
                // Half of a number below 2^-125 may lose its last bit, where the other end makes the range be halved.
                let exact = |x: f32| up != 0.5 || magnitude(x) >= pow2(-125);
                if exact(high) {
                    assert_eq!(decoder.value(levels, levels), high, "{low:e} to {high:e}");
                }
                if exact(low) {
                    assert_eq!(decoder.value(0, levels), low, "{low:e} to {high:e}");
                }
            }
        }
        assert!(rounded_up > 10_000, "the case that this is about came up {rounded_up} times");
    }
}
