//! DRIVE: signs with the scale |y|_2^2 / |y|_1 (Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak and Mitzenmacher,
//! "DRIVE: One-bit distributed mean estimation", NeurIPS 2021, algorithm 1 and theorem 1), of a bucket y that was
//! rotated before.
//!
//! The scale does not depend on the order in which elements are added: magnitudes are aligned to the largest as
//! integers of 24 bits, as in [`super::norm`], and both sums are of those integers. All but the scale is what signs
//! are: [`super::sign`].

use super::float::{INF_BITS, MAGNITUDE, NAN_BITS};
use super::fold::{Max, Sum, high, join, low};
use super::norm::{Aligner, alignment, square};
use super::onebit::mean;
use super::quantizer::Quantizer;
use super::sign::{Decoder, Encoder, Sign};
use crate::params::EncodeParams;

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Drive;

impl Quantizer for Drive {
    type Encoder = Encoder;
    type Decoder = Decoder;
    // The largest magnitude: NaN is above infinity, and infinity above every number.
    type First = Max;
    // The sums of aligned magnitudes, 37 bits of a span, and of their squares, 61 bits.
    type Second = (Sum, Sum);
    // The same of a tensor, 55 and 79 bits. The halves of the second are summed apart.
    type Total = (Sum, (Sum, Sum));
    // The largest magnitude, the two sums in two words each, zeros.
    type Partial = [u32; 8];
    const SCALARS: usize = Sign::SCALARS;
    // A zero adds nothing.
    const PADS_WITH_AN_ELEMENT: bool = false;

    #[inline(always)]
    fn first(value: u32) -> Max {
        Sign::first(value)
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
    unsafe fn second(value: u32, to: u32) -> (Sum, Sum) {
        // Of a poisoned bucket's values an aligner would make no integers, and its sums mean nothing.
        let kept = if to < alignment(INF_BITS) { value & MAGNITUDE } else { 0 };
        // SAFETY: the magnitude is finite, and its exponent at most the alignment, which is the largest magnitude's.
        let aligned = unsafe { Aligner::new(to).aligned(f32::from_bits(kept)) };
        (Sum(u64::from(aligned)), Sum(square(aligned)))
    }

    #[inline(always)]
    fn partial(Max(largest): Max, (Sum(sum), Sum(squares)): (Sum, Sum), _elements: u32) -> [u32; 8] {
        [largest, low(sum), high(sum), low(squares), high(squares), 0, 0, 0]
    }

    #[inline(always)]
    fn statistic(_: &EncodeParams, [largest, a, b, c, d, ..]: [u32; 8]) -> [u32; 2] {
        let (sum, squares) = (join([a, b]), join([c, d]));
        // Below 2^64, since the quotient of the sums is below 2^24.
        let by = excess(sum);
        let dividend = if by < 8 { squares << (8 - by) } else { squares >> (by - 8) };
        scale(largest, dividend, sum)
    }

    #[inline(always)]
    fn first_of([largest, ..]: [u32; 8]) -> Max {
        Max(largest)
    }

    #[inline(always)]
    fn second_of([largest, a, b, c, d, ..]: [u32; 8], to: u32) -> (Sum, (Sum, Sum)) {
        // Shifts by 63 and by twice 31 leave nothing of a span's sums, as longer ones would.
        let by = to.wrapping_sub(alignment(largest));
        let squares = join([c, d]) >> (2 * by.min(31));
        (Sum(join([a, b]) >> by.min(63)), (Sum(u64::from(low(squares))), Sum(u64::from(high(squares)))))
    }

    #[inline(always)]
    fn whole(_: &EncodeParams, Max(largest): Max, (Sum(sum), (Sum(below), Sum(above))): (Sum, (Sum, Sum))) -> [u32; 2] {
        let squares = u128::from(below) + (u128::from(above) << 32);
        scale(largest, ((squares << 8) >> excess(sum)) as u64, sum)
    }

    #[inline(always)]
    fn encoder(p: &EncodeParams, statistic: [u32; 2]) -> Encoder {
        Sign::encoder(p, statistic)
    }

    #[inline(always)]
    fn plain(encoder: &Encoder) -> Option<Encoder> {
        Sign::plain(encoder)
    }

    #[inline(always)]
    fn holds_not_finite(encoder: &Encoder) -> bool {
        Sign::holds_not_finite(encoder)
    }

    #[inline(always)]
    fn wire(encoder: &Encoder) -> [f32; 2] {
        Sign::wire(encoder)
    }

    #[inline(always)]
    unsafe fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Encoder, value: u32, dither: u32) -> u32 {
        // SAFETY: the caller's promise is passed on.
        unsafe { Sign::code::<WIDE>(p, encoder, value, dither) }
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], levels: u32) -> Decoder {
        Sign::decoder(wire, levels)
    }

    #[inline(always)]
    fn plain_decoder(decoder: &Decoder) -> Option<Decoder> {
        Sign::plain_decoder(decoder)
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        Sign::poisoned(decoder)
    }

    #[inline(always)]
    fn value(decoder: &Decoder, bits: u32, levels: u32, code: u32) -> f32 {
        Sign::value(decoder, bits, levels, code)
    }
}

/// Bits of a sum of magnitudes beyond 31: 24 at most of what kernels write.
#[inline(always)]
fn excess(sum: u64) -> u32 {
    33u32.saturating_sub(sum.leading_zeros()).min(31)
}

/// The statistic: the quotient of the sums in units of 2^-8, cut to an integer, and then rounded. The dividend comes
/// times 2^8 and both without the sum's lowest bits beyond 31, so that the quotient is off by less than 6 units. That
/// of equal magnitudes is rounded to their magnitude.
#[inline(always)]
fn scale(largest: u32, dividend: u64, sum: u64) -> [u32; 2] {
    let scale = mean(dividend, (sum >> excess(sum)) as u32, alignment(largest)).to_bits();
    [if largest >= INF_BITS { NAN_BITS } else { scale }, 0]
}
