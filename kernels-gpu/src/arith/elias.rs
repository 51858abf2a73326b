//! Elias gamma and delta codes of levels.
//!
//! Source: Elias, "Universal codeword sets and representations of the integers", IEEE Trans. Inf. Theory 21(2), 1975,
//! section 3 (the codes gamma and delta); after a quantizer, Alistarh et al., "QSGD", NIPS 2017, section 3.1, which
//! takes the recursive code omega.
//!
//! A level `l` is sent as k = l + 1, of which gamma takes 2 q + 1 bits, q = floor(log2 k): `q` zeros and a one, the
//! *unary part*, and the low `q` bits of k, the *rest*. A level that is not zero has its sign after its rest. A unit's
//! unary parts come before all of its rests, so that counting ones tells where each code is. Bits go into words from
//! the lowest on, and bits after a unit's words read as ones.
//!
//! Delta sends q + 1 as a gamma code in the place of q zeros and a one: r = floor(log2(q + 1)) zeros and a one, the
//! unary part, and the low r bits of q + 1, the *middle*; so 2 r + 1 + q bits in all. A unit's unary parts come first,
//! then its middles, then its rests: each part's lengths follow from the part before, and a group of lanes finds its
//! codes by sums.

/// Units of 256 codes that one workgroup takes: a thread for each of them.
pub const BLOCK_UNITS: u32 = 256;

/// `2^q`, and 0 for `q` = 32: the sums below are modulo 2^32.
#[inline(always)]
const fn power(q: u32) -> u32 {
    if q < 32 { 1 << q } else { 0 }
}

/// The exponent of a level: floor(log2(level + 1)), 0 to 32.
#[inline(always)]
pub const fn exponent(level: u32) -> u32 {
    if level == u32::MAX { 32 } else { 31 - (level + 1).leading_zeros() }
}

/// The rest of a level: the low bits of level + 1, as many as its exponent.
#[inline(always)]
pub const fn rest(level: u32, exponent: u32) -> u32 {
    level.wrapping_add(1).wrapping_sub(power(exponent))
}

/// The level of this exponent, 0 to 32, and this rest.
///
/// ```
/// use gradwire_kernels::arith::elias::{exponent, level, rest};
/// for l in [0, 1, 2, 6, 7, 32767, u32::MAX - 1, u32::MAX] {
///     assert_eq!(level(exponent(l), rest(l, exponent(l))), l);
/// }
/// ```
#[inline(always)]
pub const fn level(exponent: u32, rest: u32) -> u32 {
    power(exponent).wrapping_add(rest).wrapping_sub(1)
}

/// Bits of a code's unary part.
#[inline(always)]
pub const fn unary_bits(exponent: u32) -> u32 {
    exponent + 1
}

/// Bits after the unary parts that a code takes: its rest, and its sign where the level is not zero.
#[inline(always)]
pub const fn rest_bits(exponent: u32) -> u32 {
    if exponent == 0 { 0 } else { exponent + 1 }
}

/// The exponent of an exponent: floor(log2(exponent + 1)), of which delta has as many zeros and middle bits. 0 to 4 for
/// a level that any width holds.
#[inline(always)]
pub const fn class(exponent: u32) -> u32 {
    self::exponent(exponent)
}

/// Bits of a code's middle, of a class that was read.
///
/// Only bytes that no encoder wrote have a class above 4, which counts as 4: so an exponent is at most 30.
#[inline(always)]
pub const fn middle_bits(class: u32) -> u32 {
    if class < 4 { class } else { 4 }
}

/// The middle of a code: the low bits of its exponent + 1.
#[inline(always)]
pub const fn middle(exponent: u32) -> u32 {
    rest(exponent, class(exponent))
}

/// The exponent of this class, where `tail` holds the bits from the middle on.
///
/// ```
/// use gradwire_kernels::arith::elias::{class, exponent_of, middle};
/// for q in 0..31 {
///     assert_eq!(exponent_of(class(q), middle(q) | u32::MAX << class(q)), q);
/// }
/// ```
#[inline(always)]
pub const fn exponent_of(class: u32, tail: u32) -> u32 {
    let bits = middle_bits(class);
    level(bits, tail & (power(bits) - 1))
}

/// The largest level of QSGD's codes of so many bits, 2 to 16.
#[inline(always)]
pub const fn largest(bits: u32) -> u32 {
    (1 << (bits - 1)) - 1
}

/// The level of a QSGD code. Bits above the code's own are not looked at.
#[inline(always)]
pub const fn level_of(code: u32, bits: u32) -> u32 {
    code & largest(bits)
}

/// What is sent after the unary parts for a QSGD code of this exponent: its rest, and above that its sign.
#[inline(always)]
pub const fn tail_of(code: u32, bits: u32, exponent: u32) -> u32 {
    let sign = code >> (bits - 1) & 1;
    if exponent == 0 { 0 } else { rest(level_of(code, bits), exponent) | sign << exponent }
}

