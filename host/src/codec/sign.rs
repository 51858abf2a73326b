//! Signs with a scale, as a user sets them up.

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite, Scale};
use crate::wire::CodecId;

/// Signs with a scale: EF-SignSGD with the mean of a bucket's magnitudes, SignSGD with 1.
///
/// Source: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression
/// schemes", ICML 2019, algorithm 1, whose bucket is a whole tensor; [`Sign::unit`]: Bernstein, Wang, Azizzadenesheli
/// and Anandkumar, "signSGD: Compressed optimisation for non-convex problems", ICML 2018, algorithm 1. Both in buckets
/// of 8192 unless said otherwise, so that the gradient is read once.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: 1 bit per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Biased**, so plans have error feedback, and [`crate::Device::encode_with_feedback`] keeps the residual;
///   [`Sign::without_feedback`] is for those who measure. [`Sign::unit`] has none.
/// * **Error**: |x - decode|^2 = |x|^2 - |x|_1^2/B <= (1 - 1/B) |x|^2 in a bucket of B elements, but for the rounding
///   of the mean; unbounded for [`Sign::unit`].
/// * **Seeds**: no random draw, so any seed gives the same payload.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: zeros of either sign count as above zero; a bucket of zeros has the scale 0 and decodes to zeros,
///   with [`Sign::unit`] to ones. NaN and infinity: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Seed, Sign};
/// let (device, gradient) = (Device::cpu(), [0.5f32, -1.0, 0.25, -2.25]);
/// let mut residual = [0.0; 4];
/// let payload = device.encode_with_feedback(&Sign::new(), &gradient, &mut residual, Seed::new(7))?;
/// assert_eq!(device.decode(&payload)?, [1.0, -1.0, 1.0, -1.0]);
/// assert_eq!(residual, [-0.5, 0.0, -0.75, -1.25]);
/// let signs = device.encode(&Sign::unit(), &[0.5f32, -8.0], Seed::new(7))?;
/// assert_eq!(device.decode(&signs)?, [1.0, -1.0]);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sign {
    pub(crate) common: Bucketed,
    unit: bool,
    feedback: bool,
}

impl Sign {
    /// EF-SignSGD: the mean of the bucket's magnitudes, buckets of 8192, and error feedback.
    #[expect(clippy::new_without_default, reason = "a codec is chosen, not defaulted to")]
    pub const fn new() -> Self {
        let common = Bucketed { bucket: Some(8192), ..Bucketed::new(CodecId::Sign, 1) };
        Self { common, unit: false, feedback: true }
    }

    /// SignSGD: every element becomes 1 or -1, without error feedback.
    pub const fn unit() -> Self {
        Self { unit: true, feedback: false, ..Self::new() }
    }

    bucketed_settings!("One bucket for the whole tensor. Costs a second read of the gradient.");

    /// No error feedback: nothing is kept of what decoding does not give back.
    pub const fn without_feedback(mut self) -> Self {
        self.feedback = false;
        self
    }
}

impl Codec for Sign {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        let plan = self.common.plan(n, dtype, false)?;
        // No bound of the error where the scale knows nothing of the bucket.
        let omega = if self.unit { f64::INFINITY } else { plan.omega };
        // To nearest, since nothing is drawn.
        let scale = if self.unit { Scale::One } else { Scale::Own };
        Ok(EncodePlan { nearest: true, scale, feedback: self.feedback, omega, ..plan })
    }
}

impl Stage for Sign {
    const PLAIN: Self = Self::new();
    const SETTINGS: &'static [&'static str] = &["bucket", "unit"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }

    fn flags(&mut self) -> Vec<(&'static str, &mut bool)> {
        vec![("unit", &mut self.unit)]
    }

    fn brings_feedback(&self) -> bool {
        !self.unit
    }

    fn has_feedback(&self) -> bool {
        self.feedback
    }

    fn alone(self) -> Self {
        self.without_feedback()
    }
}
