//! The L2 norm of a bucket, in integers.
//!
//! Summing squares in floats gives an answer that depends on the order, so on the launch shape. Here every
//! magnitude of a bucket is first aligned to the exponent of the largest, as a 24-bit integer; squares of those are
//! summed in 64 bits, which is associative and exact, so the norm does not depend on who adds first. What is lost is
//! what alignment drops: less than one unit of 2^-23 of the largest magnitude per element, which moves the norm of
//! a bucket of B elements by a relative sqrt(B) * 2^-23 at most.

use super::float::pow2;

/// The exponent that a bucket with this largest magnitude is aligned to.
#[inline(always)]
pub fn alignment(largest_bits: u32) -> u32 {
    (largest_bits >> 23).max(1)
}

/// A magnitude as a multiple of one unit in the last place of the alignment's binade, rounded down.
#[inline(always)]
pub fn aligned(magnitude_bits: u32, alignment: u32) -> u32 {
    let exponent = magnitude_bits >> 23;
    let implied = if exponent == 0 { 0 } else { 1 << 23 };
    let mantissa = magnitude_bits & 0x007f_ffff | implied;
    mantissa >> (alignment.wrapping_sub(exponent.max(1))).min(31)
}

/// [`aligned`] for the magnitudes of one bucket, by multiplications: what a GPU does in a third of the instructions,
/// and a CPU in half of them.
#[derive(Clone, Copy, Debug)]
pub struct Aligner {
    /// Their product is one unit's reciprocal, which itself may be too large for a float.
    scale: [f32; 2],
}

impl Aligner {
    /// For an alignment of at most 255.
    #[inline(always)]
    pub fn new(alignment: u32) -> Self {
        let exponent = 150 - alignment as i32;
        Self { scale: [pow2(exponent / 2), pow2(exponent - exponent / 2)] }
    }

    /// The same integer as [`aligned`] gives. Scaling by powers of two is exact but where it leaves the normal range,
    /// and there the result is far below 1 and is cut off to 0 either way.
    ///
    /// # Safety
    /// The magnitude is finite and its exponent at most the alignment.
    #[inline(always)]
    pub unsafe fn aligned(&self, magnitude: f32) -> u32 {
        let scaled = magnitude * self.scale[0] * self.scale[1];
        // SAFETY: a magnitude is below 2^24 units of its own alignment, and of a higher one.
        unsafe { scaled.to_int_unchecked::<i32>() as u32 }
    }
}

/// As [`aligned`] in units of 2^-8 of its own, so that all 32 bits are used.
#[inline(always)]
pub fn aligned_finely(magnitude_bits: u32, alignment: u32) -> u32 {
    let exponent = magnitude_bits >> 23;
    let implied = if exponent == 0 { 0 } else { 1 << 23 };
    let mantissa = magnitude_bits & 0x007f_ffff | implied;
    (mantissa << 8).checked_shr(alignment.wrapping_sub(exponent.max(1))).unwrap_or(0)
}

/// The square of [`aligned`], by an [`Aligner`].
///
/// Where the alignment is that of a NaN or an infinity the square means nothing.
///
/// # Safety
/// The magnitude is at most the largest, whose alignment it is. So safe code cannot call it:
///
/// ```compile_fail,E0133
/// gradwire_kernels::arith::norm::aligned_square(0x7f00_0000, 1);
/// ```
#[inline(always)]
pub unsafe fn aligned_square(magnitude_bits: u32, to: u32) -> u64 {
    // Of a poisoned bucket's values an aligner would make no integers.
    let kept = if to < alignment(super::float::INF_BITS) { magnitude_bits } else { 0 };
    // SAFETY: the magnitude is finite, since the largest is, and its exponent is at most the alignment.
    square(unsafe { Aligner::new(to).aligned(f32::from_bits(kept)) })
}

/// The square of an aligned magnitude: below 2^48, so that 2^13 of them fit 61 bits.
#[inline(always)]
pub fn square(aligned: u32) -> u64 {
    aligned as u64 * aligned as u64
}

/// The largest integer whose square is at most `value`, for values below 2^62.
///
/// PTX takes a root of binary64 and a correction, and a CPU the library's, which gives the same integer.
#[inline(always)]
pub fn isqrt(value: u64) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    return crate::integer::machine::isqrt(value);
    #[cfg(not(target_arch = "nvptx64"))]
    return value.isqrt() as u32;
}

