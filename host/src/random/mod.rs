//! Random-k: entries that a seed draws, without their indices.

pub(crate) mod plan;

pub use self::plan::RandomK;
pub(crate) use self::plan::passes;
