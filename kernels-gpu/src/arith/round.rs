//! Rounding to a level, stochastically or to nearest, in fixed point.
//!
//! A scaled magnitude `a` in `[0, levels]` is held as `t = floor(a * 2^fraction)`, and its level is
//! `(t + dither) >> fraction`. With a dither uniform over `[0, 2^fraction)` the level is `floor(a)` or one more,
//! and its expectation is `a`. The addition is one of integers, so nothing is rounded twice: this is what makes
//! the rounding unbiased where adding a float to `a` before flooring would not be.

/// How many fractional bits a level count leaves in 31 bits: the fixed-point value never reaches the sign bit.
#[inline(always)]
pub const fn fraction_bits(levels: u32) -> u32 {
    levels.leading_zeros() - 1
}

/// The dither of a 16-bit draw: its bits on top, then a half of the draw's own step, so that the probability of
/// rounding up is the fraction rounded to the nearest 2^-16, and the bias that is left is at most 2^-17 of a level.
#[inline(always)]
pub fn dither16(draw: u32, fraction: u32) -> u32 {
    draw << (fraction - 16) & 0xffff << (fraction - 16) | 1 << fraction >> 17
}

/// The dither of a 32-bit draw: no bias is left but that of binary32 itself.
#[inline(always)]
pub fn dither32(draw: u32, fraction: u32) -> u32 {
    draw >> (32 - fraction)
}

/// The dither that rounds to nearest, ties up.
#[inline(always)]
pub fn dither_nearest(fraction: u32) -> u32 {
    1 << (fraction - 1)
}

/// The level of a scaled magnitude `a * 2^fraction`, at most `levels`.
///
/// # Safety
/// `scaled` is at least 0 and less than 2^31.
#[inline(always)]
pub unsafe fn level(scaled: f32, dither: u32, fraction: u32, levels: u32) -> u32 {
    // SAFETY: the caller keeps `scaled` in the range of i32. The conversion that checks would cost the CPU three
    // vector instructions an element.
    let fixed = unsafe { scaled.to_int_unchecked::<i32>() } as u32;
    // The product of a value and its bucket's reciprocal may pass the top level by a rounding error.
    (fixed.min(levels << fraction) + dither) >> fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_level_and_its_dither_stay_in_31_bits() {
        for levels in 1..=32767u32 {
            let f = fraction_bits(levels);
            assert!(f >= 16, "a 16-bit draw must fit");
            let top = (levels as u64) << f;
            assert!(top + (1 << f) <= 1 << 31, "levels {levels}");
            assert!(top >= 1 << 30, "a reciprocal must stay normal; levels {levels}");
        }
    }

    #[test]
    fn counting_all_draws_gives_the_fraction_to_its_nearest_65536th() {
        for (levels, a) in [(7u32, 3.3f64), (1, 0.00002), (127, 126.9999), (32767, 12345.678), (255, 0.5)] {
            let f = fraction_bits(levels);
            let scaled = (a * 2f64.powi(f as i32)) as f32;
            let exact = (scaled as f64).floor() / 2f64.powi(f as i32);
            // SAFETY: `scaled` is at most levels * 2^fraction, which is below 2^31.
            let total: u64 = (0..65536).map(|u| u64::from(unsafe { level(scaled, dither16(u, f), f, levels) })).sum();
            let bias = total as f64 / 65536.0 - exact;
            assert!(bias.abs() <= 2f64.powi(-17), "levels {levels}, a {a}: bias {bias}");
        }
    }
}
