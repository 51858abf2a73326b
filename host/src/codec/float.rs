//! Casts to small formats, floating-point or of integers, as a user sets them up.

use gradwire_kernels::arith::minifloat::Format;

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Number, Stage};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite, Scale};
use crate::wire::{CodecId, Entropy};

/// Casts to a small format: f16, bf16, E4M3, E5M2 or E2M1, or integers of 8 or 16 bits, with stochastic rounding or to
/// nearest even.
///
/// Sources: "OCP 8-bit floating point specification (OFP8)", revision 1.0, 2023, for E4M3 and E5M2; "OCP microscaling
/// formats (MX) specification", version 1.0, 2023, for E2M1, INT8 and the scale of a block, which [`Float::scaled`] is;
/// Li et al., "A network-centric hardware/algorithm co-design to accelerate distributed training of deep neural
/// networks" (INCEPTIONN), MICRO 2018, for [`Float::error_bound`].
///
/// | | bits | exponent | mantissa | largest | lowest normal | smallest |
/// |---|---|---|---|---|---|---|
/// | [`Float::f16`] | 16 | 5 | 10 | 65504 | 2^-14 | 2^-24 |
/// | [`Float::bf16`] | 16 | 8 | 7 | 3.39e38 | 2^-126 | 2^-133 |
/// | [`Float::e4m3`] | 8 | 4 | 3 | 448 | 2^-6 | 2^-9 |
/// | [`Float::e5m2`] | 8 | 5 | 2 | 57344 | 2^-14 | 2^-16 |
/// | [`Float::e2m1`] | 4 | 2 | 1 | 6 | 1 | 0.5 |
/// | [`Float::int8`] | 8 | | 6 | 127/64 | 1 | 2^-6 |
/// | [`Float::int16`] | 16 | | 14 | 32767/16384 | 1 | 2^-14 |
///
/// The numbers of an integer format are all the multiples of the smallest one up to the largest, in sign and magnitude.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: 4, 8 or 16 bits per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Unbiased**, for magnitudes up to the largest number, to the resolution of the draws: 2^-17 of the distance of
///   two numbers, exactly for bf16, and for f16 from 2^-14 on; below, 2^-13 of that distance; of int16 2^-9. Greater
///   magnitudes become the largest number. [`Float::nearest`] is biased.
/// * **Error**: above the lowest normal number at most u |x|, and u/2 |x| to nearest, with u = 2^-mantissa; below, the
///   smallest number, and half of it; with [`Float::error_bound`] that bound. With a scale or as bf16, the variance
///   factor is omega = u^2/(4 + 4u) + min(B s^2/4, sqrt(B) s), B elements per bucket and s = 2^(1 + lowest - mantissa)
///   by the largest number, 2^lowest being the lowest normal one; of bf16 the first term, which leaves out magnitudes
///   below 2^-126. Else there is none, and no error feedback.
/// * **Seeds**: each worker its own, by [`crate::Seed::worker`]; to nearest there is no draw.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: signs are kept, also where the value is zero. NaN and infinity make their bucket NaN:
///   [`NonFinite`].
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Float {
    pub(crate) common: Bucketed,
    scaled: bool,
    nearest: bool,
    bound: Option<f64>,
    entropy: Entropy,
}

/// The names of formats, with bits and levels of each.
const FORMATS: [(&str, u32, u32); 7] = [
    ("f16", 16, 31_743),
    ("bf16", 16, 32_639),
    ("e4m3", 8, 126),
    ("e5m2", 8, 123),
    ("e2m1", 4, 7),
    ("int8", 8, 127),
    ("int16", 16, 32_767),
];

/// What an error bound may be.
const BOUND: &str = "a number from 2^-100 to 2^100";

