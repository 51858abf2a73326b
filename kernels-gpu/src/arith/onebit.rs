//! 1-bit quantization with two means (Seide et al., "1-bit stochastic gradient descent and its application to
//! data-parallel distributed training of speech DNNs", Interspeech 2014, section 3; by buckets as Grubic et al., EDBT
//! 2018).
//!
//! An element is sent as its side of zero, and decodes to the mean of its bucket's elements on that side. No other two
//! values for the two sides have less squared error, and what decoding does not give back adds up to zero on each side.
//!
//! The means do not depend on the order in which elements are added: magnitudes of a side are aligned to its largest as
//! integers of 32 bits, which loses less than 2^-31 of the largest per element, and so does cutting their mean to an
//! integer.

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, SIGN, pow2};
use super::fold::{Max, Sum, high, join, low};
use super::norm::{aligned_finely, alignment};
use super::quantizer::{Quantizer, Words};
use crate::params::EncodeParams;

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct OneBit;

/// Where in the sum of a span's negative elements their count begins: the sum takes 45 bits.
const COUNT: u32 = 48;

impl Quantizer for OneBit {
    type Encoder = Encoder;
    type Decoder = Decoder;
    // The largest magnitude on each side of zero, the upper side first.
    type First = (Max, Max);
    // The sum of aligned magnitudes on each side, the lower one with the count of its elements in front.
    type Second = (Sum, Sum);
    // The sums, and the counts in a word each.
    type Total = ((Sum, Sum), Sum);
    // The largest magnitudes, the sums in two words each, the counts.
    type Partial = [u32; 8];
    const SCALARS: usize = 2;
    // A zero adds nothing to the upper sum, and the count of elements tells how many are there.
    const PADS_WITH_AN_ELEMENT: bool = false;

    #[inline(always)]
    fn first(value: u32) -> (Max, Max) {
        // Of signed integers, the one on the other side of zero is below it: no branch, so that a loop becomes vectors.
        let side = |bits: u32| Max((bits as i32).max(0) as u32);
        (side(value), side(value ^ SIGN))
    }

    #[inline(always)]
    fn looks_again(_: &EncodeParams) -> bool {
        true
    }

    #[inline(always)]
    fn context((Max(above), Max(below)): (Max, Max)) -> u32 {
        alignment(above) | alignment(below) << 16
    }

    #[inline(always)]
    unsafe fn second(value: u32, context: u32) -> (Sum, Sum) {
        let below = is_below(value);
        let to = if below { context >> 16 } else { context & 0xffff };
        let aligned = u64::from(aligned_finely(value & MAGNITUDE, to));
        if below { (Sum(0), Sum(aligned | 1 << COUNT)) } else { (Sum(aligned), Sum(0)) }
    }

    #[inline(always)]
    fn partial((Max(top), Max(bottom)): (Max, Max), (Sum(above), Sum(below)): (Sum, Sum), elements: u32) -> [u32; 8] {
        let count = (below >> COUNT) as u32;
        let below = below & ((1 << COUNT) - 1);
        [top, bottom, low(above), high(above), low(below), high(below), elements.wrapping_sub(count), count]
    }

    #[inline(always)]
    fn statistic(p: &EncodeParams, partial: [u32; 8]) -> [u32; 2] {
        let first = Self::first_of(partial);
        Self::whole(p, first, Self::second_of(partial, Self::context(first)))
    }

    #[inline(always)]
    fn first_of([top, bottom, ..]: [u32; 8]) -> (Max, Max) {
        (Max(top), Max(bottom))
    }

    #[inline(always)]
    fn second_of([top, bottom, a, b, c, d, above, below]: [u32; 8], context: u32) -> ((Sum, Sum), Sum) {
        // A sum of a span has 45 bits, so that a shift by 63 leaves nothing, as one by more would.
        let down = |sum: u64, to: u32, largest: u32| Sum(sum >> to.wrapping_sub(alignment(largest)).min(63));
        let sums = (down(join([a, b]), context & 0xffff, top), down(join([c, d]), context >> 16, bottom));
        (sums, Sum(join([above, below])))
    }

    #[inline(always)]
    fn whole(
        _: &EncodeParams,
        (Max(top), Max(bottom)): (Max, Max),
        ((Sum(above), Sum(below)), Sum(counts)): ((Sum, Sum), Sum),
    ) -> [u32; 2] {
        if top.max(bottom) >= INF_BITS {
            return [NAN_BITS; 2];
        }
        let under = mean(below, high(counts), alignment(bottom));
        let over = mean(above, low(counts), alignment(top));
        [(0.0 - under).to_bits(), over.to_bits()]
    }

    #[inline(always)]
    fn encoder(_: &EncodeParams, [below, above]: [u32; 2]) -> Encoder {
        let keep = if below & MAGNITUDE >= INF_BITS { 0 } else { !0 };
        Encoder { keep, wire: [f32::from_bits(below), f32::from_bits(above)] }
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
        encoder.wire
    }

