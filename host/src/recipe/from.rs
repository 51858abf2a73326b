//! Recipes of one codec.

use super::stages::Recipe;
use crate::codec::{Quantizer, Stage, quantizers};

macro_rules! of_table {
    ($($(#[$doc:meta])* $file:ident, $codec:ident, $word:literal;)+) => {$(
        impl From<crate::codec::$codec> for Recipe {
            /// With error feedback where the codec has it.
            fn from(codec: crate::codec::$codec) -> Self {
                let recipe = Self::none().quantize(codec);
                if codec.has_feedback() { recipe.feedback() } else { recipe }
            }
        }
    )+

        impl From<Quantizer> for Recipe {
            /// With error feedback where the codec has it.
            fn from(codec: Quantizer) -> Self {
                match codec {
                    $(Quantizer::$codec(codec) => codec.into(),)+
                }
            }
        }
    };
}
quantizers!(of_table);