/// The QSGD code of this exponent, where `tail` holds the bits after the unary parts from the code's own on, and
/// others above.
///
/// A level above what `bits` hold becomes the largest one. A level of zero has no sign, and its code is zero.
#[inline(always)]
pub const fn code(exponent: u32, tail: u32, sign: u32, bits: u32) -> u32 {
    if exponent == 0 {
        return 0;
    }
    let most = largest(bits);
    // 15 is the exponent of the largest level that any width holds.
    let found = if exponent > 15 { most } else { level(exponent, tail & (power(exponent) - 1)) };
    let level = if found < most { found } else { most };
    level | (sign & 1) << (bits - 1)
}

/// The place of the one that has `rank` ones below it, or 32 where the word has no such one.
#[inline(always)]
pub const fn select(word: u32, rank: u32) -> u32 {
    let mut at = 0;
    let mut left = rank;
    let mut width = 16;
    // By halves: of 32 bits, 16, 8, 4, 2.
    while width > 0 {
        let ones = ((word >> at) & ((1 << width) - 1)).count_ones();
        if left >= ones {
            left -= ones;
            at += width;
        }
        width /= 2;
    }
    if left == 0 && word >> at & 1 == 1 { at } else { 32 }
}

/// Words after which a unit's bits cannot matter: no code of a unit is read from beyond.
const MOST_WORDS: u32 = 1024;

/// How many zeros stand from bit `at` on before the first one. `word` gives a unit's words, and all ones after them.
#[inline(always)]
pub fn zeros(word: impl Fn(u32) -> u32, at: u32) -> u32 {
    let mut index = at / 32;
    let mut bits = word(index) & (u32::MAX << (at % 32));
    while bits == 0 && index < MOST_WORDS {
        index += 1;
        bits = word(index);
    }
    32 * index + bits.trailing_zeros() - at
}

/// 32 bits from bit `at` on. `word` as for [`zeros`].
#[inline(always)]
pub fn window(word: impl Fn(u32) -> u32, at: u32) -> u32 {
    let (index, shift) = (at / 32, at % 32);
    let low = word(index) >> shift;
    if shift == 0 { low } else { low | word(index + 1) << (32 - shift) }
}

/// The bit after the one that has `rank` ones below it, counted from word `first` on. `word` as for [`zeros`].
#[inline(always)]
pub fn behind(word: impl Fn(u32) -> u32, first: u32, rank: u32) -> u32 {
    let (mut index, mut left) = (first, rank);
    let mut bits = word(index);
    while bits.count_ones() <= left && index < MOST_WORDS {
        left -= bits.count_ones();
        index += 1;
        bits = word(index);
    }
    32 * index + select(bits, left) + 1
}

/// The QSGD code of this exponent whose bits after the unary parts begin at bit `at`. `word` as for [`zeros`].
#[inline(always)]
pub fn read(word: impl Fn(u32) -> u32, at: u32, exponent: u32, bits: u32) -> u32 {
    let tail = window(&word, at);
    // Only bytes that no encoder wrote have a larger exponent.
    let sign = if exponent < 32 { tail >> exponent } else { window(&word, at + exponent) };
    code(exponent, tail, sign, bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_every_length_come_back() {
        let near = (0..32).flat_map(|q| [(1u32 << q).wrapping_sub(2), (1 << q) - 1, 1 << q, (1 << q) + 1]);
        for l in near.chain([u32::MAX - 1, u32::MAX]) {
            let q = exponent(l);
            assert_eq!(u64::from(q), (u64::from(l) + 1).ilog2().into(), "{l}");
            assert_eq!(u64::from(rest(l, q)), (u64::from(l) + 1) - (1 << q), "{l}");
            assert_eq!(level(q, rest(l, q)), l);
        }
    }

    #[test]
    fn codes_of_every_width_come_back_but_for_the_sign_of_zero() {
        for bits in [2, 3, 4, 5, 6, 7, 8, 16] {
            for c in 0..1u32 << bits {
                let q = exponent(level_of(c, bits));
                let tail = tail_of(c, bits, q);
                let back = code(q, tail | u32::MAX << rest_bits(q), tail >> q, bits);
                assert_eq!(back, if level_of(c, bits) == 0 { 0 } else { c }, "{c} of {bits} bits");
            }
        }
    }

    #[test]
    fn ones_are_found_by_their_rank() {
        for word in [0, 1, 0x8000_0000, u32::MAX, 0x5555_5555, 0x00f0_1001] {
            let places: std::vec::Vec<u32> = (0..32).filter(|at| word >> at & 1 == 1).collect();
            for rank in 0..33 {
                assert_eq!(select(word, rank), places.get(rank as usize).copied().unwrap_or(32), "{word:#x} {rank}");
            }
        }
        let words = [0u32, 0x8000_0001, 0, 2];
        let word = |at: u32| words.get(at as usize).copied().unwrap_or(u32::MAX);
        assert_eq!([0, 1, 2, 3, 40].map(|rank| behind(word, 0, rank)), [33, 64, 98, 129, 166]);
        assert_eq!((zeros(word, 0), zeros(word, 33), zeros(word, 64), zeros(word, 98)), (32, 30, 33, 30));
        assert_eq!((window(word, 31), window(word, 127), window(word, 32)), (2, 0xffff_fffe, 0x8000_0001));
    }
}