/// The norm from the sum of aligned squares: sqrt(sum) * 2^halvings units of the alignment's binade.
///
/// Never below the largest magnitude, because the sum holds its exact square and every step is monotone.
/// Where it is above the largest finite number it is that number: still a bound of every magnitude, so the
/// quantizer stays unbiased.
#[inline(always)]
pub fn from_sum(sum: u64, halvings: u32, alignment: u32) -> f32 {
    let root = isqrt(sum) as f32;
    let exponent = alignment as i32 - 150 + halvings as i32;
    let half = exponent / 2;
    (root * pow2(half) * pow2(exponent - half)).min(f32::MAX)
}

/// So many standard deviations about zero, from the sum of aligned squares of so many elements.
///
/// The sum's root is divided by that of the elements, which is held in steps of 2^-15, before anything is scaled: so
/// nothing passes the range of binary32 that the result does not pass.
#[inline(always)]
pub fn deviations(sum: u64, halvings: u32, alignment: u32, elements: u64, factor: f32) -> f32 {
    let root = isqrt(sum) as f32 / isqrt(elements.max(1) << 30) as f32 * factor;
    let exponent = alignment as i32 - 135 + halvings as i32;
    let half = exponent / 2;
    (root * pow2(half) * pow2(exponent - half)).min(f32::MAX)
}

/// A sum of any size as one below 2^62 and the number of times its root was halved.
#[inline(always)]
pub fn reduce(sum: u128) -> (u64, u32) {
    let mut sum = sum;
    let mut halvings = 0;
    while sum >> 62 != 0 {
        sum >>= 2;
        halvings += 1;
    }
    (sum as u64, halvings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norm(values: &[f32]) -> f32 {
        let largest = values.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap();
        let a = alignment(largest);
        let sum = values.iter().map(|v| square(aligned(v.to_bits() & 0x7fff_ffff, a))).sum();
        from_sum(sum, 0, a)
    }

    #[test]
    fn a_root_is_the_largest_whose_square_is_no_larger() {
        let mut x = 0x9E37_79B9_7F4A_7C15u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            for v in [x >> 2, x >> 20, x >> 40, (x >> 34) * (x >> 34)] {
                let root = u64::from(isqrt(v));
                assert!(root * root <= v && v < (root + 1) * (root + 1), "{v}: {root}");
            }
        }
        assert_eq!(isqrt(0), 0);
        assert_eq!(isqrt((1 << 62) - 1), (1 << 31) - 1);
    }

    #[test]
    fn an_aligner_agrees_with_shifts() {
        let mut x = 0x2545_f491u32;
        for _ in 0..200_000 {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            let magnitude = x & 0x7fff_ffff;
            for a in [alignment(magnitude), alignment(magnitude) + 1, x >> 9 & 255, 1, 24, 150, 254] {
                if magnitude < 0x7f80_0000 && a >= alignment(magnitude) && a < 255 {
                    // SAFETY: the magnitude is finite, and its exponent at most `a`.
                    let got = unsafe { Aligner::new(a).aligned(f32::from_bits(magnitude)) };
                    assert_eq!(got, aligned(magnitude, a), "{magnitude:#x} at {a}");
                }
            }
        }
        for magnitude in [0, 1, 2, 0x007f_ffff, 0x0080_0000, 0x7f7f_ffff] {
            for a in alignment(magnitude)..255 {
                // SAFETY: as above.
                let got = unsafe { Aligner::new(a).aligned(f32::from_bits(magnitude)) };
                assert_eq!(got, aligned(magnitude, a), "{magnitude:#x} at {a}");
            }
        }
    }

    #[test]
    fn known_triangles_are_exact_at_every_scale() {
        for exponent in [-147, -130, -126, -60, 0, 60, 124] {
            let unit = 2f64.powi(exponent) as f32;
            assert_eq!(norm(&[3.0 * unit, -4.0 * unit]), 5.0 * unit, "2^{exponent}");
        }
    }

    #[test]
    fn a_norm_too_large_for_binary32_is_the_largest_finite_number() {
        assert_eq!(norm(&[f32::MAX; 32]), f32::MAX);
        assert_eq!(norm(&[f32::MAX]), f32::MAX);
    }

    #[test]
    fn a_large_sum_is_reduced_to_62_bits() {
        assert_eq!(reduce(5), (5, 0));
        assert_eq!(reduce(1 << 62), (1 << 60, 1));
        assert_eq!(reduce(1 << 79), (1 << 61, 9));
    }
}
