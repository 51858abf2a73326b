//! The randomised Hadamard transform: y = H D x / sqrt(B) of each block of B elements, D signs drawn from the seed.
//!
//! Source: Vargaftik et al., "DRIVE: One-bit distributed mean estimation", NeurIPS 2021, section 6; the same authors,
//! "EDEN", ICML 2022. Both rotate a whole vector; blocks bound the work per element, and a block fits a GPU's
//! workgroup.
//!
//! Signs come first, then the butterflies of distance 1, 2, 4 and so on, each sum one rounded operation, then one
//! multiplication by [`scale`]. The inverse has the same butterflies and the same multiplication, and the signs last.

use super::float::{SIGN, canonical};
use super::philox::{Stream, block};

/// Base-2 logarithm of a row: the smallest block, and what a tensor is padded to.
pub const ROW_LOG2: u32 = 5;

/// Base-2 logarithm of the largest block.
pub const MOST_LOG2: u32 = 13;

/// What the key of the signs differs in from the run's: no draw of an encode has this key.
pub const SIGN_KEY: u32 = 0x243f_6a88;

/// The stream of the signs, of the stream of worker 0.
#[inline(always)]
pub fn sign_stream(stream: Stream) -> Stream {
    Stream { key: [stream.key[0], stream.key[1] ^ SIGN_KEY], ..stream }
}

/// The signs of the four rows of a call: bit `i` of word `r` is set where element `i` of row `4 call + r` changes its
/// sign.
#[inline(always)]
pub fn signs(stream: Stream, call: u32) -> [u32; 4] {
    block(stream, call)
}

/// The base-2 logarithm of the block that has a row, of `rows` rows in all: the largest block that still fits.
///
/// What whole blocks leave of a tensor falls into blocks of the powers of two that add up to it, the largest first, so
/// that each begins at a multiple of its own length and no more than 31 zeros are added to a tensor.
#[inline(always)]
pub fn block_log2(row: u32, rows: u32, most_log2: u32) -> u32 {
    let fits = ROW_LOG2 + 31 - ((row ^ rows) | 1).leading_zeros();
    if fits < most_log2 { fits } else { most_log2 }
}

/// 1 / sqrt(2^log2), rounded to binary32: exact where `log2` is even.
#[inline(always)]
pub fn scale(log2: u32) -> f32 {
    // The fraction is that of sqrt(2) = 1.41421354.
    f32::from_bits(((127 - ((log2 + 1) >> 1)) << 23) | ((log2 & 1) * 0x0035_04f3))
}

/// The value with its sign changed where the lowest bit of `bit` is set.
#[inline(always)]
pub fn flip(value: f32, bit: u32) -> f32 {
    f32::from_bits(value.to_bits() ^ ((bit << 31) & SIGN))
}

/// A transformed value: scaled, and the one NaN if it is any.
#[inline(always)]
pub fn scaled(value: f32, scale: f32) -> f32 {
    canonical(value * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_the_nearest_to_the_root() {
        for log2 in 0..=MOST_LOG2 {
            let exact = (1.0 / f64::from(1u32 << log2)).sqrt();
            assert_eq!(scale(log2), exact as f32, "{log2}");
            assert_eq!(f64::from(scale(log2)) == exact, log2 % 2 == 0);
        }
    }

    #[test]
    fn blocks_cover_the_rows_and_each_begins_at_a_multiple_of_its_length() {
        for rows in 1..700 {
            for most in ROW_LOG2..=MOST_LOG2 {
                let mut row = 0;
                while row < rows {
                    let log2 = block_log2(row, rows, most);
                    assert!((ROW_LOG2..=most).contains(&log2));
                    let count = 1 << (log2 - ROW_LOG2);
                    assert!(row % count == 0 && row + count <= rows, "{row} of {rows}");
                    // A larger one would not fit.
                    assert!(log2 == most || rows - row < 2 * count, "{row} of {rows}");
                    assert!((row..row + count).all(|other| block_log2(other, rows, most) == log2));
                    row += count;
                }
            }
        }
    }

    #[test]
    fn signs_have_a_key_that_no_seeded_column_of_powersgd_has() {
        for column in 0..=super::super::powersgd::MOST_RANK {
            assert_ne!(column.wrapping_mul(0x9E37_79B9), SIGN_KEY);
        }
        let stream = Stream { key: [1, 2], tensor: 3, step: [4, 5] };
        assert_ne!(signs(sign_stream(stream), 0), block(stream, 0));
    }

    #[test]
    fn a_sign_is_the_lowest_bit() {
        assert_eq!(flip(0.0, 1).to_bits(), SIGN);
        assert_eq!([flip(1.5, 2), flip(1.5, 3)], [1.5, -1.5]);
        assert_eq!(scaled(f32::from_bits(0xffc0_0001), 1.0).to_bits(), super::super::float::NAN_BITS);
    }
}
