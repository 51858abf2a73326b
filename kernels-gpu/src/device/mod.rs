//! The GPU vocabulary: everything that a kernel says which a CPU could not run.
//!
//! Kernels name only what this module exports, so that another compiler's way of saying it is one more file beside
//! `nvptx.rs`, chosen here.
//!
//! # Safety
//!
//! The functions that exchange values between lanes, and the barrier, are safe to *call* only where all 32 lanes of
//! the warp (for the barrier: all threads of the block) arrive together. Kernels keep them in control flow that
//! depends on parameters and on the warp's index alone. Each is `unsafe` for that reason.

#[cfg(all(target_arch = "nvptx64", not(feature = "rust-cuda")))]
mod nvptx;
#[cfg(feature = "rust-cuda")]
mod rust_cuda;

#[cfg(all(target_arch = "nvptx64", not(feature = "rust-cuda")))]
use nvptx as machine;
#[cfg(feature = "rust-cuda")]
use rust_cuda as machine;

pub(crate) use machine::{
    FOLDS, atomic_add, atomic_max, ballot, barrier, bin_add, bin_load, bin_store, block, fence, fma, fma_wide,
    fold_max, fold_min, half_to_f32, load_strong, opaque, shared_load, shared_store, shuffle, shuffle_xor, sqrt,
    stage_load, stage_load_four, stage_load_wide, stage_store, stage_store_wide, thread, tile_load, tile_store,
};
#[cfg(target_arch = "nvptx64")]
pub(crate) use machine::{isqrt, product};
// Where there are tensor cores; `kernels/powersgd/mod.rs` says the same.
#[cfg(all(target_arch = "nvptx64", target_feature = "sm_80", not(feature = "rust-cuda")))]
pub(crate) use machine::{mma, tf32};

/// Lanes of a warp.
pub(crate) const WARP: u32 = 32;

/// Words of a block's shared memory.
pub(crate) const SHARED_WORDS: usize = 48;

/// Words of a block's bins: shared memory beside the other, for kernels that count in it.
pub(crate) const BINS: u32 = 2048;

/// Words of a block's stage: shared memory beside the other, for kernels that keep parts of matrices in it.
pub(crate) const STAGE: u32 = 6144;

/// Elements of a block's tile: shared memory beside the other, for kernels that look at an element more than once.
pub(crate) const TILE: u32 = crate::params::TILE;

/// Rows of [`WARP`] words that a lane writes its words of together.
pub(crate) const TILE_ROWS: usize = 8;
