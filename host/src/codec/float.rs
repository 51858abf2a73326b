//! Casts to small floating-point formats, as a user sets them up.

use super::{Bucketed, Codec, Stage, bucketed_settings};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite, Scale};
use crate::wire::CodecId;

/// Casts to a small floating-point format: f16, bf16, E4M3, E5M2 or E2M1, with stochastic rounding or to nearest even.
///
/// Sources: "OCP 8-bit floating point specification (OFP8)", revision 1.0, 2023, for E4M3 and E5M2; "OCP microscaling formats
/// (MX) specification", version 1.0, 2023, for E2M1 and for the scale of a block, which [`Float::scaled`] is.
///
/// | | bits | exponent | mantissa | largest | lowest normal | smallest |
/// |---|---|---|---|---|---|---|
/// | [`Float::f16`] | 16 | 5 | 10 | 65504 | 2^-14 | 2^-24 |
/// | [`Float::bf16`] | 16 | 8 | 7 | 3.39e38 | 2^-126 | 2^-133 |
/// | [`Float::e4m3`] | 8 | 4 | 3 | 448 | 2^-6 | 2^-9 |
/// | [`Float::e5m2`] | 8 | 5 | 2 | 57344 | 2^-14 | 2^-16 |
/// | [`Float::e2m1`] | 4 | 2 | 1 | 6 | 1 | 0.5 |
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: 4, 8 or 16 bits per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Unbiased**, for magnitudes up to the largest number, to the resolution of the draws: 2^-17 of the distance of two numbers,
///   exactly for bf16, and for f16 from 2^-14 on; below, 2^-13 of that distance. Greater magnitudes become the largest number. [`Float::nearest`] is biased.
/// * **Error**: above the lowest normal number at most u |x|, and u/2 |x| to nearest, with u = 2^-mantissa; below, the smallest
///   number, and half of it. With a scale or as bf16, the variance factor is omega = u^2/(4 + 4u) + min(B s^2/4, sqrt(B) s), B
///   elements per bucket and s = 2^(1 + lowest - mantissa - highest), the exponents of the lowest normal and the largest number;
///   of bf16 the first term, which leaves out magnitudes below 2^-126. Else there is none, and no error feedback.
/// * **Seeds**: each worker its own, by [`crate::Seed::worker`]; to nearest there is no draw.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: signs are kept, also where the value is zero. NaN and infinity make their bucket NaN: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Float, Seed};
/// let (device, gradient) = (Device::cpu(), [1.0f32, -0.3, 500.0, 0.0]);
/// let payload = device.encode(&Float::e4m3().nearest(), &gradient, Seed::new(7))?;
/// assert_eq!(device.decode(&payload)?, [1.0, -0.3125, 448.0, 0.0]);
/// let scaled = device.encode(&Float::e4m3().scaled().nearest(), &gradient, Seed::new(7))?;
/// assert_eq!(device.decode(&scaled)?, [1.0, -0.3125, 512.0, 0.0]);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Float {
    pub(crate) common: Bucketed,
    scaled: bool,
    nearest: bool,
}

/// The names of formats, with bits and levels of each.
const FORMATS: [(&str, u32, u32); 5] =
    [("f16", 16, 31_743), ("bf16", 16, 32_639), ("e4m3", 8, 126), ("e5m2", 8, 123), ("e2m1", 4, 7)];

impl Float {
    const fn format(at: usize) -> Self {
        let (_, bits, levels) = FORMATS[at];
        let common = Bucketed { bucket: Some(8192), levels: Some(levels), ..Bucketed::new(CodecId::Float, bits) };
        Self { common, scaled: false, nearest: false }
    }

    /// IEEE 754 binary16.
    pub const fn f16() -> Self {
        Self::format(0)
    }

    /// The upper half of binary32.
    pub const fn bf16() -> Self {
        Self::format(1)
    }

    /// OFP8 with four bits of exponent and three of mantissa.
    pub const fn e4m3() -> Self {
        Self::format(2)
    }

    /// OFP8 with five bits of exponent and two of mantissa.
    pub const fn e5m2() -> Self {
        Self::format(3)
    }

    /// Four bits: two of exponent and one of mantissa. Its numbers are zero and 0.5 to 6, so it is of use with [`Float::scaled`].
    pub const fn e2m1() -> Self {
        Self::format(4)
    }

    bucketed_settings!(
        "One bucket for the whole tensor. Costs a second read of the gradient, and draws 32 random bits per element."
    );

    /// A power of two per bucket, the smallest with which no magnitude lies above the largest number, and 2^127 at most
    /// times that number: what passes it becomes it. In buckets of 32, until
    /// [`Float::bucket`] says otherwise, these are MXFP8 and MXFP4, with 32 bits for the scale where that specification
    /// has 8; its own rule for the scale may cut off magnitudes.
    pub const fn scaled(mut self) -> Self {
        self.scaled = true;
        self.bucket(32)
    }

    /// Rounded to the nearest number, ties to the even code.
    pub const fn nearest(mut self) -> Self {
        self.nearest = true;
        self
    }
}

impl Codec for Float {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        let plan = self.common.plan(n, dtype, false)?;
        let place = 2f64.powi(-7);
        let omega = match (self.scaled, self.common.levels) {
            (true, _) => plan.omega,
            // The range of binary32.
            (false, Some(32_639)) => place * place / (4.0 * (1.0 + place)),
            (false, _) => f64::INFINITY,
        };
        Ok(EncodePlan {
            nearest: self.nearest,
            scale: if self.scaled { Scale::Own } else { Scale::One },
            omega,
            ..plan
        })
    }
}

impl Stage for Float {
    const PLAIN: Self = Self::e4m3();
    const SETTINGS: &'static [&'static str] = &["f16", "bf16", "e4m3", "e5m2", "e2m1", "scaled", "bucket", "nearest"];

    const FORMATS: &'static [&'static str] = &["f16", "bf16", "e4m3", "e5m2", "e2m1"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }

    fn format(&self) -> Option<&'static str> {
        let is_own = |(_, _, levels): &&(&str, u32, u32)| Some(*levels) == self.common.levels;
        FORMATS.iter().find(is_own).map(|(name, ..)| *name)
    }

    fn take(&mut self, name: &str) -> bool {
        if name == "scaled" {
            *self = (*self).scaled();
            return true;
        }
        let found = FORMATS.iter().find(|(other, ..)| *other == name);
        if let Some((_, bits, levels)) = found {
            (self.common.bits, self.common.levels) = (*bits, Some(*levels));
        }
        found.is_some()
    }

    fn usual_bucket(&self) -> Option<usize> {
        Some(if self.scaled { 32 } else { 8192 })
    }

    fn flags(&mut self) -> Vec<(&'static str, &mut bool)> {
        vec![("scaled", &mut self.scaled), ("nearest", &mut self.nearest)]
    }
}
