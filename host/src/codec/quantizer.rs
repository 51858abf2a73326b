//! One quantizer, whichever it is.

use super::{Codec, Stage, quantizers};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::Entropy;

macro_rules! of_table {
    ($($(#[$doc:meta])* $file:ident, $codec:ident, $word:literal;)+) => {
        /// A quantizer, whichever it is: of whole gradients, and of the values that a selection keeps.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Quantizer {
            $(
                $(#[$doc])*
                #[doc = concat!("`", $word, "` in a recipe's text.")]
                $codec(crate::codec::$codec),
            )+
        }

        $(
            impl From<crate::codec::$codec> for Quantizer {
                fn from(codec: crate::codec::$codec) -> Self {
                    Self::$codec(codec)
                }
            }
        )+

        impl Codec for Quantizer {
            fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
                match self {
                    $(Self::$codec(codec) => codec.plan(n, dtype),)+
                }
            }
        }

        impl Quantizer {
            /// The words of all, with a comma and a space after each.
            pub(crate) const WORDS: &str = concat!($($word, ", "),+);

            /// Whether a stage of this name is one.
            pub(crate) fn is_word(name: &str) -> bool {
                matches!(name, $($word)|+)
            }

            /// Without what is a stage of its own or a recipe's policy; and the policy, and how codes are packed.
            pub(crate) fn alone(self) -> (Self, NonFinite, Entropy) {
                match self {
                    $(Self::$codec(codec) => {
                        let mut alone = codec.alone();
                        let policy = std::mem::replace(&mut alone.common().non_finite, NonFinite::Propagate);
                        (alone.into(), policy, codec.entropy())
                    })+
                }
            }

            /// The same with this policy, and with its codes packed so, if they can be.
            pub(crate) fn with(self, policy: NonFinite, entropy: Entropy) -> Self {
                match self {
                    $(Self::$codec(codec) => codec.packed(entropy).non_finite(policy).into(),)+
                }
            }

            /// Whether its codes can be packed so.
            pub(crate) fn takes(self, entropy: Entropy) -> bool {
                match self {
                    $(Self::$codec(mut codec) => {
                        let common = codec.common();
                        entropy.fits(common.codec, common.bits, common.levels.unwrap_or_default())
                    })+
                }
            }

            /// Whether error feedback belongs to it.
            pub(crate) fn brings_feedback(self) -> bool {
                match self {
                    $(Self::$codec(codec) => codec.brings_feedback(),)+
                }
            }

            /// The word and the settings as they stand in a text.
            pub(crate) fn words(self) -> (&'static str, Vec<String>) {
                match self {
                    $(Self::$codec(codec) => ($word, codec.words()),)+
                }
            }
        }
    };
}
quantizers!(of_table);

impl Quantizer {
    /// The bucket of a codec that is of rotated gradients alone, each bucket a block.
    pub(crate) fn rotated_bucket(self) -> Option<usize> {
        match self {
            Self::Drive(codec) => codec.common.bucket,
            Self::Eden(codec) => codec.common.bucket,
            _ => None,
        }
    }

    /// Whether it is of rotated gradients alone.
    pub(crate) fn is_of_rotated(self) -> bool {
        matches!(self, Self::Drive(_) | Self::Eden(_))
    }

    /// Whether it is of signs without a scale of the bucket.
    pub(crate) fn is_sign_alone(self) -> bool {
        matches!(self, Self::Sign(codec) if !codec.brings_feedback())
    }
}
