//! Top-k: the order of entries by magnitude.
//!
//! Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017, section 3; ties and
//! NaN as below, so that the kept set is one and the same everywhere.

use super::float::{INF_BITS, MAGNITUDE};

/// The key of every NaN: above infinity, which is above every number.
pub const NAN_KEY: u32 = INF_BITS + 1;

/// The integer that orders entries: a larger magnitude has a larger key, and equal keys are equal magnitudes. Of
/// entries with one key, the one with the lower index comes first.
#[inline(always)]
pub fn key(bits: u32) -> u32 {
    let magnitude = bits & MAGNITUDE;
    if magnitude < NAN_KEY { magnitude } else { NAN_KEY }
}

/// The magnitude of a half: its own key, but for NaN.
pub const HALF_MAGNITUDE: u32 = 0x7fff;
/// The key of every NaN of binary16.
pub const F16_NAN_KEY: u32 = 0x7c01;
/// The key of every NaN of bfloat16.
pub const BF16_NAN_KEY: u32 = 0x7f81;

/// What is above every key of a half, of either type.
pub const NO_HALF_KEY: u32 = HALF_MAGNITUDE;

/// What is above every key.
pub const NO_KEY: u32 = NAN_KEY + 1;

/// How far keys are shifted to be counted, so that `rounds` of counting, 1 to 3, tell which of `span` keys it is: the
/// bits that are left are shared out evenly, the first round having the most.
#[inline(always)]
pub fn digit_shift(span: u32, rounds: u32) -> u32 {
    let bits = 32 - (span - 1).leading_zeros();
    // By constants: a division is a subroutine to a GPU.
    let digit = match rounds {
        1 => bits,
        2 => bits.div_ceil(2),
        _ => bits.div_ceil(3),
    };
    bits - digit
}

/// How many rounds of at most 2048 bins tell one of so many keys.
#[inline(always)]
pub fn rounds_of(span: u32) -> u32 {
    if span > 1 << 22 { 3 } else { 2 }
}

/// Elements that are sampled together: a sector of f32.
pub const TOGETHER: u32 = 8;

/// Where a sector of the sample begins, of `1 << sectors_log2` in a segment of so many elements: at a place in an equal
/// part of the segment that differs from part to part and from workgroup to workgroup.
#[inline(always)]
pub fn sampled(sector: u32, sectors_log2: u32, elements: u32, workgroup: u32) -> u32 {
    let part = elements >> sectors_log2;
    let begin = ((sector as u64 * elements as u64) >> sectors_log2) as u32;
    let mixed = (sector * 32 + workgroup + 1).wrapping_mul(0x9E37_79B1);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x85EB_CA6B);
    let room = part.saturating_sub(TOGETHER);
    begin + ((mixed as u64 * room as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_magnitudes() {
        let rising = [0.0f32, 1e-45, 1e-38, 0.5, 0.75, f32::MAX, f32::INFINITY, f32::NAN];
        for pair in rising.windows(2) {
            assert!(key(pair[0].to_bits()) < key((-pair[1]).to_bits()), "{pair:?}");
        }
        assert_eq!(key(0x8000_0000), 0);
        assert_eq!(key(0x7f80_0001), key(0xffff_ffff), "all NaN are one");
    }

    #[test]
    fn rounds_of_digits_tell_every_key() {
        for rounds in [2, 3] {
            for span in [1, 2, 3, 1000, 65_536, 65_537, 1 << 20, NO_KEY] {
                let mut left = span;
                for round in 0..rounds {
                    let shift = digit_shift(left, rounds - round);
                    assert!((left - 1) >> shift < 1 << (31u32.div_ceil(rounds)), "{span}: bins");
                    left = left.min(1 << shift);
                }
                assert_eq!(left, 1, "{span} in {rounds}");
            }
        }
    }

    #[test]
    fn samples_lie_in_their_parts() {
        for elements in [8193u32, 100_000, (1 << 31) - 1, 1 << 31] {
            for workgroup in [0, 1, 31] {
                for sector in 0..1024 {
                    let (part, at) = (elements >> 10, sampled(sector, 10, elements, workgroup));
                    let begin = ((u64::from(sector) * u64::from(elements)) >> 10) as u32;
                    assert!(at >= begin && at - begin <= part.saturating_sub(TOGETHER), "{elements} {sector}");
                }
            }
        }
    }
}
