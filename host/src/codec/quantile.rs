//! Quantile buckets, as a user sets them up.

use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::CodecId;

/// The quantile buckets of SketchML: a bucket's elements are cut at ranks into quantiles, and each is sent as the
/// quantile that it is in, which decodes to the mean of its elements.
///
/// Source: Jiang, Fu, Yang and Cui, "SketchML: Accelerating distributed machine learning with data sketches", SIGMOD
/// 2018, section 3.2 (quantile-bucket quantification). Here quantiles are exact, of a bucket and not of a sketch of the
/// whole tensor; the paper's sketch of indices and its keys are not here: a selection sends its own
/// ([`crate::TopK::then`]). Zeros have a quantile of their own; elements below zero and above it share the others in
/// proportion to their numbers.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: log2(levels) bits per element in whole units of 256 elements, 4 bytes per level and bucket, 32 bytes of
///   header. 64 levels in buckets of 4096 are 6.5 bits per element.
/// * **Biased**, to nearest in its way: error feedback is for the caller to choose.
/// * **Error**: |x - decode|^2 <= (1 - 1/B) |x|^2, B elements per bucket, but for the rounding of the means; no other
///   values for the same quantiles have less. What decoding does not give back adds up to zero in each quantile, to
///   2^-30 of the quantile's largest magnitude per element and binary32's own rounding. Decoding is monotone, and keeps
///   signs, but for means that are below the smallest subnormal number.
/// * **Seeds**: no random draw, so any seed gives the same payload.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: equal elements are in one quantile, and both zeros are equal, so quantiles may be larger than
///   others, or empty, which sends a mean of 0. A quantile of elements without an equal has q = 1.5 B/(levels - 1) of
///   them at most, rounded up. Exact are zeros, a bucket of one value, one of at most as many elements as levels, and
///   each value that a bucket has 2 q times or more. NaN and infinity: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Quantile, Seed};
/// let (device, gradient) = (Device::cpu(), [0.0f32, 0.25, 1.0, -3.0, 0.5, -1.0, 2.0, 0.25]);
/// let payload = device.encode(&Quantile::levels(4), &gradient, Seed::new(7))?;
/// assert_eq!(device.decode(&payload)?, [0.0, 0.25, 3.5 / 3.0, -2.0, 3.5 / 3.0, -2.0, 3.5 / 3.0, 0.25]);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantile {
    pub(crate) common: Bucketed,
}

impl Quantile {
    /// So many quantiles per bucket, a power of two from 4 to 256, in buckets of 4096.
    pub const fn levels(levels: u32) -> Self {
        let common = Bucketed { bucket: Some(4096), ..Bucketed::new(CodecId::Quantile, 0) };
        Self { common: common.of_levels(levels) }
    }

    /// Buckets of this many elements: a power of two from 256 to 4096, which a block of threads sorts in its own
    /// memory. There are none of whole tensors.
    pub const fn bucket(mut self, elements: usize) -> Self {
        self.common.bucket = Some(elements);
        self
    }

    /// What to do with NaN and infinity.
    pub const fn non_finite(mut self, policy: NonFinite) -> Self {
        self.common.non_finite = policy;
        self
    }
}

impl Codec for Quantile {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        let levels = self.common.levels.unwrap_or_default();
        if !levels.is_power_of_two() || !(4..=256).contains(&levels) {
            let (what, allowed) = ("the levels of quantile buckets", "a power of two from 4 to 256");
            return Err(Error::Setting { what, got: levels.into(), allowed });
        }
        // To nearest, since nothing is drawn.
        Ok(EncodePlan { nearest: true, ..self.common.plan(n, dtype, false)? })
    }
}

impl Stage for Quantile {
    const PLAIN: Self = Self::levels(64);
    const SETTINGS: &'static [&'static str] = &["levels", "bucket"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }
}
