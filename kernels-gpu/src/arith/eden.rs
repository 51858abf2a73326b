//! EDEN (Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak and Mitzenmacher, "EDEN: Communication-efficient and
//! robust distributed mean estimation for federated learning", ICML 2022, algorithm 1 and theorem 2.1), of a bucket y
//! of B elements that was rotated before.
//!
//! Such elements are about normal. So y_i sqrt(B)/|y|_2 becomes the nearest of 2^b centroids, those of Lloyd and Max
//! for a normal distribution of variance 1; and the scale is |y|_2^2 / <y, c>, c the centroids that were taken.
//!
//! Neither depends on the order in which elements are added: magnitudes are aligned to the largest as integers of 24
//! bits, as in [`super::norm`], centroids are integers, and both sums are of integers.

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS, SIGN};
use super::fold::{Max, Sum, high, join, low};
use super::norm::{Aligner, aligned_square, alignment, isqrt};
use super::onebit::{is_below, mean};
use super::quantizer::{Quantizer, Words};
use crate::params::EncodeParams;

/// The centroids above zero of codes of 1, 2, 3 and 4 bits, in units of 2^-13; those below are the same with a sign.
pub const CENTROIDS: [&[u16]; 4] =
    [&[6536], &[3709, 12373], &[2008, 6193, 11009, 17629], &[1052, 3179, 5380, 7720, 10291, 13255, 16949, 22385]];

/// The midpoints between them, in units of 2^-18: those of the centroids before they were rounded.
pub const MIDPOINTS: [&[u32]; 4] =
    [&[], &[257_320], &[131_216, 275_240, 458_209], &[67_691, 136_945, 209_597, 288_171, 376_737, 483_271, 629_356]];

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Eden;

impl Quantizer for Eden {
    type Encoder = Encoder;
    type Decoder = Decoder;
    // The largest magnitude: NaN is above infinity, and infinity above every number.
    type First = Max;
    // The sum of the squares of aligned magnitudes, 61 bits.
    type Second = Sum;
    // No tensor is one bucket.
    type Total = ();
    // The largest magnitude, the sum in two words, what makes a code, the third look's sum in two words, zeros.
    type Partial = [u32; 8];
    const SCALARS: usize = 1;
    // A zero adds nothing.
    const PADS_WITH_AN_ELEMENT: bool = false;

    #[inline(always)]
    fn first(value: u32) -> Max {
        Max(value & MAGNITUDE)
    }

    #[inline(always)]
    fn looks_again(_: &EncodeParams) -> bool {
        true
    }

    #[inline(always)]
    fn context(Max(largest): Max) -> u32 {
        alignment(largest)
    }

    #[inline(always)]
    unsafe fn second(value: u32, to: u32) -> Sum {
        // SAFETY: the value is of the bucket with this context, so its magnitude is at most the largest.
        Sum(unsafe { aligned_square(value & MAGNITUDE, to) })
    }

    #[inline(always)]
    fn partial(Max(largest): Max, Sum(squares): Sum, elements: u32) -> [u32; 8] {
        [largest, low(squares), high(squares), measure(largest, squares, elements), 0, 0, 0, 0]
    }

    #[inline(always)]
    fn statistic(_: &EncodeParams, [largest, a, b, measure, c, d, ..]: [u32; 8]) -> [u32; 2] {
        [measure, scale(largest, join([a, b]), join([c, d]))]
    }

    const LOOKS_THRICE: bool = true;

    // The sum of aligned magnitudes times their centroids, 52 bits.
    #[inline(always)]
    unsafe fn third(p: &EncodeParams, value: u32, measure: u32) -> Sum {
        // SAFETY: the value is of the bucket with this measure.
        let (aligned, place) = unsafe { place(measure, value) };
        Sum(u64::from(aligned) * u64::from(centroid(p.bits, place)))
    }

    #[inline(always)]
    fn completed([largest, a, b, measure, ..]: [u32; 8], Sum(third): Sum) -> [u32; 8] {
        [largest, a, b, measure, low(third), high(third), 0, 0]
    }

    #[inline(always)]
    fn first_of([largest, ..]: [u32; 8]) -> Max {
        Max(largest)
    }

    #[inline(always)]
    fn second_of(_: [u32; 8], _: u32) {}

    #[inline(always)]
    fn whole(_: &EncodeParams, _: Max, (): ()) -> [u32; 2] {
        // What no kernel asks for: a bucket of which nothing is known.
        [POISONED, NAN_BITS]
    }

