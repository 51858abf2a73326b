//! The table of quantizers, and how the values of a recipe are written.

use super::Recipe;
use crate::codec::topk::TopK;
use crate::codec::{Codec, Stage};
use crate::entropy::table::Entropy;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};

/// Hands the quantizers to a macro: type, word in a text, name in a message, and how it goes behind a selection, where it
/// does.
macro_rules! quantizers {
    ($then:ident) => {
        $then! {
            /// By QSGD.
            Qsgd, "qsgd", "QSGD", then_qsgd;
            /// Uniformly, between minimum and maximum.
            Uniform, "uniform", "uniform", then_uniform;
            /// By 1-bit SGD. Not of a selection.
            OneBit, "onebit", "1-bit SGD";
            /// By a cast to a small floating-point format. Not of a selection.
            Float, "float", "casts of whole gradients";
            /// By signs with a scale. Not of a selection.
            Sign, "sign", "signs";
            /// By ternary codes. Not of a selection.
            Ternary, "ternary", "ternary codes";
            /// By a dynamic tree. Not of a selection.
            Tree, "tree", "dynamic trees";
            /// To powers of two. Not of a selection.
            Natural, "natural", "natural compression";
        }
    };
}
pub(super) use quantizers;

macro_rules! behind {
    ($select:ident, $codec:ident) => {
        $select
    };
    ($select:ident, $codec:ident, $then:ident) => {
        $select.$then($codec)
    };
}

macro_rules! goes_behind {
    ($name:literal) => {
        Some(concat!("top-k and ", $name, " do not go together"))
    };
    ($name:literal, $then:ident) => {
        None
    };
}

macro_rules! of_table {
    ($($(#[$doc:meta])* $codec:ident, $word:literal, $name:literal $(, $then:ident)?;)+) => {
        /// How the values that are sent are written.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Quantize {
            /// As they are.
            Exact,
            /// Rounded to this type. Values of a selection alone.
            Round(Dtype),
            $($(#[$doc])* $codec(crate::codec::$codec),)+
        }

        $(
            impl From<crate::codec::$codec> for Quantize {
                fn from(codec: crate::codec::$codec) -> Self {
                    Self::$codec(codec)
                }
            }

            impl From<crate::codec::$codec> for Recipe {
                /// With error feedback where the codec has it.
                fn from(codec: crate::codec::$codec) -> Self {
                    let recipe = Self::none().quantize(codec);
                    if codec.has_feedback() { recipe.feedback() } else { recipe }
                }
            }
        )+

        impl Quantize {
            /// The words of all quantizers, each with a comma behind it.
            pub(super) const WORDS: &str = concat!($($word, ", "),+);

            /// Whether a stage of this name is one.
            pub(super) fn is_word(name: &str) -> bool {
                matches!(name, $($word)|+)
            }

            /// Without what is a stage of its own or the recipe's policy; and the policy, and how codes are packed.
            pub(super) fn alone(self) -> (Self, NonFinite, Entropy) {
                match self {
                    $(Self::$codec(codec) => {
                        let mut alone = codec.alone();
                        let policy = std::mem::replace(&mut alone.common().non_finite, NonFinite::Propagate);
                        (alone.into(), policy, codec.entropy())
                    })+
                    Self::Round(Dtype::F32) => (Self::Exact, NonFinite::Propagate, Entropy::None),
                    _ => (self, NonFinite::Propagate, Entropy::None),
                }
            }

            /// How `n` values are encoded under this policy, if a quantizer does it.
            pub(super) fn plan(self, n: usize, policy: NonFinite) -> Option<Result<EncodePlan, Error>> {
                match self {
                    $(Self::$codec(codec) => Some(codec.non_finite(policy).plan(n, Dtype::F32)),)+
                    _ => None,
                }
            }

            /// A selection with its values written so.
            pub(super) fn behind(self, select: TopK) -> TopK {
                match self {
                    $(Self::$codec(_codec) => behind!(select, _codec $(, $then)?),)+
                    Self::Round(dtype) => select.values(dtype),
                    Self::Exact => select,
                }
            }

            /// What is wrong with it behind a selection.
            pub(super) fn wrong_behind_a_selection(self) -> Option<&'static str> {
                match self {
                    $(Self::$codec(_) => goes_behind!($name $(, $then)?),)+
                    _ => None,
                }
            }

            /// Whether its codes can be packed so.
            pub(super) fn takes(self, entropy: Entropy) -> bool {
                match self {
                    $(Self::$codec(mut codec) => entropy.fits(codec.common().codec, codec.common().bits),)+
                    _ => entropy == Entropy::None,
                }
            }

            /// Whether error feedback belongs to it.
            pub(super) fn brings_feedback(self) -> bool {
                match self {
                    $(Self::$codec(codec) => codec.brings_feedback(),)+
                    _ => false,
                }
            }

            /// Whether it is of signs without a scale of the bucket.
            pub(super) fn is_sign_alone(self) -> bool {
                matches!(self, Self::Sign(codec) if !codec.brings_feedback())
            }

            /// The word and the settings as they stand in a text.
            pub(super) fn words(self) -> Option<(&'static str, Vec<String>)> {
                match self {
                    $(Self::$codec(codec) => Some(($word, codec.words())),)+
                    Self::Round(dtype) => Some((dtype.name(), Vec::new())),
                    Self::Exact => None,
                }
            }
        }
    };
}
quantizers!(of_table);

impl From<Dtype> for Quantize {
    fn from(dtype: Dtype) -> Self {
        Self::Round(dtype)
    }
}
