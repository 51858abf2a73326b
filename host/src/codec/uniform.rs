//! Stochastic uniform quantization, as a user sets it up.

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::CodecId;

/// Uniform quantization between each bucket's minimum and maximum, rounded stochastically or to nearest.
///
/// Source: Suresh et al., "Distributed mean estimation with limited communication", ICML 2017, section 2.2.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: `bits` bits per element in whole units of 256 elements, 8 bytes per bucket, 32 bytes of header.
/// * **Unbiased** with stochastic rounding, to the resolution of the draws: 2^-17 of a level (2^-23 for a whole-tensor
///   bucket) and binary32's own rounding.
/// * **Error**: at most (max - min)/L per element, half of that with nearest rounding, L = 2^bits - 1, and binary32's
///   own rounding: 2^-21 (max - min) + 2^-24 max(|min|, |max|) + 2^-150. So in a range of a few last places, and there
///   alone, it is the numbers' own spacing that counts. Not of the contraction, which scales what is decoded. Variance
///   factor omega = B/(2 L^2), B elements per bucket.
/// * **Seeds**: each worker its own, by [`crate::Seed::worker`], so that rounding errors average out.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: minimum and maximum decode exactly, so a constant bucket does; zeros lose their sign. Beside an
///   extreme of 2^126 or more, one below 2^-125 may lose its last bit.
///   NaN and infinity: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Seed, Uniform};
/// let gradient: Vec<f32> = (0..1000).map(|i| i as f32).collect();
/// let device = Device::cpu();
/// let payload = device.encode(&Uniform::bits(8).bucket(256).nearest(), &gradient, Seed::new(7))?;
/// let decoded = device.decode(&payload)?;
/// assert!(gradient.iter().zip(&decoded).all(|(x, y)| (x - y).abs() <= 0.51));
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uniform {
    pub(crate) common: Bucketed,
    nearest: bool,
}

impl Uniform {
    /// Codes of this width, 1 to 8 bits, buckets of 512, stochastic rounding.
    pub const fn bits(bits: u32) -> Self {
        Self { common: Bucketed::new(CodecId::Uniform, bits), nearest: false }
    }

    bucketed_settings!(
        "One bucket for the whole tensor. Costs a second read of the gradient, and draws 32 random bits per element."
    );

    /// Round to nearest, ties up: half the error, and biased.
    pub const fn nearest(mut self) -> Self {
        self.nearest = true;
        self
    }

    /// The contraction C(x)/(1 + omega): biased, and what error feedback needs where omega is 1 or more.
    pub const fn contractive(mut self) -> Self {
        self.common.scaled = true;
        self
    }
}

impl Codec for Uniform {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        Ok(EncodePlan { nearest: self.nearest, ..self.common.plan(n, dtype, false)? })
    }
}

impl Stage for Uniform {
    const PLAIN: Self = Self::bits(8);
    const SETTINGS: &'static [&'static str] = &["bits", "bucket", "nearest", "contractive"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }

    fn flags(&mut self) -> Vec<(&'static str, &mut bool)> {
        vec![("nearest", &mut self.nearest)]
    }
}