impl Float {
    const fn format(at: usize) -> Self {
        let (_, bits, levels) = FORMATS[at];
        let common = Bucketed { bucket: Some(8192), levels: Some(levels), ..Bucketed::new(CodecId::Float, bits) };
        Self { common, scaled: false, nearest: false, bound: None, entropy: Entropy::None }
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

    /// Four bits: two of exponent and one of mantissa. Its numbers are zero and 0.5 to 6, so it is of use with
    /// [`Float::scaled`].
    pub const fn e2m1() -> Self {
        Self::format(4)
    }

    /// Integers of 8 bits: sign and 127 levels.
    pub const fn int8() -> Self {
        Self::format(5)
    }

    /// Integers of 16 bits: sign and 32767 levels.
    pub const fn int16() -> Self {
        Self::format(6)
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

    /// No element off by more than this: INCEPTIONN's error bound, of integers alone.
    ///
    /// Rounded to nearest, with a scale per bucket as [`Float::scaled`], and at least so large that two numbers are the
    /// largest power of two up to twice the bound apart. So magnitudes below that become zero, and what is left are
    /// small integers, which [`Float::elias`] packs. A bucket whose largest magnitude is above 32767 such distances
    /// (int8: 127) has a larger scale, and errors of up to 2^-15 of that magnitude (2^-7); with a bound of 2^-10 that
    /// is from 64 on (from 1/4). A larger magnitude is sent as it is there, in 32 bits; and classes of 0, 8, 16 and 32
    /// bits with two more for each element are there in place of Elias codes.
    ///
    /// Not a contraction: a gradient whose magnitudes are all small becomes zero. Error feedback keeps it, and
    /// residuals stay within the bound too.
    ///
    /// ```
    /// use gradwire::{Device, Float, Seed};
    /// let gradient: Vec<f32> = (0..10_000).map(|i| (i as f32).sin().powi(9) * 0.1).collect();
    /// let (device, codec) = (Device::cpu(), Float::int16().error_bound(2f64.powi(-10)).elias());
    /// let payload = device.encode(&codec, &gradient, Seed::new(7))?;
    /// assert!(payload.as_bytes().len() * 8 < gradient.len() * 6);
    /// let decoded = device.decode(&payload)?;
    /// assert!(gradient.iter().zip(decoded).all(|(x, y)| (x - y).abs() <= 2f32.powi(-10)));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn error_bound(mut self, bound: f64) -> Self {
        self.bound = Some(bound);
        self
    }

    /// The payload with its codes packed as Elias gamma codes, as [`Qsgd::elias`](crate::Qsgd::elias), of integers
    /// alone: zero takes 1 bit, and a level l takes 2 floor(log2(l + 1)) + 2.
    pub const fn elias(mut self) -> Self {
        self.entropy = Entropy::Elias;
        self
    }

    /// As [`Float::elias`], as Elias delta codes ([`Entropy::Delta`]): fewer bits for integers from 31 on.
    pub const fn delta(mut self) -> Self {
        self.entropy = Entropy::Delta;
        self
    }

    /// As [`Float::elias`], as places and levels of the codes that are not zero ([`Entropy::Sparse`]).
    pub const fn sparse(mut self) -> Self {
        self.entropy = Entropy::Sparse;
        self
    }

    /// The smallest scale, if there is a bound on the error.
    fn least(&self) -> Result<Option<f32>, Error> {
        let Some(bound) = self.bound else { return Ok(None) };
        let wrong = |allowed| Error::Setting { what: "the error bound", got: bound, allowed };
        let format = Format::of(self.common.levels.unwrap_or_default());
        if !format.is_integer() {
            return Err(wrong("left out, or of int8 or int16: other formats' errors rise with the magnitude"));
        }
        if !(2f64.powi(-100)..=2f64.powi(100)).contains(&bound) {
            return Err(wrong(BOUND));
        }
        // The largest power of two up to the bound: its exponent alone. Exact in binary32 where the bound is within its
        // limits.
        let below = f64::from_bits(bound.to_bits() >> 52 << 52);
        Ok(Some((below * 2f64.powi(1 + format.mantissa as i32)) as f32))
    }

    /// Rounded to the nearest number, ties to the even code.
    pub const fn nearest(mut self) -> Self {
        self.nearest = true;
        self
    }
}

impl Codec for Float {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        let _environment = FloatEnvironment::standard();
        let plan = self.common.plan(n, dtype, false)?;
        let least = self.least()?;
        let place = 2f64.powi(-7);
        let scaled = self.scaled || least.is_some();
        let omega = match (scaled, self.common.levels) {
            // To nearest, and zero is a number: no error is above its element.
            (true, _) if least.is_some() => 1.0,
            (true, _) => plan.omega,
            // The range of binary32.
            (false, Some(32_639)) => place * place / (4.0 * (1.0 + place)),
            (false, _) => f64::INFINITY,
        };
        let own = if scaled { Scale::Own } else { Scale::One };
        let nearest = self.nearest || least.is_some();
        let plan = EncodePlan { nearest, scale: least.map_or(own, Scale::AtLeast), omega, ..plan };
        plan.packed(self.entropy)
    }
}

impl Stage for Float {
    const PLAIN: Self = Self::e4m3();
    const SETTINGS: &'static [&'static str] =
        &["f16", "bf16", "e4m3", "e5m2", "e2m1", "int8", "int16", "scaled", "bound", "bucket", "nearest"];

    const FORMATS: &'static [&'static str] = &["f16", "bf16", "e4m3", "e5m2", "e2m1", "int8", "int16"];

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

    fn numbers(&mut self) -> Vec<Number<'_>> {
        vec![("bound", BOUND, &mut self.bound)]
    }

    fn entropy(&self) -> Entropy {
        self.entropy
    }

    fn packed(mut self, entropy: Entropy) -> Self {
        self.entropy = entropy;
        self
    }

    fn alone(mut self) -> Self {
        self.entropy = Entropy::None;
        self
    }
}