    #[inline(always)]
    fn encoder(_: &EncodeParams, [measure, scale]: [u32; 2]) -> Encoder {
        Encoder { measure, keep: keep(measure), wire: f32::from_bits(scale) }
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
    unsafe fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Encoder, value: u32, _dither: u32) -> u32 {
        // SAFETY: the value is of the encoder's bucket, or zero.
        let (_, place) = unsafe { place(encoder.measure, value & encoder.keep) };
        let half = 1 << (p.bits - 1);
        let above = half | level(p.bits, place);
        let mirror = (2 * half - 1) & (is_below(value) as u32).wrapping_neg();
        (above ^ mirror) & encoder.keep
    }

    #[inline(always)]
    fn decoder([scale, _]: [f32; 2], _levels: u32) -> Decoder {
        // A scale that no encoder writes (negative, infinite) reads as a poisoned bucket.
        let poisoned = scale.to_bits() >= INF_BITS;
        let (keep, fill) = if poisoned { (0, NAN_BITS) } else { (!0, 0) };
        Decoder { scale: if poisoned { 0.0 } else { scale }, keep, fill }
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
    fn value(decoder: &Decoder, bits: u32, _levels: u32, code: u32) -> f32 {
        let sign = !code << (32 - bits) & SIGN;
        let level = code ^ (sign >> 31).wrapping_neg();
        let magnitude = (decoder.scale * centroid_at(bits, level)).min(f32::MAX);
        f32::from_bits((magnitude.to_bits() | sign) & decoder.keep | decoder.fill)
    }
}

/// What the number is of a bucket that holds a NaN or an infinity: the alignment is theirs.
const POISONED: u32 = alignment_word(255);

/// Where the alignment is in what makes a code.
const fn alignment_word(to: u32) -> u32 {
    to << 24
}

/// All ones, or zero for a poisoned bucket.
#[inline(always)]
fn keep(measure: u32) -> u32 {
    if measure >= POISONED { 0 } else { !0 }
}

/// The exponent below which no [`inverse`] is, and the bits of it that are cut.
const LEAST: u32 = 112 << 18;
const CUT: u32 = 5;

/// What makes a code of an element: the alignment in the upper 8 bits, and below it 2^18 sqrt(B) / |y|_2 in units of
/// the alignment, as a number of 18 bits after the point with an exponent of 6 bits.
#[inline(always)]
fn measure(largest: u32, squares: u64, elements: u32) -> u32 {
    if largest >= INF_BITS {
        return POISONED;
    }
    let root = isqrt(squares) as f32;
    let inverse = isqrt(u64::from(elements) << 36) as f32 / if squares == 0 { 1.0 } else { root };
    // At least 2^-13, and at most 2^25.
    alignment_word(alignment(largest)) | ((inverse.to_bits() >> CUT).wrapping_sub(LEAST) & 0x00ff_ffff)
}

/// The magnitude of the value with these bits as an integer of its bucket's alignment, and y sqrt(B)/|y|_2 in units of
/// 2^-18. Of a poisoned bucket both are zero.
///
/// # Safety
/// The value is of the bucket with this measure.
#[inline(always)]
unsafe fn place(measure: u32, value: u32) -> (u32, f32) {
    let inverse = f32::from_bits(((measure & 0x00ff_ffff) + LEAST) << CUT);
    // Of a poisoned bucket's values an aligner would make no integers.
    let kept = value & MAGNITUDE & keep(measure);
    // SAFETY: the magnitude is finite, and its exponent at most the alignment, which is the largest magnitude's.
    let aligned = unsafe { Aligner::new(measure >> 24).aligned(f32::from_bits(kept)) };
    (aligned, aligned as f32 * inverse)
}

/// The one of four that codes of this width have. By bits of the width: of a comparison with each the compiler makes a
/// table, which a kernel cannot hold.
#[inline(always)]
fn of_width<T>(bits: u32, one: T, two: T, three: T, four: T) -> T {
    let few = if bits & 1 == 0 {
        two
    } else if bits & 2 == 0 {
        one
    } else {
        three
    };
    if bits & 4 == 0 { few } else { four }
}

/// The midpoint below centroid `J` of those above zero; infinite where there are not so many.
#[inline(always)]
fn midpoint<const J: usize>(bits: u32) -> f32 {
    const fn of(bits: usize, j: usize) -> f32 {
        if j <= MIDPOINTS[bits - 1].len() { MIDPOINTS[bits - 1][j - 1] as f32 } else { f32::INFINITY }
    }
    of_width(bits, const { of(1, J) }, const { of(2, J) }, const { of(3, J) }, const { of(4, J) })
}

/// Centroid `J` of those above zero, in units of 2^-13; zero where there are not so many.
#[inline(always)]
fn centroid_of<const J: usize>(bits: u32) -> u32 {
    const fn of(bits: usize, j: usize) -> u32 {
        if j < CENTROIDS[bits - 1].len() { CENTROIDS[bits - 1][j] as u32 } else { 0 }
    }
    of_width(bits, const { of(1, J) }, const { of(2, J) }, const { of(3, J) }, const { of(4, J) })
}

/// How many midpoints lie at this place or below.
#[inline(always)]
fn level(bits: u32, place: f32) -> u32 {
    let lower = (place >= midpoint::<1>(bits)) as u32
        + (place >= midpoint::<2>(bits)) as u32
        + (place >= midpoint::<3>(bits)) as u32;
    let upper = (place >= midpoint::<4>(bits)) as u32
        + (place >= midpoint::<5>(bits)) as u32
        + (place >= midpoint::<6>(bits)) as u32
        + (place >= midpoint::<7>(bits)) as u32;
    lower + upper
}

/// The centroid of a place, in units of 2^-13.
#[inline(always)]
fn centroid(bits: u32, place: f32) -> u32 {
    let mut found = centroid_of::<0>(bits);
    found = if place >= midpoint::<1>(bits) { centroid_of::<1>(bits) } else { found };
    found = if place >= midpoint::<2>(bits) { centroid_of::<2>(bits) } else { found };
    found = if place >= midpoint::<3>(bits) { centroid_of::<3>(bits) } else { found };
    found = if place >= midpoint::<4>(bits) { centroid_of::<4>(bits) } else { found };
    found = if place >= midpoint::<5>(bits) { centroid_of::<5>(bits) } else { found };
    found = if place >= midpoint::<6>(bits) { centroid_of::<6>(bits) } else { found };
    if place >= midpoint::<7>(bits) { centroid_of::<7>(bits) } else { found }
}

/// The centroid of a level: its lowest bits decide, as many as there are.
#[inline(always)]
fn centroid_at(bits: u32, level: u32) -> f32 {
    const UNIT: f32 = 1.0 / 8192.0;
    // Of fewer centroids each stands at every level with its lowest bits.
    let of = |narrow: u32, wide: u32, odd: bool| if odd { wide } else { narrow };
    let last = of_width(bits, 0, 1, 3, 7);
    let level = level & last;
    let low = of(centroid_of::<0>(bits), centroid_of::<1>(bits), level & 1 != 0);
    let next = of(centroid_of::<2>(bits), centroid_of::<3>(bits), level & 1 != 0);
    let third = of(centroid_of::<4>(bits), centroid_of::<5>(bits), level & 1 != 0);
    let top = of(centroid_of::<6>(bits), centroid_of::<7>(bits), level & 1 != 0);
    let lower = of(low, next, level & 2 != 0);
    let upper = of(third, top, level & 2 != 0);
    of(lower, upper, level & 4 != 0) as f32 * UNIT
}

/// The scale: the quotient of the sums in units of 2^-6, cut to an integer, and then rounded. Both sums go without the
/// lower one's bits beyond 31. It is below 2.2 times the largest magnitude, since no centroid is below 1/2.2 of its
/// elements but the highest, which is above 1/1.3.
#[inline(always)]
fn scale(largest: u32, squares: u64, products: u64) -> u32 {
    if largest >= INF_BITS {
        return NAN_BITS;
    }
    // Bits of the sum of products beyond 31: 21 at most.
    let by = 33u32.saturating_sub(products.leading_zeros()).min(31);
    let dividend = if by < 19 { squares << (19 - by) } else { squares >> (by - 19) };
    // Units of 2^-6, where the mean's are of 2^-8.
    mean(dividend, (products >> by) as u32, alignment(largest) + 2).min(f32::MAX).to_bits()
}

/// What encoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// What makes a code of an element.
    measure: u32,
    /// All ones, or zero for a bucket that holds a NaN or an infinity: its codes are all zero.
    keep: u32,
    /// The scalar on the wire.
    wire: f32,
}

