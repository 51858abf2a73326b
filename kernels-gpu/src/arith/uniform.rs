//! Stochastic uniform quantization between a bucket's minimum and maximum (Suresh et al., "Distributed mean
//! estimation with limited communication", ICML 2017, section 2.2, "stochastic k-level quantization").

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, lift, pow2};
use super::round::level;

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
        let inverse = if range > 0.0 { (levels << fraction) as f32 / range } else { 0.0 };
        Self { lift: up, low: low * up, inverse, keep: !0, wire: [low * beta, high * beta] }
    }

    /// The code of the value with these bits, which lies between the minimum and the maximum.
    #[inline(always)]
    pub fn code(&self, value: u32, dither: u32, fraction: u32, levels: u32) -> u32 {
        let above = f32::from_bits(value & self.keep) * self.lift - self.low;
        // SAFETY: minimum <= value <= maximum and rounding is monotone, so 0 <= above <= range, and the product is at
        // most levels * 2^fraction * (1 + 2^-22) < 2^31; a poisoned bucket's values were cleared.
        unsafe { level(above * self.inverse, dither, fraction, levels) }
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
        let lifted = if code >= levels || between > self.high { self.high } else { between };
        f32::from_bits((lifted * self.lower).to_bits() & self.keep | self.fill)
    }
}
