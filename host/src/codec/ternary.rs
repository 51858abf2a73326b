//! Ternary codes, as a user sets them up.

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Number, Stage};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite, Scale};
use crate::wire::{CodecId, Entropy};

/// Ternary codes: each element becomes minus the scale of its bucket, zero, or the scale.
///
/// Source: Wen, Xu, Yan, Wu, Wang, Chen and Li, "TernGrad: Ternary gradients to reduce communication in distributed
/// deep learning", NIPS 2017, equations 2, 3 and 11; [`Ternary::nearest`]: Lim, Andersen and Kaminsky, "3LC:
/// Lightweight and effective traffic compression for distributed machine learning", SysML 2019, equations 1 to 3.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: 2 bits per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Unbiased**, to the resolution of the draws: 2^-17 of the scale, and 2^-24 for a whole-tensor bucket. The scale S
///   is the largest magnitude. **Variance**: E|decode - x|^2 = S |x|_1 - |x|^2 in a bucket, which is omega |x|^2 at
///   most with omega = min(B/4, sqrt(B)/2), B elements per bucket.
/// * [`Ternary::clipped`] is biased, and has less variance. [`Ternary::nearest`] is biased, and its plans have error
///   feedback.
/// * **Seeds**: each worker its own, by [`crate::Seed::worker`], so that rounding errors average out; to nearest,
///   nothing is drawn, and any seed gives the same payload.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: signs are kept, also where the value is zero. A bucket of zeros has the scale 0. NaN and infinity:
///   [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Seed, Ternary};
/// let (device, gradient) = (Device::cpu(), [2.0f32, -0.5, 0.0, -1.0]);
/// let decoded = device.decode(&device.encode(&Ternary::new(), &gradient, Seed::new(7))?)?;
/// assert_eq!((decoded[0], decoded[2]), (2.0, 0.0));
/// assert!(decoded.iter().all(|v| [-2.0, 0.0, 2.0].contains(v)));
/// let nearest = device.encode(&Ternary::nearest(1.0).without_feedback(), &gradient, Seed::new(7))?;
/// assert_eq!(device.decode(&nearest)?, [2.0, 0.0, 0.0, -2.0]);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ternary {
    pub(crate) common: Bucketed,
    clip: Option<f64>,
    stretch: Option<f64>,
    feedback: bool,
    entropy: Entropy,
}

/// What a clip may be.
const CLIP: &str = "a number above 0 and up to 1000";
/// What a stretch may be.
const STRETCH: &str = "a number from 1 to less than 2";

impl Ternary {
    /// TernGrad without clipping: stochastic and unbiased, in buckets of 512.
    #[expect(clippy::new_without_default, reason = "a codec is chosen, not defaulted to")]
    pub const fn new() -> Self {
        Self {
            common: Bucketed::new(CodecId::Ternary, 2),
            clip: None,
            stretch: None,
            feedback: false,
            entropy: Entropy::None,
        }
    }

    /// 3LC: to nearest, with a scale of `stretch` times the largest magnitude, 1 to less than 2, in buckets of 512, and
    /// with error feedback. Magnitudes of half of the scale or more become the scale, so a larger stretch makes more
    /// zeros.
    ///
    /// A contraction: E|decode - x|^2 <= (1 - stretch (2 - stretch)/B) |x|^2 in a bucket of B elements.
    pub const fn nearest(stretch: f64) -> Self {
        Self { stretch: Some(stretch), feedback: true, ..Self::new() }
    }

    /// The scale is at most `deviations` standard deviations of the bucket, and larger magnitudes count as the scale:
    /// TernGrad's gradient clipping, for which the paper has 2.5. Above 0, and up to 1000.
    ///
    /// Biased where elements are clipped: 2.5 deviations take 4 % of the norm of values spread as a bell, and more of
    /// gradients, whose tails are heavier. The deviation is about zero and not about the mean, so that equal elements
    /// keep their value. It is held to 2^-17 of itself at least. Costs a second look at each bucket.
    pub const fn clipped(mut self, deviations: f64) -> Self {
        self.clip = Some(deviations);
        self
    }

    bucketed_settings!(
        "One bucket for the whole tensor, as in the papers. Costs a second read of the gradient, and draws 32 random bits per \
         element unless to nearest."
    );

    /// The contraction C(x)/(1 + omega) of the unbiased codec, which error feedback needs.
    pub const fn contractive(mut self) -> Self {
        self.common.scaled = true;
        self
    }

    /// No error feedback: nothing is kept of what decoding does not give back.
    pub const fn without_feedback(mut self) -> Self {
        self.feedback = false;
        self
    }

