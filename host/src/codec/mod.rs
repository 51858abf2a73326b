//! One file per codec: validated parameters, and the plan of its passes.

pub(crate) mod drive;
pub(crate) mod eden;
pub(crate) mod estimate;
pub(crate) mod float;
pub(crate) mod natural;
pub(crate) mod onebit;
pub(crate) mod powersgd;
pub(crate) mod qsgd;
pub(crate) mod quantile;
pub(crate) mod quantizer;
mod settings;
pub(crate) mod sign;
mod stage;
mod table;
pub(crate) mod ternary;
pub(crate) mod topk;
pub(crate) mod tree;
pub(crate) mod uniform;

pub use self::quantizer::Quantizer;
pub(crate) use self::settings::Bucketed;
pub use self::stage::Codec;
pub(crate) use self::stage::{Number, Stage};
pub(crate) use self::table::quantizers;

macro_rules! shown {
    ($($(#[$doc:meta])* $file:ident, $codec:ident, $word:literal;)+) => {
        $(pub use self::$file::$codec;)+
    };
}
quantizers!(shown);
