//! Dynamic tree quantization (Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016, section
//! 2.2): a sign, and seven bits of which the zeros on top say the decade below the bucket's largest magnitude, and the
//! bits after the first one the place in it.
//!
//! Levels are 0, 10^-6 and the ends of the equal parts of each decade above: 2 of the lowest, 64 of the highest, which
//! ends in 1. So they rise with the code, and the largest magnitude is one of them. Between two levels the place is a
//! straight line of the magnitude, one per decade; magnitudes are counted in halves of 10^-6, so that levels are
//! integers.

#[cfg(not(target_arch = "nvptx64"))]
use super::float::pow2;
use super::float::{MAGNITUDE, SIGN};
use super::fold::Max;
use super::qsgd::{Decoder, Encoder, Qsgd};
use super::quantizer::Quantizer;
#[cfg(not(target_arch = "nvptx64"))]
use super::round::level_by_draw;
use super::round::level_of_31_bits;
use crate::params::EncodeParams;

/// The quantizer.
#[derive(Clone, Copy, Debug)]
pub struct Tree;

/// The highest level: the largest magnitude, in halves of its millionth part.
const TOP: u32 = 2_000_000;

/// Where the decades end, in the same units, the lowest first.
const ENDS: [u32; 6] = [2, 20, 200, 2_000, 20_000, 200_000];
/// The codes of those ends.
const CODES: [u32; 6] = [1, 3, 7, 15, 31, 63];
/// The distance of two levels below the first end and above each.
const STEPS: [u32; 7] = [2, 9, 45, 225, 1_125, 5_625, 28_125];

/// The line of a decade: a code is the magnitude times the first, plus the second.
#[inline(always)]
const fn line(decade: usize) -> [f32; 2] {
    let step = STEPS[decade];
    if decade == 0 {
        return [1.0 / step as f32, 0.0];
    }
    let (end, code) = (ENDS[decade - 1], CODES[decade - 1]);
    // Exact: of an integer below 2^24 by another, rounded once.
    [1.0 / step as f32, (code * step - end) as f32 / step as f32]
}

/// The place of a magnitude between levels, as the code of the level below it and a fraction.
#[inline(always)]
fn place(magnitude: f32) -> f32 {
    let mut at = line(0);
    // Selected and not looked up: constants, and no branches, on a CPU and a GPU.
    at = if magnitude < ENDS[0] as f32 { at } else { line(1) };
    at = if magnitude < ENDS[1] as f32 { at } else { line(2) };
    at = if magnitude < ENDS[2] as f32 { at } else { line(3) };
    at = if magnitude < ENDS[3] as f32 { at } else { line(4) };
    at = if magnitude < ENDS[4] as f32 { at } else { line(5) };
    at = if magnitude < ENDS[5] as f32 { at } else { line(6) };
    magnitude * at[0] + at[1]
}

/// The place of the highest bit of an integer below 2^24, 0 for none.
#[inline(always)]
fn exponent(code: u32) -> u32 {
    if cfg!(target_arch = "nvptx64") {
        31 - (code | 1).leading_zeros()
    } else {
        // As the exponent of a float: most CPUs have no vector instruction that counts zeros.
        ((code | 1) as i32 as f32).to_bits() / (1 << 23) - 127
    }
}

/// The level of a code below 2^7.
#[inline(always)]
fn level(code: u32) -> u32 {
    // With 2^e the code's highest bit, the decade ends in 2 10^(e-1) below, and has steps of 9 5^(e-1) above.
    let e = exponent(code);
    let five = |bit: u32, power: u32| if e.wrapping_sub(1) & bit == 0 { 1 } else { power };
    let above = five(1, 5) * five(2, 25) * five(4, 625) * (9 * code + 9 - (8 << e));
    if code < 2 { 2 * code } else { above }
}

impl Quantizer for Tree {
    type Encoder = Encoder;
    type Decoder = Decoder;
    type First = Max;
    type Second = ();
    type Total = ();
    type Partial = [u32; 4];
    const SCALARS: usize = 1;
    const PADS_WITH_AN_ELEMENT: bool = false;

