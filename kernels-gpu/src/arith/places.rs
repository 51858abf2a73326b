//! Places and levels of the codes that are not zero: packing for buckets of which few codes are not.
//!
//! Source: Alistarh et al., "QSGD", NIPS 2017, section 3.1 and appendix A.2, which sends the gaps between such codes and
//! their levels; Elias, "Efficient storage and retrieval by content and address of static files", J. ACM 21(2), 1974,
//! for the places, of which each is found without those before it.
//!
//! A unit is 64 units of 256 codes. The *place* of a code is `256 s + 8 i + j`, for slot `j` of lane `i` of the unit
//! `s` of 256: the order of Elias codes. Of a unit with `c` codes whose level is not zero, `w` bits of each place are
//! its *low* bits, w = floor(log2(16384 / c)), and those above them are its *high* part. First come `c` + 2^(14 - w)
//! bits, the *marks*: bit `h + k` is one for the code `k`, counted from zero in the order of places, of high part `h`.
//! Then comes a *record* for each code, in the same order: the low bits of its place, the level minus 1 in `b` bits,
//! and the sign. `b` is as many bits as the unit's largest level minus 1 has. Bits go into words from the lowest on.
//!
//! A unit's *entry* in the table is `c + 2^16 b`: so its words are known.

use super::elias::{largest, level_of};
use super::pack::{LANES, SLOTS, UNIT};

/// Units of 256 codes in a unit.
pub const PARTS: u32 = 64;

/// Codes of a unit.
pub const CODES: u32 = PARTS * UNIT as u32;

/// Bits of a place.
const PLACE_BITS: u32 = CODES.ilog2();

/// The most bits that a level minus 1 takes.
const MOST_LEVEL_BITS: u32 = 15;

/// The entry of a unit with so many codes whose level is not zero, at most [`CODES`], the largest of which is `most`.
#[inline(always)]
pub const fn entry(count: u32, most: u32) -> u32 {
    // A unit without levels has no bits for them.
    let levels = if most == 0 { 0 } else { most - 1 };
    count | (32 - levels.leading_zeros()) << 16
}

/// Whether a word is an entry of a unit of codes of so many bits.
#[inline(always)]
pub const fn is_entry(word: u32, bits: u32) -> bool {
    count(word) <= CODES && word >> 16 < bits && (count(word) > 0 || word == 0)
}

/// Codes whose level is not zero.
#[inline(always)]
pub const fn count(entry: u32) -> u32 {
    entry & 0xffff
}

/// Low bits of a place: floor(log2(16384 / count)), of a count of at least 1.
#[inline(always)]
pub const fn low_bits(entry: u32) -> u32 {
    PLACE_BITS - (32 - count(entry).wrapping_sub(1).leading_zeros())
}

/// Bits of the marks.
#[inline(always)]
pub const fn mark_bits(entry: u32) -> u32 {
    if count(entry) == 0 { 0 } else { count(entry) + (CODES >> low_bits(entry)) }
}

/// Bits of a record: at most 30.
#[inline(always)]
pub const fn record_bits(entry: u32) -> u32 {
    low_bits(entry) + (entry >> 16) + 1
}

/// Where the record of a code begins, in bits.
#[inline(always)]
pub const fn record_at(entry: u32, index: u32) -> u32 {
    mark_bits(entry) + index * record_bits(entry)
}

/// Words of a unit.
#[inline(always)]
pub const fn words(entry: u32) -> u32 {
    if count(entry) == 0 { 0 } else { record_at(entry, count(entry)).div_ceil(32) }
}

/// The most words that a unit of codes of so many bits takes.
///
/// ```
/// use gradwire_kernels::arith::places::{CODES, entry, most_words, words};
/// for bits in [2, 3, 4, 8, 16] {
///     let most = (1..=CODES).map(|count| words(entry(count, (1 << (bits - 1)) - 1))).max();
///     assert_eq!(Some(most_words(bits)), most);
/// }
/// ```
#[inline(always)]
pub const fn most_words(bits: u32) -> u32 {
    words(entry(CODES, largest(bits)))
}

