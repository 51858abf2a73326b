//! The sizes of warps, and of the memory that a block shares.

/// Lanes of a warp.
pub(crate) const WARP: u32 = 32;

/// Words of a block's shared memory.
pub(crate) const SHARED_WORDS: usize = 64;

/// Words of a block's bins: shared memory beside the other, for kernels that count in it.
pub(crate) const BINS: u32 = 2048;

/// Words of a block's stage: shared memory beside the other, for kernels that keep parts of matrices in it, or many
/// bins.
pub(crate) const STAGE: u32 = 6144;

/// Warps of a block that has a tile.
pub(crate) const TILE_WARPS: u32 = 8;

/// Bytes of a block's tile: shared memory beside the other, for kernels that look at an element more than once. 16
/// bytes are left out after each 128, so that lanes which read beside each other what is a lane's own do not wait for
/// one bank.
pub(crate) const TILE_BYTES: u32 = 4 * crate::params::TILE / 128 * PADDED;

/// 128 bytes of the tile, with those left out.
pub(crate) const PADDED: u32 = 144;

/// Entries of each warp in the block's list, of half a word: as many as leave the block within the shared memory that
/// every GPU has. The last [`WARP`] are for reading past the end.
pub(crate) const LISTED: u32 = 224;

const _: () =
    assert!(4 * (SHARED_WORDS as u32 + BINS) + TILE_BYTES + 2 * LISTED * TILE_WARPS <= 48 << 10, "every GPU has room");

/// Words that a lane reads of the tile together.
pub(crate) const OWN_WORDS: usize = 16;