    #[inline(always)]
    fn first(value: u32) -> Max {
        Qsgd::first(value)
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
    fn statistic(p: &EncodeParams, partial: [u32; 4]) -> [u32; 2] {
        Qsgd::statistic(p, partial)
    }

    #[inline(always)]
    fn first_of(partial: [u32; 4]) -> Max {
        Qsgd::first_of(partial)
    }

    #[inline(always)]
    fn second_of(_partial: [u32; 4], _context: u32) {}

    #[inline(always)]
    fn whole(p: &EncodeParams, Max(largest): Max, (): ()) -> [u32; 2] {
        Self::statistic(p, [largest, 0, 0, 0])
    }

    #[inline(always)]
    fn encoder(p: &EncodeParams, [largest, _]: [u32; 2]) -> Encoder {
        Encoder::new(f32::from_bits(largest), TOP, 0, p.beta())
    }

    #[inline(always)]
    fn plain(encoder: &Encoder) -> Option<Encoder> {
        Qsgd::plain(encoder)
    }

    #[inline(always)]
    fn holds_not_finite(encoder: &Encoder) -> bool {
        Qsgd::holds_not_finite(encoder)
    }

    #[inline(always)]
    fn wire(encoder: &Encoder) -> [f32; 2] {
        Qsgd::wire(encoder)
    }

    #[inline(always)]
    unsafe fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Encoder, value: u32, dither: u32) -> u32 {
        let magnitude = f32::from_bits(value & (encoder.keep & MAGNITUDE)) * encoder.lift * encoder.inverse;
        // A power of two, which changes no bit of the place.
        let scaled = place(magnitude) * (1 << p.fraction) as f32;
        // SAFETY: the magnitude is at most TOP (1 + 2^-22), so the place is less than 128, of 24 bits of fraction; a
        // poisoned bucket's magnitudes were cleared.
        let level = unsafe { level_of_31_bits(scaled, dither, p.fraction, p.levels) };
        level | value >> (32 - p.bits) & (encoder.keep & 1 << (p.bits - 1))
    }

    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    unsafe fn code_by_draw<const BITS: u32>(p: &EncodeParams, encoder: &Encoder, value: u32, draw: u32) -> u32 {
        let magnitude = f32::from_bits(value & MAGNITUDE) * encoder.inverse;
        // SAFETY: as above.
        let level = unsafe { level_by_draw::<true>(place(magnitude) * pow2(16), draw, p.levels) };
        level | value >> (32 - BITS) & (1 << (BITS - 1))
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], _levels: u32) -> Decoder {
        Decoder::new(wire[0], TOP)
    }

    #[inline(always)]
    fn plain_decoder(decoder: &Decoder) -> Option<Decoder> {
        Qsgd::plain_decoder(decoder)
    }

    #[inline(always)]
    fn plain_handed_on(decoder: &Decoder, take: impl FnMut(u32) -> u32) -> Decoder {
        Qsgd::plain_handed_on(decoder, take)
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        Qsgd::poisoned(decoder)
    }

    #[inline(always)]
    fn value(decoder: &Decoder, bits: u32, _levels: u32, code: u32) -> f32 {
        let sign = code << (32 - bits) & SIGN;
        let level = level(code & 0x7f);
        // The largest magnitude comes back as it was, where the step's own rounding would miss it.
        let lifted = if level == TOP { decoder.top } else { decoder.step * (level as i32 as f32) };
        f32::from_bits(((lifted * decoder.lower).to_bits() | sign) & decoder.keep | decoder.fill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_the_decades_in_equal_parts() {
        let levels: [u32; 128] = core::array::from_fn(|code| level(code as u32));
        assert_eq!(levels[..8], [0, 2, 11, 20, 65, 110, 155, 200]);
        assert_eq!(levels[127], TOP);
        for (end, code) in ENDS.into_iter().zip(CODES) {
            assert_eq!(levels[code as usize], end);
        }
        assert!(levels.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_level_has_its_own_place_and_halves_lie_between() {
        for code in 0..127 {
            let (low, high) = (level(code) as f32, level(code + 1) as f32);
            let near = |got: f32, place: f32| (got - place).abs() <= place * 2f32.powi(-23);
            assert!(near(place(low), code as f32), "{code}: {}", place(low));
            assert!(near(place((low + high) / 2.0), code as f32 + 0.5), "{code}");
        }
    }
}
