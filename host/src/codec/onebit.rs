//! 1-bit SGD, as a user sets it up.

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::CodecId;

/// 1-bit SGD: an element is sent as its side of zero, and decodes to the mean of its bucket's elements on that side.
///
/// Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training
/// of speech DNNs", Interspeech 2014, where a bucket is a column of a matrix; buckets of 64 as in Grubic et al., EDBT
/// 2018, where it is 1bitSGD*. A column of its own length is a tensor of a [`crate::Layout`], with
/// [`OneBit::whole_tensor`].
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: 1 bit per element in whole units of 256 elements, 8 bytes per bucket, 32 bytes of header.
/// * **Biased**, so plans have error feedback, and [`crate::Device::encode_with_feedback`] keeps the residual;
///   [`OneBit::without_feedback`] is for those who measure.
/// * **Error**: |x - decode|^2 <= (1 - 1/B) |x|^2, B elements per bucket, but for the rounding of the means; no other
///   two values for the two sides have less. What decoding does not give back adds up to zero on each side of zero, to
///   2^-30 of the side's largest magnitude per element and binary32's own rounding.
/// * **Seeds**: no random draw, so any seed gives the same payload.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: zeros of either sign are on the upper side; a bucket of two values, one below zero, decodes
///   exactly; a side without elements has a mean of 0, and so may one whose mean is below the smallest subnormal
///   number. NaN and infinity: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, OneBit, Seed};
/// let (device, gradient) = (Device::cpu(), [0.5f32, -1.0, 0.25, -3.0]);
/// let mut residual = [0.0; 4];
/// let payload = device.encode_with_feedback(&OneBit::new(), &gradient, &mut residual, Seed::new(7))?;
/// assert_eq!(device.decode(&payload)?, [0.375, -2.0, 0.375, -2.0]);
/// assert_eq!(residual, [0.125, 1.0, -0.125, -1.0]);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneBit {
    pub(crate) common: Bucketed,
    feedback: bool,
}

impl OneBit {
    /// Buckets of 64, and error feedback.
    #[expect(clippy::new_without_default, reason = "a codec is chosen, not defaulted to")]
    pub const fn new() -> Self {
        Self { common: Bucketed { bucket: Some(64), ..Bucketed::new(CodecId::OneBit, 1) }, feedback: true }
    }

    bucketed_settings!("One bucket for the whole tensor. Costs a second read of the gradient.");

    /// No error feedback: nothing is kept of what decoding does not give back. Training with it does not converge in
    /// general.
    pub const fn without_feedback(mut self) -> Self {
        self.feedback = false;
        self
    }
}

impl Codec for OneBit {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        // To nearest, since nothing is drawn.
        Ok(EncodePlan { nearest: true, feedback: self.feedback, ..self.common.plan(n, dtype, false)? })
    }
}

impl Stage for OneBit {
    const PLAIN: Self = Self::new();
    const SETTINGS: &'static [&'static str] = &["bucket"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }

    fn brings_feedback(&self) -> bool {
        true
    }

    fn has_feedback(&self) -> bool {
        self.feedback
    }

    fn alone(self) -> Self {
        self.without_feedback()
    }
}
