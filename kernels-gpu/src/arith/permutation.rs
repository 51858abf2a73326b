//! A permutation of the numbers below `n` that a seed draws, number by number, without memory.
//!
//! A Feistel network of eight rounds over the smallest power of two that is at least `n` and 256; a place beyond `n` is
//! permuted again until it is below (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section
//! 3: cycle walking). From n = 128 on that is at most once in the mean. The round function is two products of 32 bits,
//! of which the upper bits count.

use super::philox::block;
use crate::integer::stream::Stream;
use crate::params::RandomParams;

/// What the key of the permutation differs in from the run's: no other draw has this key.
pub const PLACE_KEY: u32 = 0xa409_3822;

/// The largest number of the smallest domain: a network of fewer bits has too few permutations, so that some pairs come
/// together more often than others.
const LEAST: u32 = 255;

/// Multipliers of the round function.
const MIX: [u32; 2] = [0x85eb_ca6b, 0xc2b2_ae35];

/// Bits of the halves of a number below `n`: the lower, then the upper, which has as many or one more. 4 to 16 each.
#[inline(always)]
pub const fn halves(n: u32) -> [u32; 2] {
    let bits = 32 - (n.saturating_sub(1) | LEAST).leading_zeros();
    [bits / 2, bits - bits / 2]
}

/// The keys of the rounds, of the stream of worker 0.
pub fn round_keys(stream: Stream) -> [u32; 8] {
    let own = Stream { key: [stream.key[0], stream.key[1] ^ PLACE_KEY], ..stream };
    let [[a, b, c, d], [e, f, g, h]] = [block(own, 0), block(own, 1)];
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
fn mix(half: u32, key: u32, bits: u32) -> u32 {
    let product = (half ^ key).wrapping_mul(MIX[0]);
    (product ^ product >> 13).wrapping_mul(MIX[1]) >> (32 - bits)
}

/// A round on either half: the upper, then the lower.
#[inline(always)]
fn two_rounds([lower, upper]: [u32; 2], keys: [u32; 2], [low, high]: [u32; 2]) -> [u32; 2] {
    let upper = upper ^ mix(lower, keys[0], high);
    [lower ^ mix(upper, keys[1], low), upper]
}

/// Where the permutation puts a number below `p.n`.
#[inline(always)]
pub fn place(p: &RandomParams, number: u32) -> u32 {
    let [low, high] = [p.low_bits, p.high_bits];
    let mut at = number;
    loop {
        let mut halves = [at & ((1 << low) - 1), at >> low];
        let [a, b, c, d, e, f, g, h] = p.keys;
        halves = two_rounds(halves, [a, b], [low, high]);
        halves = two_rounds(halves, [c, d], [low, high]);
        halves = two_rounds(halves, [e, f], [low, high]);
        halves = two_rounds(halves, [g, h], [low, high]);
        at = halves[1] << low | halves[0];
        // The walk is a cycle, and it began below.
        if at < p.n {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(n: u32, seed: u32) -> RandomParams {
        let [low_bits, high_bits] = halves(n);
        let keys = round_keys(Stream { key: [seed, seed >> 3], tensor: 7, step: [seed ^ 5, 0] });
        RandomParams { n, low_bits, high_bits, keys, ..RandomParams::default() }
    }

    #[test]
    fn every_number_has_a_place_of_its_own() {
        for n in (1..200).chain([255, 256, 257, 1000, 4095, 65_536, 65_537, 100_000]) {
            for seed in [1, 77] {
                let p = params(n, seed);
                let mut seen = std::vec![false; n as usize];
                for number in 0..n {
                    let at = place(&p, number) as usize;
                    assert!(!std::mem::replace(&mut seen[at], true), "{n}: {number}");
                }
            }
        }
        let far = params(1 << 31, 3);
        assert!((0..1000).all(|number| place(&far, number * 2_147_483) < 1 << 31));
    }

    #[test]
    fn halves_hold_every_number() {
        assert_eq!(
            [0, 1, 256, 257, 1024, 1025, 1 << 31].map(halves),
            [[4, 4], [4, 4], [4, 4], [4, 5], [5, 5], [5, 6], [15, 16]]
        );
    }
}
