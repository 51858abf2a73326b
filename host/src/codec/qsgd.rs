//! QSGD, as a user sets it up.

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::{CodecId, Entropy};

/// QSGD: every magnitude, as a fraction of its bucket's norm, rounded stochastically to one of `s` levels.
///
/// Source: Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding", NIPS 2017,
/// section 3.1; fixed-width codes and buckets as in Grubic et al., "Synchronous multi-GPU deep learning with
/// low-precision communication", EDBT 2018.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: `bits` bits per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Unbiased**: E\[decode\] = x, to the resolution of the draws: 2^-17 of a level (2^-24 up to 8 bits, for a
///   whole-tensor bucket), and binary32's own rounding.
/// * **Variance**: E|decode - x|^2 <= omega |x|^2 with omega = min(B/(4 s^2), sqrt(B)/s), B elements a bucket.
/// * **Seeds**: each worker its own, by [`crate::Seed::worker`], so that rounding errors average out.
/// * **Determinism**: backend to backend. The same input and seed give the same bytes on every backend.
/// * **Edge cases**: -0.0 keeps its sign; a bucket of zeros decodes to zeros; subnormal and huge buckets are exact to
///   the same relative resolution; an L2 norm above the largest finite number is that number. NaN and infinity:
///   [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Qsgd, Seed};
/// let codec = Qsgd::bits(4).bucket(512);
/// let gradient: Vec<f32> = (0..5000).map(|i| (i as f32).sin()).collect();
/// let device = Device::cpu();
/// let payload = device.encode(&codec, &gradient, Seed::new(7))?;
/// assert!(payload.as_bytes().len() * 7 < gradient.len() * 4);
/// let decoded = device.decode(&payload)?;
/// for (x, y) in gradient.iter().zip(&decoded) {
///     assert!((x - y).abs() <= 1.0 / 7.0 + 1e-6); // one level of a bucket whose largest magnitude is 1
/// }
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qsgd {
    pub(crate) common: Bucketed,
    l2: bool,
    entropy: Entropy,
}

impl Qsgd {
    /// The 2-bit setting of Grubic et al. 2018, table 2: buckets of 128, largest magnitude as the norm.
    pub const BITS_2: Self = Self::bits(2).bucket(128);
    /// The 4-bit setting of Grubic et al. 2018: buckets of 512.
    pub const BITS_4: Self = Self::bits(4).bucket(512);
    /// The 8-bit setting of Grubic et al. 2018: buckets of 512.
    pub const BITS_8: Self = Self::bits(8).bucket(512);
    /// The 16-bit setting of Grubic et al. 2018: buckets of 8192.
    pub const BITS_16: Self = Self::bits(16).bucket(8192);

    /// Codes of this width, 2 to 8 or 16 bits, with all the levels they hold (2^(bits-1) - 1), buckets of 512, and
    /// the largest magnitude as the norm.
    pub const fn bits(bits: u32) -> Self {
        Self { common: Bucketed::new(CodecId::Qsgd, bits), l2: false, entropy: Entropy::None }
    }

