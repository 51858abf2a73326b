//! Floats of 16 bits, and the rounding of wider ones to them.

/// A binary format: bits of its significand with the leading one, and its least and largest exponents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    precision: u32,
    least: i32,
    largest: i32,
}

/// IEEE 754 binary16.
pub(crate) const F16: Format = Format { precision: 11, least: -14, largest: 15 };
/// The upper half of binary32.
pub(crate) const BF16: Format = Format { precision: 8, least: -126, largest: 127 };

/// The one NaN that the ISA writes for 16-bit results.
const NAN: u16 = 0x7fff;

impl Format {
    /// The exact value of the bits.
    pub(crate) fn value(self, bits: u16) -> f64 {
        let fraction_bits = self.precision - 1;
        let exponent_bits = 15 - fraction_bits;
        let fraction = u32::from(bits) & ((1 << fraction_bits) - 1);
        let exponent = u32::from(bits) >> fraction_bits & ((1 << exponent_bits) - 1);
        let magnitude = if exponent == (1 << exponent_bits) - 1 {
            if fraction == 0 { f64::INFINITY } else { f64::NAN }
        } else if exponent == 0 {
            f64::from(fraction) * 2f64.powi(self.least - fraction_bits as i32)
        } else {
            let significand = f64::from(fraction | 1 << fraction_bits);
            significand * 2f64.powi(exponent as i32 - self.largest - fraction_bits as i32)
        };
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }

    /// The nearest of the format, ties to even.
    pub(crate) fn round(self, value: f64) -> u16 {
        if value.is_nan() {
            return NAN;
        }
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        let magnitude = value.abs();
        let fraction_bits = self.precision - 1;
        // The exponent of the binade, that of the subnormals at the least. A subnormal f64 is below all of both
        // formats.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(self.least);
        // The value in units of the last place there: scaling by a power of two is exact, but for what is far too
        // large.
        let units = if exponent > self.largest {
            f64::INFINITY
        } else {
            (magnitude * 2f64.powi(fraction_bits as i32 - exponent)).round_ties_even()
        };
        // A carry out of the fraction goes into the exponent by itself, and from the largest one to infinity.
        let biased = (exponent - self.least) as u16;
        let infinity = ((self.largest - self.least + 2) as u16) << fraction_bits;
        if units.is_infinite() { sign | infinity } else { sign | ((biased << fraction_bits) + units as u16) }
    }

    /// `a b + c`, rounded once.
    pub(crate) fn fma(self, a: u16, b: u16, c: u16) -> u16 {
        // The product is exact in 53 bits. The sum is not; rounded to odd, it keeps what the second rounding needs.
        let (product, c) = (self.value(a) * self.value(b), self.value(c));
        let sum = product + c;
        if !sum.is_finite() {
            return self.round(sum);
        }
        // Knuth's two-sum: the error of the addition, exactly.
        let shadow = sum - product;
        let error = (product - (sum - shadow)) + (c - shadow);
        let odd = if error == 0.0 || sum.to_bits() & 1 == 1 {
            sum
        } else if (error > 0.0) == (sum > 0.0) {
            f64::from_bits(sum.to_bits() + 1)
        } else {
            f64::from_bits(sum.to_bits() - 1)
        };
        self.round(odd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_its_own_rounding() {
        for format in [F16, BF16] {
            for bits in 0..=u16::MAX {
                let value = format.value(bits);
                if !value.is_nan() {
                    assert_eq!(format.round(value), bits, "{format:?} {bits:#06x} {value}");
                }
            }
        }
        assert_eq!(F16.value(0x3c00), 1.0);
        assert_eq!(F16.value(0x7bff), 65504.0);
        assert_eq!(F16.value(1), 2f64.powi(-24));
        assert_eq!(BF16.value(0x3f80), 1.0);
    }

    #[test]
    fn between_two_halves_the_nearer_and_the_even() {
        for format in [F16, BF16] {
            for bits in 0..0x7fffu16 {
                let (a, b) = (format.value(bits), format.value(bits + 1));
                if !b.is_finite() {
                    continue;
                }
                let middle = (a + b) / 2.0;
                assert_eq!(format.round(middle), bits + (bits & 1), "{format:?} {bits:#06x}");
                assert_eq!(format.round(f64::from_bits(middle.to_bits() + 1)), bits + 1);
                assert_eq!(format.round(f64::from_bits(middle.to_bits() - 1)), bits);
            }
        }
        assert_eq!(F16.round(65519.99), 0x7bff);
        assert_eq!(F16.round(65520.0), 0x7c00);
        assert_eq!(F16.round(-1e300), 0xfc00);
        assert_eq!(F16.round(f64::NAN), NAN);
    }

    #[test]
    fn a_fused_product_is_rounded_once() {
        // 1 + 2^-10 squared is 1 + 2^-9 + 2^-20; less 1 + 2^-9, only the last is left, which a rounded product loses.
        let a = 0x3c01;
        assert_eq!(F16.fma(a, a, 0xbc02), F16.round(2f64.powi(-20)));
        // A half of a place more than a tie, and the rest far below 53 bits: to odd keeps it above the tie.
        let huge = BF16.round(2f64.powi(100));
        let tie = BF16.round(2f64.powi(-8));
        assert_eq!(BF16.fma(BF16.round(1.0), BF16.round(1.0), tie), BF16.round(1.0));
        assert_eq!(BF16.fma(huge, BF16.round(1.0), BF16.round(2f64.powi(-100))), huge);
        let above = BF16.fma(BF16.round(1.0 + 2f64.powi(-7)), BF16.round(2f64.powi(92)), huge);
        assert_eq!(above, BF16.round(2f64.powi(100) + 2f64.powi(92) * (1.0 + 2f64.powi(-7))));
    }
}
