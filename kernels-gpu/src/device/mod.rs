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
mod sizes;

#[cfg(all(target_arch = "nvptx64", not(feature = "rust-cuda")))]
use nvptx as machine;
#[cfg(feature = "rust-cuda")]
use rust_cuda as machine;

pub(crate) use machine::{
    FOLDS, atomic_add, atomic_max, ballot, barrier, bin_add, bin_load, bin_or, bin_store, block, carries,
    carries_of_halves, fence, fma, fma_wide, fold_max, fold_min, fold_sum, half_to_f32, list_address, list_load,
    list_store, load_strong, opaque, shared_load, shared_load_four, shared_load_pair, shared_load_row, shared_store,
    shared_store_four, shared_store_pair, shared_store_row, shift_out, shuffle, shuffle_up, shuffle_xor, sqrt,
    stage_count, stage_load, stage_load_four, stage_load_pair, stage_load_wide, stage_store, stage_store_four,
    stage_store_wide, thread, tile_address, tile_load_half, tile_load_own, tile_load_word, tile_store_chunks,
    tile_store_halves, tile_store_words, warp_barrier,
};
// Where there are tensor cores; `kernels/powersgd/mod.rs` says the same.
#[cfg(all(target_arch = "nvptx64", target_feature = "sm_80", not(feature = "rust-cuda")))]
pub(crate) use machine::{mma, tf32};
pub(crate) use sizes::{BINS, LISTED, OWN_WORDS, PADDED, SHARED_WORDS, STAGE, WARP};
