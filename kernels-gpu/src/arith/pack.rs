//! Where the bits of a code lie: the order of elements on the wire.
//!
//! A *unit* is 256 consecutive elements, 32 *lanes* of 8 *slots*: slot `j` of lane `i` is element `32 j + i`. So a
//! warp's loads are consecutive, a row of 32 elements belongs to one bucket, and the eight codes of a lane are
//! packed without asking another lane. A code of `b` bits is cut into *pieces* of 16, 8, 4, 2 or 1 bits, the binary
//! digits of `b`, largest first, the low bits of the code in the first piece. A piece of `p` bits takes
//! `256 p / 8` bytes of the unit: words for `p >= 4`, where word `32 r + i` holds slots `r * 32/p ..` of lane `i` from
//! its low bits up; half-words for `p = 2` and bytes for `p = 1`, one a lane. `docs/wire.md` says the same in full.

/// Elements of a unit.
pub const UNIT: usize = 256;
/// Lanes of a unit, and elements of a row.
pub const LANES: usize = 32;
/// Slots of a lane, and rows of a unit.
pub const SLOTS: usize = 8;

/// The pieces a code is cut into, in the order in which they stand in a unit.
pub const PIECES: [u32; 5] = [16, 8, 4, 2, 1];

/// Bytes of a unit of codes of this many bits.
#[inline(always)]
pub const fn unit_bytes(bits: u32) -> usize {
    UNIT / 8 * bits as usize
}

/// The bits of `code` that a piece holds, where `done` bits stand in earlier pieces.
#[inline(always)]
pub const fn cut(code: u32, done: u32, piece: u32) -> u32 {
    code >> done & ((1 << piece) - 1)
}
