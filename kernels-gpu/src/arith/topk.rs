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
}
