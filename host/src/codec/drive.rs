//! DRIVE, as a user sets it up.

use super::settings::bucketed_settings;
use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::CodecId;

/// DRIVE: signs with the scale S = |y|_2^2 / |y|_1 of a bucket y that [`crate::Recipe::rotate`] or
/// [`crate::Device::rotate`] made of a gradient.
///
/// Source: Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak and Mitzenmacher, "DRIVE: One-bit distributed mean
/// estimation", NeurIPS 2021, algorithm 1 with the scale of theorem 1. [`crate::Sign::new`] has their other scale, the
/// mean of the magnitudes, which has the least error and is biased. Buckets of 8192 unless said otherwise; in the paper
/// a vector is one block and one bucket.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: 1 bit per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Unbiased after a rotation that is uniformly random**, of which the bucket is one block (theorem 1): what is
///   decoded has the inner product |y|^2 with y, and nothing tells one direction across y from another.
///   [`crate::Rotation`] is a Hadamard matrix after random signs, of which that holds only nearly: the more elements
///   share the norm of a block, the nearer. But for rounding, an element alone in its block comes back as
///   it was. Of two, a and a smaller b, the first comes back as (a^2 + b^2) / a and the second as 0, whatever the
///   signs. Without a rotation the codec is biased. Plans and promises never say that it is unbiased.
/// * **Error**: |y - decode|^2 = |y|^2 (B |y|^2 / |y|_1^2 - 1) in a bucket of B elements, but for the rounding of S.
///   This is (B - 1) |y|^2 at most, and omega of plans is B - 1, but at least 1; of a large block after a rotation
///   about pi/2 - 1 = 0.571 of |y|^2.
/// * **No error feedback**: the error may be larger than the gradient. Scaled down until it is a contraction, the codec
///   is [`crate::Sign::new`].
/// * **Rounding**: magnitudes lose less than 2^-23 of the largest in their bucket (twice that in a whole tensor). S is
///   the quotient of the sums, off by less than 2^-28 of the largest magnitude, rounded to binary32.
/// * **Seeds**: no random draw, so any seed gives the same payload. The rotation has draws.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: a bucket of equal magnitudes comes back exactly; zeros of either sign count as above zero; a
///   bucket of zeros has the scale 0 and decodes to zeros. NaN and infinity: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Drive, Recipe, Rotation, Seed};
/// let (device, rotated) = (Device::cpu(), [3.0f32, -1.0, 3.0, -1.0]);
/// let decoded = device.decode(&device.encode(&Drive::new(), &rotated, Seed::new(7))?)?;
/// assert_eq!(decoded, [2.5, -2.5, 2.5, -2.5]); // (9 + 1 + 9 + 1) / (3 + 1 + 3 + 1)
/// // A recipe brings the rotation: its blocks are the buckets, and each rank has its own signs.
/// let recipe = Recipe::from(Drive::new().bucket(1024));
/// assert_eq!(recipe, recipe.clone().rotate(Rotation::block(1024).own()));
/// assert_eq!(recipe, "drive:bucket=1024".parse()?);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drive {
    pub(crate) common: Bucketed,
}

impl Drive {
    /// Buckets of 8192.
    #[expect(clippy::new_without_default, reason = "a codec is chosen, not defaulted to")]
    pub const fn new() -> Self {
        Self { common: Bucketed { bucket: Some(8192), ..Bucketed::new(CodecId::Drive, 1) } }
    }

    bucketed_settings!("One bucket for the whole tensor, which recipes refuse. Costs a second read of the gradient.");
}

impl Codec for Drive {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        // To nearest, since nothing is drawn.
        Ok(EncodePlan { nearest: true, ..self.common.plan(n, dtype, false)? })
    }
}

impl Stage for Drive {
    const PLAIN: Self = Self::new();
    const SETTINGS: &'static [&'static str] = &["bucket"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }
}
