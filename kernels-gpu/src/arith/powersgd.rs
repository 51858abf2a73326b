//! PowerSGD: the seeded first factor, an entry of the approximation, what of a sum is kept, and when columns are
//! dependent.
//!
//! Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed
//! optimization", NeurIPS 2019, algorithms 1 and 2.

use super::philox::{Stream, block};

/// The largest rank.
pub const MOST_RANK: u32 = 32;

/// Squared sine below which a column of a factor counts as a combination of the columns before it, and becomes zeros.
///
/// It is (2^-22)^2: a product of binary32 rounds its entries to 2^-24, so what is left of a dependent column is of that
/// size.
pub const DEPENDENT: f64 = 1.0 / (1u64 << 44) as f64;

/// Squared sine from which one sweep of the Cholesky factorisation leaves columns orthonormal to binary32.
///
/// A sweep in binary64 leaves a departure of about 2^-53 over the squared sine; 2^-26 keeps it below 2^-26.
pub const ONE_SWEEP: f64 = 1.0 / (1u64 << 26) as f64;

/// Magnitude from which an entry of a reduced factor is too large to be multiplied: it counts as one that is not
/// finite.
///
/// The other factor's columns are orthonormal, so an entry of the product is below 32 times this, 2^125: whatever
/// passes gives a product that is finite.
pub const TOO_LARGE: f32 = (1u128 << 120) as f32;

/// Whether an entry of a reduced factor can be multiplied: it is finite, and not [`TOO_LARGE`].
#[inline(always)]
pub fn usable(entry: f32) -> bool {
    // Of NaN this is false.
    entry.abs() < TOO_LARGE
}

/// Entry `row` of column `column` of a seeded factor: the sum of four draws of 16 bits about its mean, from -2 to 2.
///
/// Nearly normal, and exact in binary32: the draw is an integer. PowerSGD asks of its first factor only that no
/// direction of the gradient is orthogonal to it.
#[inline(always)]
pub fn seeded(stream: Stream, column: u32, row: u32) -> f32 {
    // Two entries a block; a factor has fewer than 2^31 rows, and columns lie in the key beside the run's seed.
    let stream = Stream { key: [stream.key[0], stream.key[1] ^ (column + 1).wrapping_mul(0x9E37_79B9)], ..stream };
    let words = block(stream, row >> 1);
    let pair = if row & 1 == 0 { [words[0], words[1]] } else { [words[2], words[3]] };
    let sum = (pair[0] & 0xffff) + (pair[0] >> 16) + (pair[1] & 0xffff) + (pair[1] >> 16);
    (sum as i32 - 2 * 0xffff) as f32 * (1.0 / 65536.0)
}

/// One more term of an entry of P Q^T; the first term is added to nothing.
#[inline(always)]
pub fn term(sum: f32, left: f32, right: f32) -> f32 {
    sum + left * right
}

/// The residual after gradient + residual: the sum; if that is not finite, the old residual; if neither is, zero. So one
/// NaN does not stay for ever.
#[inline(always)]
pub fn kept(sum: f32, residual: f32) -> f32 {
    if sum.is_finite() {
        sum
    } else if residual.is_finite() {
        residual
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_entries_are_centred_and_differ() {
        let stream = Stream { key: [1, 2], tensor: 3, step: [4, 0] };
        let (mut sum, mut square) = (0.0, 0.0);
        for row in 0..10_000 {
            let entry = seeded(stream, 0, row) as f64;
            assert!(entry.abs() <= 2.0);
            (sum, square) = (sum + entry, square + entry * entry);
        }
        // The variance of four uniforms is 1/3; its mean over 10000 has a deviation of 0.006, and 5 of those are
        // allowed.
        assert!((sum / 1e4).abs() < 0.03, "{sum}");
        assert!((square / 1e4 - 1.0 / 3.0).abs() < 0.03, "{square}");
        let same = (0..1000).filter(|row| seeded(stream, 0, *row) == seeded(stream, 1, *row)).count();
        assert!(same < 20, "{same}");
    }

    #[test]
    fn what_is_too_large_is_not_usable() {
        assert!([0.0, -1.0, TOO_LARGE / 2.0, -TOO_LARGE * (1.0 - f32::EPSILON)].into_iter().all(usable));
        assert!(![TOO_LARGE, -TOO_LARGE, f32::MAX, f32::INFINITY, f32::NAN].into_iter().any(usable));
        assert!((TOO_LARGE * MOST_RANK as f32).is_finite());
    }

    #[test]
    fn what_is_not_finite_is_not_kept() {
        assert_eq!(kept(3.0, 1.0), 3.0);
        assert_eq!(kept(f32::NAN, 1.0), 1.0);
        assert_eq!(kept(f32::INFINITY, f32::NEG_INFINITY), 0.0);
    }
}