    #[inline(always)]
    unsafe fn code<const WIDE: bool>(_: &EncodeParams, encoder: &Encoder, value: u32, _dither: u32) -> u32 {
        (!is_below(value) as u32) & encoder.keep
    }

    #[inline(always)]
    fn decoder([below, above]: [f32; 2], _levels: u32) -> Decoder {
        let not_finite = |x: f32| x.to_bits() & MAGNITUDE >= INF_BITS;
        if not_finite(below) || not_finite(above) || below > above {
            let nan = f32::from_bits(NAN_BITS);
            return Decoder { below: nan, above: nan };
        }
        Decoder { below, above }
    }

    #[inline(always)]
    fn plain_decoder(decoder: &Decoder) -> Option<Decoder> {
        (!Self::poisoned(decoder)).then_some(*decoder)
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        decoder.above.to_bits() & MAGNITUDE > INF_BITS
    }

    #[inline(always)]
    fn value(decoder: &Decoder, _bits: u32, _levels: u32, code: u32) -> f32 {
        // By bits: of two fields behind a reference the compiler makes an array that is indexed by the code.
        let (below, above) = (decoder.below.to_bits(), decoder.above.to_bits());
        f32::from_bits(below ^ ((below ^ above) & (code & 1).wrapping_neg()))
    }
}

/// Whether the value with these bits is less than zero. -0.0 is not; a NaN may be on either side.
#[inline(always)]
pub(super) fn is_below(value: u32) -> bool {
    value > SIGN
}

/// The mean of so many magnitudes that were aligned and added up, cut to an integer and then rounded; 0 of none.
#[inline(always)]
pub(super) fn mean(sum: u64, count: u32, alignment: u32) -> f32 {
    if count == 0 {
        return 0.0;
    }
    let exponent = alignment as i32 - 158;
    let half = exponent / 2;
    quotient(sum, count) as f32 * pow2(half) * pow2(exponent - half)
}

/// floor(sum / count), for quotients below 2^32.
#[inline(always)]
pub(super) fn quotient(sum: u64, count: u32) -> u32 {
    if cfg!(target_arch = "nvptx64") { by_estimates(sum, count) } else { (sum / u64::from(count)) as u32 }
}

/// [`quotient`] without a division of integers, for which a GPU has no instruction.
#[inline(always)]
fn by_estimates(sum: u64, count: u32) -> u32 {
    let n = count as f32;
    // The roundings are off by less than a factor of 1 - 2^-20, so an estimate is never too large. The first leaves
    // less than 2^13 to find, and the second less than 2.
    let estimate = |rest: u64| {
        let rest = high(rest) as f32 * pow2(32) + low(rest) as f32;
        (rest / n * (1.0 - pow2(-20))) as u32
    };
    let rest_of = |rest: u64, quotient: u32| rest.wrapping_sub(u64::from(quotient) * u64::from(count));
    let first = estimate(sum);
    let rest = rest_of(sum, first);
    let second = estimate(rest);
    let last = rest_of(rest, second) >= u64::from(count);
    first.wrapping_add(second).wrapping_add(last as u32)
}

/// What encoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// All ones, or zero for a bucket that holds a NaN or an infinity: its codes are all zero.
    pub keep: u32,
    /// The scalars on the wire: the mean of the elements below zero, and of the others.
    pub wire: [f32; 2],
}

impl Words for Encoder {
    #[inline(always)]
    fn handed_on(&self, mut take: impl FnMut(u32) -> u32) -> Self {
        Self { keep: take(self.keep), wire: [0.0; 2] }
    }
}

/// What decoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The value of code 0. In a poisoned bucket both are NaN.
    pub below: f32,
    /// The value of code 1.
    pub above: f32,
}

impl Words for Decoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let [below, above] = [self.below.to_bits(), self.above.to_bits()].map(take).map(f32::from_bits);
        Self { below, above }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_come_to_the_quotient() {
        let mut state = 0x1234_5678_9abc_def0u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 32
        };
        for _ in 0..2_000_000 {
            let count = ((random() >> (random() % 32)) as u32).clamp(1, 1 << 31);
            let mean = random() >> (random() % 32);
            for rest in [0, 1, u64::from(count) - 1, random() % u64::from(count)] {
                let sum = (mean * u64::from(count)).saturating_add(rest);
                assert_eq!(u64::from(by_estimates(sum, count)), sum / u64::from(count), "{sum} / {count}");
            }
        }
    }

    #[test]
    fn the_mean_of_equal_magnitudes_is_that_magnitude() {
        for magnitude in [1e-45f32, 1.1e-38, 1.2e-38, 0.1, 3.0, f32::MAX] {
            let to = alignment(magnitude.to_bits());
            for count in [1u32, 3, 64, 8191, 1 << 31] {
                let sum = u64::from(aligned_finely(magnitude.to_bits(), to)) * u64::from(count);
                assert_eq!(mean(sum, count, to), magnitude, "{count} times {magnitude:e}");
            }
        }
    }
}