impl Words for Encoder {
    #[inline(always)]
    fn handed_on(&self, mut take: impl FnMut(u32) -> u32) -> Self {
        let measure = take(self.measure);
        Self { measure, keep: keep(measure), wire: 0.0 }
    }
}

/// What decoding an element of a bucket needs.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The scale; zero in a poisoned bucket.
    scale: f32,
    /// All ones, or zero for a poisoned bucket.
    keep: u32,
    /// Zero, or the bits of NaN for a poisoned bucket.
    fill: u32,
}

impl Words for Decoder {
    #[inline(always)]
    fn handed_on(&self, take: impl FnMut(u32) -> u32) -> Self {
        let [scale, keep, fill] = [self.scale.to_bits(), self.keep, self.fill].map(take);
        Self { scale: f32::from_bits(scale), keep, fill }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// The centroids above zero to which Lloyd's method comes on the normal distribution of variance 1: each becomes
    /// the mean of what is nearest to it. Integrals are those of Simpson's rule up to 9 deviations.
    fn lloyd(count: usize) -> Vec<f64> {
        let mut found: Vec<f64> = (0..count).map(|k| (k as f64 + 0.5) * 3.0 / count as f64).collect();
        loop {
            let inner = found.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
            let edges: Vec<f64> = [0.0].into_iter().chain(inner).chain([9.0]).collect();
            let next: Vec<f64> = edges
                .windows(2)
                .map(|edge| {
                    let step = (edge[1] - edge[0]) / 4096.0;
                    let [all, first] = (0..=4096u32).fold([0.0; 2], |[all, first], k| {
                        let z = edge[0] + f64::from(k) * step;
                        let part = if k % 4096 == 0 { 1.0 } else { f64::from(2 + k % 2 * 2) };
                        let weight = part * (-z * z / 2.0).exp();
                        [all + weight, first + weight * z]
                    });
                    first / all
                })
                .collect();
            let moved = found.iter().zip(&next).fold(0.0f64, |moved, (a, b)| moved.max((a - b).abs()));
            found = next;
            if moved < 1e-12 {
                return found;
            }
        }
    }

    /// The numbers are the nearest multiples of their units. None of the exact ones is within a tenth of a unit of a
    /// half, and the sums above are exact to less than that: of 2^12 parts of an interval they are to 1e-9.
    #[test]
    fn centroids_are_the_fixed_point_of_lloyds_method() {
        for (k, (centroids, midpoints)) in CENTROIDS.iter().zip(MIDPOINTS).enumerate() {
            let found = lloyd(1 << k);
            let integers = |values: Vec<f64>, unit: f64| -> Vec<u32> {
                let scaled: Vec<f64> = values.iter().map(|v| v * unit).collect();
                assert!(scaled.iter().all(|v| (v.fract() - 0.5).abs() > 0.1), "{scaled:?}");
                scaled.iter().map(|v| v.round() as u32).collect()
            };
            let between: Vec<f64> = found.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
            assert_eq!(integers(found, 8192.0), centroids.iter().map(|c| u32::from(*c)).collect::<Vec<_>>());
            assert_eq!(integers(between, 262_144.0), midpoints);
        }
    }

    /// A level, its centroid and its value belong together, for every width and level.
    #[test]
    fn levels_places_and_centroids_agree() {
        for bits in 1..=4 {
            let (centroids, midpoints) = (CENTROIDS[bits as usize - 1], MIDPOINTS[bits as usize - 1]);
            for (k, c) in centroids.iter().enumerate() {
                let first = if k == 0 { 0 } else { midpoints[k - 1] };
                let last = midpoints.get(k).map_or(1 << 24, |next| next - 1);
                for place in [first, last] {
                    assert_eq!(level(bits, place as f32), k as u32, "{bits} bits, {place}");
                    assert_eq!(centroid(bits, place as f32), u32::from(*c), "{bits} bits, {place}");
                }
                let decoder = Eden::decoder([3.0, 0.0], 0);
                let half = 1 << (bits - 1);
                let value = 3.0 * f32::from(*c) / 8192.0;
                assert_eq!(Eden::value(&decoder, bits, 0, half + k as u32), value);
                assert_eq!(Eden::value(&decoder, bits, 0, half - 1 - k as u32), -value);
            }
        }
    }

    /// What makes a code holds the exponents of every bucket: of the least and the most squares, of few elements and
    /// many.
    #[test]
    fn an_inverse_fits_its_bits() {
        for elements in [1u32, 2, 31, 32, 8191, 8192] {
            for squares in [1u64, 2, 3, 1 << 46, ((1 << 24) - 1) * ((1 << 24) - 1), 1 << 60, (1 << 61) - 1] {
                let exact = 262_144.0 * f64::from(elements).sqrt() / (squares as f64).sqrt().floor();
                // SAFETY: the value is the largest of the bucket with this measure.
                let (aligned, place) = unsafe { place(measure(0x3f80_0000, squares, elements), 0x3f80_0000) };
                assert_eq!(aligned, 1 << 23);
                let off = f64::from(place) / 8_388_608.0 / exact - 1.0;
                assert!(off.abs() < 2f64.powi(-17), "{elements} elements, {squares}: {place}, not {exact}");
            }
        }
        assert!(measure(0x7f7f_ffff, 1, 1) < POISONED && measure(INF_BITS, 1, 1) >= POISONED);
    }
}
