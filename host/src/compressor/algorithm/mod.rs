//! Exchanges other than an all-gather of payloads: the tree of gTop-k, two phases, and factors.

mod factors;
mod pieces;
mod run;
mod step;
mod traffic;
mod tree;
mod two_phase;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(super) use self::factors::Factor;
pub(super) use self::factors::{Means, OnHost, tell};
pub(super) use self::run::run;
pub(super) use self::step::{Place, Step};
