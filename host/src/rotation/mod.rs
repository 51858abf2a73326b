//! The randomised Hadamard transform of blocks, and back; and beside it, that of cosines.

pub(crate) mod dct;
pub(crate) mod plan;
pub(crate) mod tiles;

pub use self::dct::Dct;
pub use self::plan::Rotation;
pub(crate) use self::plan::passes;
pub(crate) use self::tiles::Tiles;
