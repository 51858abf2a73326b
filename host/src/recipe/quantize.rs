//! How the values of a recipe are written.

use crate::codec::topk::TopK;
use crate::codec::{Codec, Quantizer, quantizers};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::Entropy;

/// How the values that are sent are written.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Quantize {
    /// As they are.
    Exact,
    /// Rounded to this type. Values of a selection alone.
    Round(Dtype),
    /// Quantized.
    By(Quantizer),
}

impl Quantize {
    /// Without what is a stage of its own or the recipe's policy; and the policy, and how codes are packed.
    pub(super) fn alone(self) -> (Self, NonFinite, Entropy) {
        match self {
            Self::By(codec) => {
                let (alone, policy, entropy) = codec.alone();
                (Self::By(alone), policy, entropy)
            }
            Self::Round(Dtype::F32) => (Self::Exact, NonFinite::Propagate, Entropy::None),
            _ => (self, NonFinite::Propagate, Entropy::None),
        }
    }

    /// How `n` values are encoded under this policy, if a quantizer does it.
    pub(super) fn plan(self, n: usize, policy: NonFinite) -> Option<Result<EncodePlan, Error>> {
        let Self::By(codec) = self else { return None };
        Some(codec.with(policy, Entropy::None).plan(n, Dtype::F32))
    }

    /// A selection with its values written so, and packed so.
    pub(super) fn behind(self, select: TopK, entropy: Entropy) -> TopK {
        match self {
            Self::By(codec) => select.then(codec.with(NonFinite::Propagate, entropy)),
            Self::Round(dtype) => select.values(dtype),
            Self::Exact => select,
        }
    }

    /// Whether its codes can be packed so.
    pub(super) fn takes(self, entropy: Entropy) -> bool {
        match self {
            Self::By(codec) => codec.takes(entropy),
            _ => entropy == Entropy::None,
        }
    }

    /// Whether error feedback belongs to it.
    pub(super) fn brings_feedback(self) -> bool {
        matches!(self, Self::By(codec) if codec.brings_feedback())
    }

    /// The bucket of a codec that is of rotated gradients alone.
    pub(super) fn rotated_bucket(self) -> Option<usize> {
        if let Self::By(codec) = self { codec.rotated_bucket() } else { None }
    }

    /// Whether it is of rotated gradients alone.
    pub(super) fn is_of_rotated(self) -> bool {
        matches!(self, Self::By(codec) if codec.is_of_rotated())
    }

    /// Whether it is of signs without a scale of the bucket.
    pub(super) fn is_sign_alone(self) -> bool {
        matches!(self, Self::By(codec) if codec.is_sign_alone())
    }

    /// The word and the settings as they stand in a text.
    pub(super) fn words(self) -> Option<(&'static str, Vec<String>)> {
        match self {
            Self::By(codec) => Some(codec.words()),
            Self::Round(dtype) => Some((dtype.name(), Vec::new())),
            Self::Exact => None,
        }
    }
}

impl From<Dtype> for Quantize {
    fn from(dtype: Dtype) -> Self {
        Self::Round(dtype)
    }
}

macro_rules! of_table {
    ($($(#[$doc:meta])* $file:ident, $codec:ident, $word:literal;)+) => {$(
        impl From<crate::codec::$codec> for Quantize {
            fn from(codec: crate::codec::$codec) -> Self {
                Self::By(codec.into())
            }
        }
    )+};
}
quantizers!(of_table);