/// The bit of the marks that is one for a code.
#[inline(always)]
pub const fn mark_at(entry: u32, index: u32, place: u32) -> u32 {
    (place >> low_bits(entry)) + index
}

/// The record of a code whose level is not zero.
#[inline(always)]
pub const fn record(entry: u32, place: u32, code: u32, bits: u32) -> u32 {
    let (low, levels) = (low_bits(entry), entry >> 16);
    let sign = code >> (bits - 1) & 1;
    (place & ((1 << low) - 1)) | (level_of(code, bits) - 1) << low | sign << (low + levels)
}

/// The place of a code whose mark is at bit `mark`. At least [`CODES`] only of bits that no encoder wrote.
#[inline(always)]
pub const fn place(entry: u32, index: u32, mark: u32, record: u32) -> u32 {
    let low = low_bits(entry);
    (mark - index) << low | record & ((1 << low) - 1)
}

/// The code of a record. A level above what `bits` hold becomes the largest one.
#[inline(always)]
pub const fn code(entry: u32, record: u32, bits: u32) -> u32 {
    let (low, levels) = (low_bits(entry), entry >> 16);
    let found = (record >> low & ((1 << levels) - 1)) + 1;
    let level = if found < largest(bits) { found } else { largest(bits) };
    level | (record >> (low + levels) & 1) << (bits - 1)
}

/// The first bit of a piece of the code at a place, among those of a unit's codes of `bits` bits. `done` bits are in
/// earlier pieces.
#[inline(always)]
pub const fn piece_at(place: u32, bits: u32, done: u32, piece: u32) -> u32 {
    let (unit, lane, slot) = (place / UNIT as u32, place / SLOTS as u32 % LANES as u32, place % SLOTS as u32);
    // A lane's integers have 32 bits, or as many as its eight pieces take.
    let wide = if piece < 4 { 8 * piece } else { 32 };
    let each = wide / piece;
    UNIT as u32 * (unit * bits + done) + (slot / each * LANES as u32 + lane) * wide + slot % each * piece
}

const _: () = assert!(MOST_LEVEL_BITS < 16 && PLACE_BITS + MOST_LEVEL_BITS + 1 < 32, "an entry and a record are words");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_are_the_logarithm_of_codes_for_each_that_is_not_zero() {
        for count in 1..=CODES {
            assert_eq!(low_bits(count), (f64::from(CODES) / f64::from(count)).log2().floor() as u32, "{count}");
        }
    }

    #[test]
    fn places_and_codes_come_back_from_their_marks_and_records() {
        for bits in [2, 3, 4, 5, 6, 7, 8, 16] {
            for (count, most) in [(1, 1), (1, largest(bits)), (13, 1), (700, largest(bits)), (CODES, largest(bits))] {
                let entry = entry(count, most);
                assert!(is_entry(entry, bits));
                for (index, place) in [(0, 0), (count - 1, CODES - 1), (count / 2, CODES / 2)] {
                    for code in [1, most, 1 | 1 << (bits - 1), most | 1 << (bits - 1)] {
                        let record = record(entry, place, code, bits);
                        assert!(record >> record_bits(entry) == 0);
                        let mark = mark_at(entry, index, place);
                        assert!(mark < mark_bits(entry));
                        assert_eq!(super::place(entry, index, mark, record), place);
                        assert_eq!(super::code(entry, record, bits), code);
                    }
                }
            }
        }
    }

    #[test]
    fn no_other_word_is_an_entry() {
        assert!(is_entry(0, 2) && !is_entry(1 << 16, 2) && is_entry(CODES, 2) && !is_entry(CODES + 1, 2));
        assert!(is_entry(1 | 1 << 16, 2) && !is_entry(1 | 2 << 16, 2));
        assert!(is_entry(1 | 15 << 16, 16) && !is_entry(1 | 16 << 16, 16));
        assert_eq!((words(0), mark_bits(0)), (0, 0));
    }
}
