//! Random-k: entries that a seed draws, without their indices.

pub(crate) mod engine;
pub(crate) mod plan;

pub(crate) use self::engine::Random;
pub use self::plan::RandomK;
pub(crate) use self::plan::passes;