    /// This many levels, 1 to 32767, in the narrowest codes that hold them.
    ///
    /// ```
    /// use gradwire::{Codec, Dtype, Qsgd};
    /// assert_eq!(Qsgd::levels(5).plan(1, Dtype::F32)?.header().bits(), 4);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn levels(levels: u32) -> Self {
        Self { common: Bucketed::new(CodecId::Qsgd, 0).of_levels(levels), l2: false, entropy: Entropy::None }
    }

    bucketed_settings!(
        "One bucket for the whole tensor. Costs a second read of the gradient, and draws 32 random bits per element."
    );

    /// The bucket's L2 norm as the scale, as in the paper; the default is the largest magnitude, which has less error.
    pub const fn l2(mut self) -> Self {
        self.l2 = true;
        self
    }

    /// The payload with its codes packed, as Elias gamma codes of level + 1: [`Device::pack`](crate::Device::pack) says
    /// more.
    ///
    /// It pays where most levels are small: with [`Qsgd::l2`], whose levels sum to L sqrt(B) at most in a bucket of B
    /// in the mean. Beside the largest magnitude of a small bucket most levels are not small, and the payload gets
    /// longer: of values that are spread as a bell, by a fifth at 4 bits in buckets of 512.
    ///
    /// The length is known only once the codes are made. So what needs it before refuses such a codec:
    /// [`Device::encode_plan_into`](crate::Device::encode_plan_into), plans of many tensors, and work in a caller's
    /// memory.
    ///
    /// ```
    /// use gradwire::{Device, Qsgd, Seed};
    /// let (device, codec) = (Device::cpu(), Qsgd::bits(8).whole_tensor().l2());
    /// let gradient: Vec<f32> = (0..10_000).map(|i| (i as f32).sin()).collect();
    /// let fixed = device.encode(&codec, &gradient, Seed::new(1))?;
    /// let packed = device.encode(&codec.elias(), &gradient, Seed::new(1))?;
    /// assert!(2 * packed.as_bytes().len() < fixed.as_bytes().len());
    /// assert_eq!(device.decode(&packed)?, device.decode(&fixed)?);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn elias(mut self) -> Self {
        self.entropy = Entropy::Elias;
        self
    }

    /// The payload with its codes packed, as Elias delta codes of level + 1 ([`Entropy::Delta`]); else as
    /// [`Qsgd::elias`]. It pays where levels of 31 and more are usual: with codes of 8 and 16 bits.
    ///
    /// ```
    /// use gradwire::{Device, Qsgd, Seed};
    /// let (device, codec) = (Device::cpu(), Qsgd::bits(16));
    /// let gradient: Vec<f32> = (0..10_000).map(|i| (i as f32).sin()).collect();
    /// let bytes = |codec: Qsgd| device.encode(&codec, &gradient, Seed::new(1)).map(|payload| payload.as_bytes().len());
    /// assert!(bytes(codec.delta())? < bytes(codec.elias())?);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn delta(mut self) -> Self {
        self.entropy = Entropy::Delta;
        self
    }

    /// The payload with its codes, which have 2 bits, packed in base 3, as [`Ternary::base3`](crate::Ternary::base3).
    /// Codes of more bits are refused where a tensor is planned.
    pub const fn base3(mut self) -> Self {
        self.entropy = Entropy::Base3;
        self
    }

    /// The payload with its codes packed as places and levels of those that are not zero ([`Entropy::Sparse`]), as the
    /// paper sends them. It pays where fewer than one in ten is not zero: with [`Qsgd::l2`], few levels and large
    /// buckets. The paper's theorem 3.2 has a bound for its length.
    ///
    /// ```
    /// use gradwire::{Device, Qsgd, Seed};
    /// let (device, codec) = (Device::cpu(), Qsgd::bits(2).whole_tensor().l2());
    /// let gradient: Vec<f32> = (0..1_000_000).map(|i| (i as f32).sin()).collect();
    /// let bytes = |codec: Qsgd| device.encode(&codec, &gradient, Seed::new(1)).map(|payload| payload.as_bytes().len());
    /// assert!(bytes(codec)? > 250_000 && bytes(codec.elias())? > 125_000);
    /// assert!(bytes(codec.sparse())? < 2_000);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn sparse(mut self) -> Self {
        self.entropy = Entropy::Sparse;
        self
    }

    /// The contraction C(x)/(1 + omega): biased, and what error feedback needs where omega is 1 or more.
    pub const fn contractive(mut self) -> Self {
        self.common.scaled = true;
        self
    }
}

impl Codec for Qsgd {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        self.common.plan(n, dtype, self.l2)?.packed(self.entropy)
    }
}

impl Stage for Qsgd {
    const PLAIN: Self = Self::bits(4);
    const SETTINGS: &'static [&'static str] = &["bits", "levels", "bucket", "l2", "contractive"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }

    fn flags(&mut self) -> Vec<(&'static str, &mut bool)> {
        vec![("l2", &mut self.l2)]
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