    /// The payload with its codes packed as Elias gamma codes, as [`Qsgd::elias`](crate::Qsgd::elias): a zero takes 1
    /// bit, and others take 4. It pays where more than two thirds are zero, as with a scale of the whole tensor.
    ///
    /// ```
    /// use gradwire::{Device, Seed, Ternary};
    /// let gradient: Vec<f32> = (0..10_000).map(|i| (i as f32).sin().powi(9)).collect();
    /// let (device, codec) = (Device::cpu(), Ternary::nearest(1.5).whole_tensor().without_feedback());
    /// let [fixed, packed] = [codec, codec.elias()].map(|codec| device.encode(&codec, &gradient, Seed::new(1)));
    /// assert!(packed?.as_bytes().len() * 10 < fixed?.as_bytes().len() * 8);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn elias(mut self) -> Self {
        self.entropy = Entropy::Elias;
        self
    }

    /// The payload with its codes packed in base 3, as 3LC sends them: five in a byte, which is 1.6 bits per element,
    /// and 2 to 14 bytes of zeros in one. It pays always; beside Elias codes where fewer than two thirds are zero, or
    /// nearly all.
    ///
    /// The length is known only once the codes are made: [`Qsgd::elias`](crate::Qsgd::elias) says what that means.
    ///
    /// ```
    /// use gradwire::{Device, Seed, Ternary};
    /// let gradient: Vec<f32> = (0..100_000).map(|i| (i as f32).sin()).collect();
    /// let codec = Ternary::new().whole_tensor().base3();
    /// let sent = Device::cpu().encode(&codec, &gradient, Seed::new(1))?;
    /// assert!(sent.as_bytes().len() * 8 < 166 * gradient.len() / 100);
    /// let sent = Device::cpu().encode(&codec, &[0.0f32; 100_000], Seed::new(1))?;
    /// assert!(sent.as_bytes().len() * 8 < 17 * gradient.len() / 100);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn base3(mut self) -> Self {
        self.entropy = Entropy::Base3;
        self
    }

    /// The payload with its codes packed as places and signs of those that are not zero, as
    /// [`Qsgd::sparse`](crate::Qsgd::sparse).
    pub const fn sparse(mut self) -> Self {
        self.entropy = Entropy::Sparse;
        self
    }

    /// What a bucket's scale is made of, all settings checked.
    fn scale(&self) -> Result<Scale, Error> {
        let wrong = |what, got, allowed| Err(Error::Setting { what, got, allowed });
        match (self.clip, self.stretch) {
            (Some(got), Some(_)) => wrong("the clip of codes to nearest", got, "left out"),
            (Some(got), None) if !(got as f32 > 0.0 && got <= 1000.0) => wrong("the clip", got, CLIP),
            (None, Some(got)) if !(got >= 1.0 && (got as f32) < 2.0) => wrong("the stretch", got, STRETCH),
            (Some(got), _) if self.common.scaled => wrong("the clip of a contraction", got, "left out: it is biased"),
            (_, Some(got)) if self.common.scaled => {
                wrong("the stretch of a contraction", got, "without contractive(): it is one already")
            }
            (Some(clip), None) => Ok(Scale::Clipped(clip as f32)),
            (None, Some(stretch)) => Ok(Scale::Stretched(stretch as f32)),
            (None, None) => Ok(Scale::Own),
        }
    }
}

impl Codec for Ternary {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        let _environment = FloatEnvironment::standard();
        let plan = self.common.plan(n, dtype, false)?;
        let scale = self.scale()?;
        let omega = match scale {
            // The part of an element that is cut off has no bound.
            Scale::Clipped(_) => f64::INFINITY,
            Scale::Stretched(s) => {
                let elements = plan.header.bucket.elements(plan.header.n).max(1) as f64;
                1.0 - f64::from(s) * (2.0 - f64::from(s)) / elements
            }
            _ => plan.omega,
        };
        let nearest = self.stretch.is_some();
        EncodePlan { nearest, scale, feedback: self.feedback, omega, ..plan }.packed(self.entropy)
    }
}

impl Stage for Ternary {
    const PLAIN: Self = Self::new();
    const SETTINGS: &'static [&'static str] = &["clip", "stretch", "bucket", "contractive"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }

    fn numbers(&mut self) -> Vec<Number<'_>> {
        vec![("clip", CLIP, &mut self.clip), ("stretch", STRETCH, &mut self.stretch)]
    }

    fn brings_feedback(&self) -> bool {
        self.stretch.is_some()
    }

    fn has_feedback(&self) -> bool {
        self.feedback
    }

    fn entropy(&self) -> Entropy {
        self.entropy
    }

    fn packed(mut self, entropy: Entropy) -> Self {
        self.entropy = entropy;
        self
    }

    fn alone(mut self) -> Self {
        (self.feedback, self.entropy) = (false, Entropy::None);
        self
    }
}
