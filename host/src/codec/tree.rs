//! Dynamic tree quantization, as a user sets it up.

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::CodecId;

/// Dynamic tree quantization: 8 bits that reach over seven decades below a bucket's largest magnitude.
///
/// Source: Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016, section 2.2. The paper takes
/// the middle of each part of a decade; here levels are the ends of the parts, so that zero and the largest magnitude
/// are levels, and no magnitude lies beyond the last one.
///
/// Levels are 0 and 10^-6 of the largest magnitude, then each decade above in equal parts: 2, 4, 8, 16, 32, and 64 of
/// the highest.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: 8 bits per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Biased**: each magnitude becomes the nearest level, ties the upper one. With [`Tree::stochastic`] it becomes the
///   level below or above, unbiased to the resolution of the draws: 2^-15 of the distance of two levels, arithmetic and
///   all.
/// * **Error**: to nearest, at most 7 % of a magnitude in the highest decade, and 13, 22, 36, 53 and 70 % in those
///   below; below 10^-6 of the largest, 0.5 10^-6 of that. The largest magnitude of a bucket and zeros are exact, but
///   for the contraction. Variance factor of both roundings: omega = 0.9205 + min(B 10^-12 / 4, sqrt(B) 10^-6), B
///   elements per bucket.
/// * **Seeds**: no random draw unless stochastic; then each worker its own, by [`crate::Seed::worker`].
/// * **Determinism**: backend to backend.
/// * **Edge cases**: signs are kept, also where the value is zero. NaN and infinity: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Seed, Tree};
/// let (device, gradient) = (Device::cpu(), [1.0f32, -0.5, 0.001, 0.0, 3e-7]);
/// let decoded = device.decode(&device.encode(&Tree::new(), &gradient, Seed::new(7))?)?;
/// assert_eq!((decoded[0], decoded[3], decoded[4]), (1.0, 0.0, 0.0));
/// assert!((decoded[1] + 0.5).abs() < 0.008 && (decoded[2] - 0.001).abs() < 1e-9);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    pub(crate) common: Bucketed,
    stochastic: bool,
}

impl Tree {
    /// To nearest, in buckets of 512.
    #[expect(clippy::new_without_default, reason = "a codec is chosen, not defaulted to")]
    pub const fn new() -> Self {
        Self { common: Bucketed::new(CodecId::Tree, 8), stochastic: false }
    }

    bucketed_settings!(
        "One bucket for the whole tensor. Costs a second read of the gradient, and draws 32 random bits per element if stochastic."
    );

    /// Rounded stochastically, so that decoding is unbiased.
    pub const fn stochastic(mut self) -> Self {
        self.stochastic = true;
        self
    }

    /// The contraction C(x)/(1 + omega).
    pub const fn contractive(mut self) -> Self {
        self.common.scaled = true;
        self
    }
}

impl Codec for Tree {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        Ok(EncodePlan { nearest: !self.stochastic, ..self.common.plan(n, dtype, false)? })
    }
}

impl Stage for Tree {
    const PLAIN: Self = Self::new();
    const SETTINGS: &'static [&'static str] = &["bucket", "stochastic", "contractive"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }

    fn flags(&mut self) -> Vec<(&'static str, &mut bool)> {
        vec![("stochastic", &mut self.stochastic)]
    }
}
