//! Philox4x32, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//!
//! A draw is a function of (seed, step, tensor, element index) and of nothing else, so every backend, launch shape
//! and thread count sees the same draws, and a receiver that knows the seed can replay them.

pub use crate::integer::stream::{ROUNDS, Stream, round_keys};

const M0: u32 = 0xD251_1F53;
const M1: u32 = 0xCD9E_8D57;

/// What a word is carried in: 64 bits whose upper half is left as it falls, because every product reads the lower half
/// only. A vector unit that multiplies 32 by 32 to 64 bits then needs no shuffle between rounds.
#[cfg(not(target_arch = "nvptx64"))]
type Word = u64;
/// A GPU's registers have 32 bits.
#[cfg(target_arch = "nvptx64")]
type Word = u32;

/// The upper and the lower half of a product.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
fn product(constant: u32, word: Word) -> [Word; 2] {
    let product = constant as u64 * (word & 0xffff_ffff);
    [product >> 32, product]
}
#[cfg(target_arch = "nvptx64")]
use crate::integer::machine::product;

/// One Philox4x32 block: 128 random bits for a 128-bit counter under a 64-bit key.
#[inline(always)]
pub fn philox4x32<const R: usize>(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    rounds(counter, &round_keys::<R>(key))
}

/// The rounds of a block.
#[inline(always)]
fn rounds<const R: usize>(counter: [u32; 4], keys: &[[u32; 2]; R]) -> [u32; 4] {
    let [c0, c1, c2, c3] = counter;
    // Not `map`, which is a call of its own where units of a crate take in no others' functions (`lto = "off"`).
    let (mut c0, mut c1, mut c2, mut c3) = (c0 as Word, c1 as Word, c2 as Word, c3 as Word);
    let mut round = 0;
    while round < R {
        let [high0, low0] = product(M0, c0);
        let [high1, low1] = product(M1, c2);
        c0 = high1 ^ c1 ^ keys[round][0] as Word;
        c1 = low1;
        c2 = high0 ^ c3 ^ keys[round][1] as Word;
        c3 = low0;
        round += 1;
    }
    [c0 as u32, c1 as u32, c2 as u32, c3 as u32]
}

/// The `call`-th block of 128 random bits of a stream.
#[inline(always)]
pub fn block(stream: Stream, call: u32) -> [u32; 4] {
    philox4x32::<ROUNDS>([call, stream.tensor, stream.step[0], stream.step[1]], stream.key)
}

/// [`block`], with the keys of its rounds worked out.
#[inline(always)]
pub fn block_of(stream: Stream, keys: &[[u32; 2]; ROUNDS], call: u32) -> [u32; 4] {
    rounds([call, stream.tensor, stream.step[0], stream.step[1]], keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Known answers published with Random123 (kat_vectors, philox4x32 at 7 and 10 rounds).
    const ZERO: ([u32; 4], [u32; 2]) = ([0; 4], [0; 2]);
    const ONES: ([u32; 4], [u32; 2]) = ([!0; 4], [!0; 2]);
    const PI: ([u32; 4], [u32; 2]) = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);

    #[test]
    fn seven_rounds_match_the_published_answers() {
        let run = |(c, k)| philox4x32::<7>(c, k);
        assert_eq!(run(ZERO), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(run(ONES), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
        assert_eq!(run(PI), [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]);
    }

    #[test]
    fn ten_rounds_match_the_published_answers() {
        let run = |(c, k)| philox4x32::<10>(c, k);
        assert_eq!(run(ZERO), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(run(ONES), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(run(PI), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
