//! Bits of binary32, binary16 and bfloat16.

/// What every backend writes where a result is not a number: one bit pattern, so that bytes can be compared.
pub const NAN_BITS: u32 = 0x7fc0_0000;
/// The bits of +infinity; the bits of a magnitude at or above it are not finite.
pub const INF_BITS: u32 = 0x7f80_0000;
/// Everything but the sign.
pub const MAGNITUDE: u32 = 0x7fff_ffff;
/// The sign.
pub const SIGN: u32 = 0x8000_0000;

/// Two to the power `exponent`, for exponents of normal numbers (-126 to 127).
#[inline(always)]
pub fn pow2(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// A binary16 as binary32, exactly; a NaN stays a NaN.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let magnitude = (half as u32 & 0x7fff) << 13;
    // Re-biasing by a multiplication treats normal and subnormal halves alike, and is exact for both.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = magnitude | INF_BITS;
    let bits = if magnitude >= 0x7c00 << 13 { special } else { finite.to_bits() };
    f32::from_bits(bits | (half as u32 & 0x8000) << 16)
}

/// A bfloat16 as binary32, exactly.
#[inline(always)]
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits((half as u32) << 16)
}

/// `accumulator + weight * value`, each operation rounded, with the one NaN.
#[inline(always)]
pub fn accumulate(accumulator: f32, weight: f32, value: f32) -> f32 {
    canonical(accumulator + weight * value)
}

/// The value, or the one NaN if it is any NaN.
#[inline(always)]
pub fn canonical(value: f32) -> f32 {
    // A comparison of bits, because what a machine makes of a signalling NaN is its own affair.
    if value.to_bits() & MAGNITUDE > INF_BITS { f32::from_bits(NAN_BITS) } else { value }
}

/// An integer that orders as the number does, with -0 below +0.
#[inline(always)]
pub fn to_key(bits: u32) -> u32 {
    bits ^ (((bits as i32 >> 31) as u32) | SIGN)
}

/// The bits whose key this is.
#[inline(always)]
pub fn from_key(key: u32) -> u32 {
    key ^ (((!key as i32 >> 31) as u32) | SIGN)
}

/// The scale that keeps every intermediate of a bucket with this largest magnitude a normal number, and its inverse.
///
/// Tiny buckets are lifted out of the subnormal range, where quotients by a level count would lose their digits and
/// reciprocals would overflow; both scales are powers of two, so the lift itself is exact.
#[inline(always)]
pub fn lift(largest: f32) -> (f32, f32) {
    if largest < pow2(-60) { (pow2(64), pow2(-64)) } else { (1.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_exactly() {
        for h in 0..=u16::MAX {
            let (sign, exponent, fraction) = (h >> 15, (h >> 10 & 31) as i32, (h & 1023) as f64);
            let magnitude = match exponent {
                0 => fraction * 2f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                e => (1024.0 + fraction) * 2f64.powi(e - 25),
            };
            let expected = if sign == 1 { -magnitude } else { magnitude };
            let got = f16_to_f32(h);
            if expected.is_nan() {
                assert!(got.is_nan(), "{h:#06x}");
            } else {
                assert_eq!(got.to_bits(), (expected as f32).to_bits(), "{h:#06x}");
            }
        }
    }

    #[test]
    fn keys_order_as_the_numbers_do_and_come_back() {
        let line = [f32::NEG_INFINITY, -f32::MAX, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY];
        for pair in line.windows(2) {
            assert!(to_key(pair[0].to_bits()) < to_key(pair[1].to_bits()), "{pair:?}");
        }
        for x in line {
            assert_eq!(from_key(to_key(x.to_bits())), x.to_bits());
        }
    }
}
