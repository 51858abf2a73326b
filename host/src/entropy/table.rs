//! The table of packed codes, a byte per unit of 256 codes, and what follows from it. Pure.

use gradwire_kernels::arith::elias::{exponent, largest, rest_bits, unary_bits};
use gradwire_kernels::arith::pack::UNIT;

/// The tag of Elias gamma codes in a payload's header.
pub(crate) const ELIAS_TAG: u8 = 1;

/// Units of `n` codes.
pub(crate) const fn units(n: u64) -> u64 {
    n.div_ceil(UNIT as u64)
}

/// Bytes of the table of `n` codes: whole words.
pub(crate) const fn table_bytes(n: u64) -> u64 {
    units(n).next_multiple_of(4)
}

/// The fewest words of `n` packed codes: a bit a code.
pub(crate) const fn least_words(n: u64) -> u64 {
    units(n) * (UNIT as u64 / 32)
}

/// The most words of `n` packed codes of so many bits, whatever their levels. At most 256 per unit.
pub(crate) const fn most_words(n: u64, bits: u32) -> u64 {
    let longest = exponent(largest(bits));
    units(n) * (UNIT as u64 * (unary_bits(longest) + rest_bits(longest)) as u64).div_ceil(32)
}

/// Words of all units that a table names.
pub(crate) fn words_of(table: &[u8], n: u64) -> u64 {
    table.iter().take(units(n) as usize).map(|byte| u64::from(*byte) + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_codes_fill_at_most_256_words() {
        // 1: 2 bits of k = 2, with a sign. 127: 15 and a sign. 32767: 31 and a sign.
        assert_eq!([2, 8, 16].map(|bits| most_words(256, bits)), [32, 128, 256]);
        assert_eq!((most_words(0, 16), most_words(257, 2), least_words(257)), (0, 64, 16));
    }

    #[test]
    fn a_table_is_summed_without_its_padding() {
        assert_eq!((table_bytes(0), table_bytes(1), table_bytes(1025)), (0, 4, 8));
        assert_eq!(words_of(&[7, 8, 255, 255], 512), 17);
    }
}
