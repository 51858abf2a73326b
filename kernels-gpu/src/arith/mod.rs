//! The arithmetic of every codec, written once.
//!
//! The CPU backend calls these functions, the PTX kernels are compiled from them, and the WGSL shaders emulate
//! them in integers. Each is a pure function of scalars, uses only IEEE 754 binary32 operations that are rounded
//! to nearest even (no fused multiply-add, no reciprocal approximation) and integer operations, and so has one
//! result on every machine.

pub mod base3;
pub mod dct;
pub mod drive;
pub mod eden;
pub mod elias;
pub mod float;
pub mod fold;
pub mod memory;
pub mod minifloat;
pub mod natural;
pub mod norm;
pub mod onebit;
pub mod pack;
pub mod permutation;
pub mod philox;
pub mod places;
pub mod powersgd;
pub mod qsgd;
pub mod quantile;
pub mod quantizer;
pub mod rotation;
pub mod round;
pub mod sign;
pub mod ternary;
pub mod topk;
pub mod tree;
pub mod uniform;
pub mod vote;

pub use crate::integer::{stream, tiles};
