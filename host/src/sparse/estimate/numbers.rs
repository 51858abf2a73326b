//! A logarithm and a quantile of a few operations of binary64 in a fixed order, so that every machine has the same
//! bits: a system's own logarithm may differ in the last.

/// The natural logarithm of a finite number above zero that is not subnormal. Off by less than 1e-15 of ln 2 or of
/// itself, whichever is larger.
pub(crate) fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52 & 0x7ff) as i32 - 1023;
    let mut m = f64::from_bits(bits & MANTISSA | 1023 << 52);
    // From 1/sqrt(2) to sqrt(2).
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh s; s^2 is below 0.0295, and its 12th power below 1e-18.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = (0..12).rev().fold(0.0, |sum, i| sum * square + 1.0 / f64::from(2 * i + 1));
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * s * series
}

/// What a standard normal variable exceeds with this probability, above 0 and up to 0.5. Off by less than 2e-7 of
/// itself.
///
/// Source: Wichura, "Algorithm AS 241: The percentage points of the normal distribution", Applied Statistics 37, 1988,
/// PPND7.
pub(crate) fn exceeded(probability: f64) -> f64 {
    let of = |coefficients: &[f64], r: f64| coefficients.iter().fold(0.0, |sum, c| sum * r + c);
    let center = 0.5 - probability;
    if center <= 0.425 {
        let r = 0.180_625 - center * center;
        let over = of(&[59.109_374_720, 159.291_132_02, 50.434_271_938, 3.387_132_717_9], r);
        return center * over / of(&[67.187_563_600, 78.757_757_664, 17.895_169_469, 1.0], r);
    }
    let r = (-ln(probability)).sqrt();
    if r <= 5.0 {
        let r = r - 1.6;
        let over = of(&[0.170_238_211_03, 1.306_728_481_6, 2.756_815_390_0, 1.423_437_277_7], r);
        return over / of(&[0.120_211_329_75, 0.737_001_642_50, 1.0], r);
    }
    let r = r - 5.0;
    let over = of(&[0.017_337_203_997, 0.428_682_943_37, 3.081_226_386_0, 6.657_905_115_0], r);
    over / of(&[0.012_258_202_635, 0.241_978_942_25, 1.0], r)
}

/// A power of two that is neither subnormal nor too large.
pub(crate) fn power_of_2(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// The largest number of binary32 that is not above this one, and not below the smallest above zero.
pub(crate) fn down(x: f64) -> f32 {
    let near = x as f32;
    let below = if f64::from(near) > x { f32::from_bits(near.to_bits() - 1) } else { near };
    below.clamp(f32::from_bits(1), f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithm_is_close_to_the_systems() {
        let mut x = 1.0;
        while x < 1e12 {
            for v in [x, 1.0 / x] {
                let error = (ln(v) - v.ln()).abs();
                assert!(error <= 1e-15 * v.ln().abs().max(0.7), "{v}: {error}");
            }
            x *= 1.000_37;
        }
        assert_eq!((ln(1.0), ln(2.0)), (0.0, std::f64::consts::LN_2));
    }

    /// The probability that a standard normal variable is above x, by the continued fraction of Laplace from 2 on, and
    /// by the Taylor series about 0 below.
    fn above(x: f64) -> f64 {
        let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        if x >= 2.0 {
            return density / (1..400).rev().fold(x, |tail, i| x + f64::from(i) / tail);
        }
        let mut term = x;
        let mut sum = x;
        for i in 1..60 {
            term *= x * x / f64::from(2 * i + 1);
            sum += term;
        }
        0.5 - density * sum
    }

    #[test]
    fn a_quantile_is_exceeded_as_often_as_asked() {
        let mut p = 0.5;
        while p > 1e-11 {
            let x = exceeded(p);
            // An error of e in x is one of about e x, or e, in the logarithm of the probability.
            let error = (above(x) / p - 1.0).abs();
            assert!(error <= 3e-7 * (1.0 + x * x), "{p}: {x} is exceeded with {}", above(x));
            p *= 0.97;
        }
        assert_eq!(exceeded(0.5), 0.0);
    }

    #[test]
    fn what_is_rounded_is_not_above() {
        for x in [1.0, 0.1, 1.0 / 3.0, 1e30 + 1.0, 3e-45, 1e-40] {
            let f = down(x);
            assert!(f64::from(f) <= x && f64::from(f32::from_bits(f.to_bits() + 1)) > x, "{x}");
        }
        assert_eq!((down(0.0), down(1e-50)), (f32::from_bits(1), f32::from_bits(1)));
        assert_eq!((down(1e300), down(f64::INFINITY)), (f32::MAX, f32::MAX));
    }
}
