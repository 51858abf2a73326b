//! EDEN, as a user sets it up.

use super::{Bucketed, Codec, Stage};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::CodecId;

/// EDEN: each element of a bucket y that [`crate::Recipe::rotate`] or [`crate::Device::rotate`] made of a gradient is
/// sent as the nearest of 2^b centroids c, with the scale S = |y|_2^2 / <y, c>.
///
/// Source: Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak and Mitzenmacher, "EDEN: Communication-efficient and
/// robust distributed mean estimation for federated learning", ICML 2022, algorithm 1 and theorem 2.1. Centroids are
/// those of Lloyd and Max for a normal distribution, which the elements y_i sqrt(B) / |y|_2 of a rotated bucket of B
/// are nearly of. Codes of one bit are those of [`crate::Drive`]. Widths are whole; the paper's fractions of a bit,
/// which leave out elements, are not here. Buckets of 8192 unless said otherwise; in the paper a vector is one block
/// and one bucket.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Size**: `bits` bits per element in whole units of 256 elements, 4 bytes per bucket, 32 bytes of header.
/// * **Unbiased after a rotation that is uniformly random**, of which the bucket is one block (theorem 2.1): what is
///   decoded has the inner product |y|^2 with y, and nothing tells one direction across y from another.
///   [`crate::Rotation`] is a Hadamard matrix after random signs, of which that holds only nearly: the more elements
///   share the norm of a block, the nearer. Without a rotation the codec is biased. Plans and promises never say that
///   it is unbiased.
/// * **Error**: |y - decode|^2 = |y|^2 (|c|^2 |y|^2 / <y, c>^2 - 1), but for the rounding of S. Of a large block after
///   a rotation this is about 0.571, 0.133, 0.0358 and 0.00959 of |y|^2 with 1 to 4 bits, which is D / (1 - D), D what
///   the centroids lose of a normal distribution. Of any bucket it is B (l + h)^2 / (4 l h) - 1 at most, l the lowest
///   centroid above zero and h the highest; omega of plans is that, but at least 1.
/// * **No error feedback**: the error may be larger than the gradient, of a bucket that is no rotation's.
/// * **Rounding**: magnitudes lose less than 2^-23 of the largest in their bucket, centroids are multiples of 2^-13,
///   and where an element changes its centroid is within 2^-16 of the midpoint, relatively, in a bucket whose largest
///   magnitude is no subnormal number. S is the quotient of the sums, off by less than 2^-27 of the largest magnitude,
///   rounded to binary32, and at most the largest finite number, as values are.
/// * **Seeds**: no random draw, so any seed gives the same payload. The rotation has draws.
/// * **Determinism**: backend to backend.
/// * **Edge cases**: zeros of either sign count as above zero, and decode to the lowest centroid; a bucket of zeros has
///   the scale 0 and decodes to zeros. NaN and infinity: [`NonFinite`].
///
/// ```
/// use gradwire::{Device, Eden, Recipe, Rotation, Seed};
/// let (device, rotated) = (Device::cpu(), [3.0f32, -1.0, 0.5, -1.0]);
/// let decoded = device.decode(&device.encode(&Eden::bits(2), &rotated, Seed::new(7))?)?;
/// // Centroids of 2 bits are 0.4528 and 1.5104; 0.9816 is between them, times |y| / 2 = 1.677.
/// let scale = 11.25 / (3.0 * 1.5104 + 2.5 * 0.4528);
/// for (value, centroid) in decoded.iter().zip([1.5104, -0.4528, 0.4528, -0.4528]) {
///     assert!((value - scale * centroid).abs() < 1e-3);
/// }
/// // A recipe brings the rotation: its blocks are the buckets, and each rank has its own signs.
/// let recipe = Recipe::from(Eden::bits(4).bucket(1024));
/// assert_eq!(recipe, recipe.clone().rotate(Rotation::block(1024).own()));
/// assert_eq!(recipe, "eden:bits=4,bucket=1024".parse()?);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Eden {
    pub(crate) common: Bucketed,
}

impl Eden {
    /// Codes of `bits` bits, 1 to 4, in buckets of 8192.
    pub const fn bits(bits: u32) -> Self {
        Self { common: Bucketed { bucket: Some(8192), ..Bucketed::new(CodecId::Eden, bits) } }
    }

    /// Buckets of this many elements: a power of two from 32 to 8192. There are none of whole tensors: the scale is of
    /// codes, which are not known when a tensor's parts are measured.
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

impl Codec for Eden {
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
        // To nearest, since nothing is drawn.
        Ok(EncodePlan { nearest: true, ..self.common.plan(n, dtype, false)? })
    }
}

impl Stage for Eden {
    const PLAIN: Self = Self::bits(4);
    const SETTINGS: &'static [&'static str] = &["bits", "bucket"];

    fn common(&mut self) -> &mut Bucketed {
        &mut self.common
    }
}
