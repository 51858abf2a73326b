//! Natural compression and natural dithering, as a user sets them up.

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::CodecId;

/// Natural compression, and natural dithering: each magnitude is rounded stochastically to one of the two levels around
/// it, which are a power of two apart.
///
/// Source: Horváth, Ho, Horváth, Sahu, Canini and Richtárik, "Natural compression for distributed deep learning", 2019,
/// definitions 1 and 4. L = 2^(bits-1) - 1 levels are a bucket's scale times 2^0, 2^-1, ..., 2^(1-L), and zero. 8 bits
/// are natural compression: the scale is the smallest power of two that no magnitude passes, so that all levels are
/// powers of two. Fewer bits are natural dithering: the scale is the largest magnitude, which is its infinity norm.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: `bits` bits per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Unbiased**, to the resolution of the draws: 2^-17 of the distance of two levels, and exactly for natural
///   compression with a bucket of the whole tensor. Natural dithering rounds a magnitude's part of the scale to binary32
///   first, which moves it by 2^-22 of itself at most. In natural compression a magnitude above 2^127, the largest power
///   of two, becomes that.
/// * **Error**: a decoded magnitude is between half of its value and twice it, down to the lowest level, below which it
///   is zero or that level. Variance factor omega = 1/8 + min(B 4^-L, sqrt(B) 2^(1-L)), B elements per bucket; 1/8 for 8
///   bits. Magnitudes below 2^-126 become zero or 2^-126 in natural compression, and levels below that are rounded to
///   subnormal numbers in natural dithering, which omega leaves out.
/// * **Seeds**: each worker its own, by [`crate::Seed::worker`], so that rounding errors average out.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: numbers that are levels stay as they are (in natural dithering with one bucket for the whole tensor
///   with a probability of 1 - 2^-22 or more); signs are kept, also where the value is zero.
///   NaN and infinity: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Natural, Seed};
/// let (device, gradient) = (Device::cpu(), [1.0f32, -0.5, 0.25, 0.0, 3.0]);
/// let decoded = device.decode(&device.encode(&Natural::compression(), &gradient, Seed::new(7))?)?;
/// assert_eq!(decoded[..4], gradient[..4]);
/// assert!(decoded[4] == 2.0 || decoded[4] == 4.0);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Natural {
    pub(crate) common: Bucketed,
}

impl Natural {
    /// Codes of this width, 2 to 8 bits, in buckets of 512.
    pub const fn bits(bits: u32) -> Self {
        Self { common: Bucketed::new(CodecId::Natural, bits) }
    }

    /// Natural compression: 8 bits, buckets of 512.
    pub const fn compression() -> Self {
        Self::bits(8)
    }

    bucketed_settings!(
        "One bucket for the whole tensor. Costs a second read of the gradient, and draws 32 random bits per element."
    );

    /// The contraction C(x)/(1 + omega): biased, and what error feedback needs where omega is 1 or more.
    pub const fn contractive(mut self) -> Self {
        self.common.scaled = true;
        self
    }
}

impl Codec for Natural {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        self.common.plan(n, dtype, false)
    }
}

impl Stage for Natural {
    const PLAIN: Self = Self::compression();
    const SETTINGS: &'static [&'static str] = &["bits", "bucket", "contractive"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }
}
