//! Rounding to a level, stochastically or to nearest, in fixed point.
//!
//! A scaled magnitude `a` in `[0, levels]` is held as `t = floor(a * 2^fraction)`, and its level is
//! `(t + dither) >> fraction`. With a dither uniform over `[0, 2^fraction)` the level is `floor(a)` or one more,
//! and its expectation is `a`. The addition is one of integers, so nothing is rounded twice: this is what makes
//! the rounding unbiased where adding a float to `a` before flooring would not be.

/// How many fractional bits a level has in fixed point: as many as 31 bits hold beside the level, and 17 at least.
///
/// Seventeen are one more than a narrow draw has, so that half of the draw's own step can be told from nothing. With
/// 16384 levels or more the fixed-point value takes all 32 bits.
#[inline(always)]
pub const fn fraction_bits(levels: u32) -> u32 {
    let rest = levels.leading_zeros() - 1;
    if rest < 17 { 17 } else { rest }
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

/// Level counts from this one on take a fixed-point value of 32 bits ([`level`]); below it 31 do
/// ([`level_of_31_bits`]).
pub const WIDE_LEVELS: u32 = 1 << 14;

/// The level of a scaled magnitude `a * 2^fraction`, at most `levels`.
///
/// # Safety
/// `scaled` is at least 0 and less than 2^32.
#[inline(always)]
pub unsafe fn level(scaled: f32, dither: u32, fraction: u32, levels: u32) -> u32 {
    // SAFETY: the caller keeps `scaled` in the range of u32.
    let fixed = unsafe { scaled.to_int_unchecked::<u32>() };
    rounded(fixed, dither, fraction, levels)
}

/// As [`level`], for fewer than [`WIDE_LEVELS`]: a CPU without AVX-512 has no vector conversion to unsigned integers,
/// and would spend three instructions more per element.
///
/// # Safety
/// `scaled` is at least 0 and less than 2^31.
#[inline(always)]
pub unsafe fn level_of_31_bits(scaled: f32, dither: u32, fraction: u32, levels: u32) -> u32 {
    // SAFETY: the caller keeps `scaled` in the range of i32.
    let fixed = unsafe { scaled.to_int_unchecked::<i32>() } as u32;
    rounded(fixed, dither, fraction, levels)
}

/// A level of a scaled magnitude `a * 2^fraction` and a 16-bit draw, with `fraction` bits below it that are left over.
///
/// Below 32 levels, what rounding adds to the top level is less than half a step of the draw.
///
/// # Safety
/// `scaled` is at least 0 and at most `levels * 2^fraction * (1 + 2^-22)`, and `(levels + 1) << fraction` at most 2^32.
#[inline(always)]
pub unsafe fn unshifted(scaled: f32, draw: u32, fraction: u32, levels: u32) -> u32 {
    // SAFETY: the caller keeps `scaled` in the range of u32.
    let fixed = unsafe { scaled.to_int_unchecked::<u32>() };
    let fixed = if levels < 32 { fixed } else { fixed.min(levels << fraction) };
    fixed.wrapping_add(dither16(draw, fraction))
}

/// As [`level`] with the dither of a 16-bit draw, in fewer instructions: half a step of the draw is added to the float,
/// so that only the draw itself is left to be added. `scaled` is the scaled magnitude `a * 2^16`, whatever the
/// fraction.
///
/// Of an integer `t = floor(a * 2^fraction)`, `(t + dither16(draw)) >> fraction` is `(r + draw) >> 16`, where `r` is
/// `(t + 2^(fraction - 17)) >> (fraction - 16)` = `floor(a * 2^16 + 1/2)`. The number before 1/2 is added, because
/// 1/2 - 2^-25 and 1/2 sum up to 1 in binary32; to every other number either adds up to the same integer part.
///
/// `LIMITED` is needed from 32 levels on. Below, what rounding adds to the top level is less than half a step of the
/// draw.
///
/// # Safety
/// `scaled` is at least 0 and at most `levels * 2^16 * (1 + 2^-22)`, with at most 32767 levels.
#[inline(always)]
pub unsafe fn level_by_draw<const LIMITED: bool>(scaled: f32, draw: u32, levels: u32) -> u32 {
    const BEFORE_HALF: f32 = f32::from_bits(0x3eff_ffff);
    // SAFETY: the sum is below 2^31.
    let fixed = unsafe { (scaled + BEFORE_HALF).to_int_unchecked::<i32>() } as u32;
    ((if LIMITED { fixed.min(levels << 16) } else { fixed }) + (draw & 0xffff)) >> 16
}

#[inline(always)]
fn rounded(fixed: u32, dither: u32, fraction: u32, levels: u32) -> u32 {
    // The product of a value and its bucket's reciprocal may pass the top level by a rounding error.
    (fixed.min(levels << fraction) + dither) >> fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_level_and_its_dither_stay_in_31_or_32_bits() {
        for levels in 1..=32767u32 {
            let f = fraction_bits(levels);
            assert!(f >= 17, "a 16-bit draw and half of its step must fit");
            let top = (levels as u64) << f;
            assert!(top + (1 << f) <= if levels < WIDE_LEVELS { 1 << 31 } else { 1 << 32 }, "levels {levels}");
            assert!(top >= 1 << 30, "a reciprocal must stay normal; levels {levels}");
            // What rounding may add to a scaled magnitude stays below the range of the conversion.
            assert!(
                top as f64 * (1.0 + 2f64.powi(-22)) < if levels < WIDE_LEVELS { 2f64.powi(31) } else { 2f64.powi(32) }
            );
        }
    }

    /// How far the mean level over all 16-bit draws is from the scaled magnitude, in levels.
    fn bias(levels: u32, scaled: f32) -> f64 {
        let f = fraction_bits(levels);
        // SAFETY: `scaled` is at most levels * 2^fraction, which is below 2^32.
        let total: u64 = (0..65536).map(|u| u64::from(unsafe { level(scaled, dither16(u, f), f, levels) })).sum();
        total as f64 / 65536.0 - f64::from(scaled) / 2f64.powi(f as i32)
    }

    #[test]
    fn counting_all_draws_gives_the_fraction_to_its_nearest_65536th() {
        let mut state = 0x9e37_79b9u32;
        for levels in [1u32, 7, 127, 255, 8191, 16383, 16384, 20_000, 32767] {
            let f = fraction_bits(levels);
            let unit = 2f32.powi(f as i32 - 16);
            // Magnitudes below one step of a draw, at its half, beside it, and all over.
            let near_steps = [0.0, 0.25, 0.4999, 0.5, 0.5001, 0.75, 1.0, 1.5, 2.5, 65535.5].map(|a| a * unit);
            let anywhere = core::iter::repeat_with(|| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (f64::from(levels) * f64::from(state) / 2f64.powi(32) * 2f64.powi(f as i32)) as f32
            });
            for scaled in near_steps.into_iter().chain(anywhere.take(12)) {
                let bias = bias(levels, scaled);
                assert!(bias.abs() <= 2f64.powi(-17), "levels {levels}, scaled {scaled}: bias {bias}");
            }
        }
    }

    #[test]
    fn a_draw_added_to_a_rounded_float_gives_the_same_level() {
        let mut state = 0x1234_5678u32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        for levels in [1u32, 2, 3, 7, 15, 31, 32, 127, 255, 8191, 16383, 16384, 20_000, 32767] {
            let f = fraction_bits(levels);
            let (to, step) = (2f32.powi(16 - f as i32), 2f32.powi(f as i32 - 16));
            let top = levels as f32 * 2f32.powi(f as i32);
            for turn in 0..60_000u32 {
                // Anywhere, beside every kind of half and whole step, at the top and beyond it, and next to zero.
                let near = [0.5, 1.0, 1.5, (random() % (levels * 2)) as f32 * 0.5, (random() % 70_000) as f32 * 0.5];
                let scaled = match turn % 8 {
                    kind @ 0..5 => near[kind as usize] * step,
                    5 => top,
                    6 => f32::from_bits(random() % (top.to_bits() + 1)),
                    _ => (f64::from(random()) / 2f64.powi(32) * f64::from(top)) as f32,
                };
                let beside = (scaled.to_bits() + random() % 7).saturating_sub(3);
                let scaled = f32::from_bits(beside).min(top * (1.0 + 2f32.powi(-22)));
                let draw = [0, 1, 0x7fff, 0x8000, 0xffff, random() & 0xffff][turn as usize % 6];
                // SAFETY: at most levels * 2^fraction * (1 + 2^-22).
                let (old, new, free) = unsafe {
                    (
                        level(scaled, dither16(draw, f), f, levels),
                        level_by_draw::<true>(scaled * to, draw | random() << 16, levels),
                        level_by_draw::<false>(scaled * to, draw, levels),
                    )
                };
                assert_eq!(old, new, "levels {levels}, scaled {scaled}, draw {draw}");
                assert!(levels >= 32 || old == free, "levels {levels}, scaled {scaled}, draw {draw}");
            }
        }
    }

    #[test]
    fn both_conversions_agree_below_31_bits() {
        for levels in [1u32, 7, 127, 255, 16383] {
            let f = fraction_bits(levels);
            for step in 0..1000u32 {
                let scaled = (levels << f) as f32 * (step as f32 / 999.0);
                let dither = dither16(step * 65, f);
                // SAFETY: at most levels * 2^fraction, which is below 2^31.
                let both = unsafe { (level(scaled, dither, f, levels), level_of_31_bits(scaled, dither, f, levels)) };
                assert_eq!(both.0, both.1, "levels {levels}, scaled {scaled}");
            }
        }
    }
}
