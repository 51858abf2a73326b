//! How codes are packed, the table of packed codes, an entry per unit, and what follows from it. Pure.

use gradwire_kernels::arith::elias::{class, exponent, largest, middle_bits, rest_bits, unary_bits};
use gradwire_kernels::arith::pack::UNIT;
use gradwire_kernels::arith::{base3, pack, places};
use gradwire_kernels::codecs::CodecId;

/// How the codes of a quantizer are packed after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Entropy {
    /// Not: as codes of one width.
    #[default]
    None,
    /// As Elias gamma codes of the levels of QSGD, of ternary codes and of integers: small levels take fewer bits.
    ///
    /// Source: Elias, "Universal codeword sets and representations of the integers", 1975, gamma codes.
    Elias,
    /// Five codes of 2 bits in a byte, and 2 to 14 bytes of zeros in one: of ternary codes, and of QSGD with 2 bits.
    /// 1.6 bits per element and less, and a byte per 1280 elements.
    ///
    /// Source: Lim, Andersen and Kaminsky, "3LC: Lightweight and effective traffic compression for distributed machine
    /// learning", SysML 2019, sections 3.2 and 3.3.
    Base3,
    /// As Elias delta codes, of what [`Entropy::Elias`] takes: with q = floor(log2(level + 1)), a level takes q + 2
    /// floor(log2(q + 1)) + 1 bits and a sign, where gamma takes 2 q + 1. So levels from 31 on take fewer bits, 8 at
    /// most; those of 1, 2 and 7 to 14 take one more.
    ///
    /// Source: Elias 1975, as above, delta codes.
    Delta,
    /// As places and levels of the codes that are not zero, of what [`Entropy::Elias`] takes: where c of 16384 codes
    /// are not zero, each takes log2(16384 / c) + 2 bits, a sign, and as many as the largest level of these minus 1
    /// has; and 16384 codes take a word. It pays where fewer than one in ten is not zero. Of 10^6 values with one
    /// bucket, two bits and the L2 norm some 800 are not, and the payload has 1,700 bytes.
    ///
    /// Source: Alistarh et al., "QSGD", NIPS 2017, section 3.1 and theorem 3.2, whose code is of gaps and levels;
    /// Elias, "Efficient storage and retrieval by content and address of static files", J. ACM 21(2), 1974, for the
    /// places.
    Sparse,
}

impl Entropy {
    /// Every way.
    pub const ALL: [Self; 5] = [Self::None, Self::Elias, Self::Base3, Self::Delta, Self::Sparse];

    /// The tag in a payload's header.
    pub(crate) const fn tag(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Elias => 1,
            Self::Base3 => 2,
            Self::Delta => 3,
            Self::Sparse => 4,
        }
    }

    /// The way of a tag.
    pub(crate) fn from_tag(tag: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|entropy| entropy.tag() == tag)
    }

    /// The name in texts, and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Elias => "elias",
            Self::Base3 => "base3",
            Self::Delta => "delta",
            Self::Sparse => "sparse",
        }
    }

    /// Which codes can be packed so.
    pub(crate) const fn takes(self) -> &'static str {
        match self {
            Self::None => "any codes",
            Self::Elias | Self::Delta | Self::Sparse => {
                "the codes of QSGD, ternary ones, and floats of the formats int8 and int16"
            }
            Self::Base3 => "ternary codes, and those of QSGD with 2 bits",
        }
    }

    /// Whether codes of this codec, of `bits` bits and `levels` levels, can be packed in this way.
    pub(crate) fn fits(self, codec: CodecId, bits: u32, levels: u32) -> bool {
        match self {
            Self::None => true,
            Self::Elias | Self::Delta | Self::Sparse => codec.packs_levels(levels),
            Self::Base3 => codec.packs_levels(levels) && bits == 2,
        }
    }

    /// Units of 256 codes of fixed width in one of packed codes.
    pub(crate) const fn parts(self) -> u64 {
        match self {
            Self::None | Self::Elias | Self::Delta => 1,
            Self::Base3 => base3::PARTS as u64,
            Self::Sparse => places::PARTS as u64,
        }
    }

    /// Bytes of a unit's entry in the table.
    pub(crate) const fn entry_bytes(self) -> u64 {
        match self {
            Self::None | Self::Elias | Self::Delta | Self::Base3 => 1,
            Self::Sparse => 4,
        }
    }

    /// Units of `n` packed codes.
    pub(crate) const fn units(self, n: u64) -> u64 {
        n.div_ceil(UNIT as u64 * self.parts())
    }

    /// Bytes of the table of `n` packed codes: whole words.
    pub(crate) const fn table_bytes(self, n: u64) -> u64 {
        (self.units(n) * self.entry_bytes()).next_multiple_of(4)
    }

    /// The fewest words of `n` packed codes.
    pub(crate) const fn least_words(self, n: u64) -> u64 {
        let each = match self {
            // A bit per code.
            Self::None | Self::Elias | Self::Delta => UNIT as u64 / 32,
            Self::Base3 => base3::LEAST_WORDS as u64,
            // Zeros take none.
            Self::Sparse => 0,
        };
        self.units(n) * each
    }

    /// The most words of `n` packed codes of `bits` bits, whatever their levels.
    pub(crate) const fn most_words(self, n: u64, bits: u32) -> u64 {
        let each = match self {
            Self::None => pack::unit_bytes(bits) as u64 / 4,
            Self::Elias => {
                let longest = exponent(largest(bits));
                (UNIT as u64 * (unary_bits(longest) + rest_bits(longest)) as u64).div_ceil(32)
            }
            Self::Base3 => base3::MOST_WORDS as u64,
            Self::Sparse => places::most_words(bits) as u64,
            Self::Delta => {
                let longest = exponent(largest(bits));
                let zeros = class(longest);
                let bits = unary_bits(zeros) + middle_bits(zeros) + rest_bits(longest);
                (UNIT as u64 * bits as u64).div_ceil(32)
            }
        };
        self.units(n) * each
    }

    /// Words of all units that a table of `n` codes of `bits` bits names.
    ///
    /// # Errors
    /// An entry that no writer wrote.
    pub(crate) fn words_of(self, table: &[u8], n: u64, bits: u32) -> Result<u64, u32> {
        let units = self.units(n) as usize;
        if self != Self::Sparse {
            return Ok(table.iter().take(units).map(|byte| u64::from(*byte) + 1).sum());
        }
        let entries = table.as_chunks().0.iter().take(units).map(|entry| u32::from_le_bytes(*entry));
        let words =
            |entry| if places::is_entry(entry, bits) { Ok(u64::from(places::words(entry))) } else { Err(entry) };
        entries.map(words).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Entropy::{Base3, Delta, Elias, Sparse};
    use super::*;

    #[test]
    fn the_longest_codes_fill_at_most_256_words() {
        // 1: 2 bits of k = 2, with a sign. 127: 15 and a sign. 32767: 31 and a sign.
        assert_eq!([2, 8, 16].map(|bits| Elias.most_words(256, bits)), [32, 128, 256]);
        // 1: 2 bits of q = 1, a middle, a rest and a sign. 127: 7 bits of q = 7, and as many as that and a sign.
        assert_eq!([2, 8, 16].map(|bits| Delta.most_words(256, bits)), [40, 120, 200]);
        assert_eq!((Elias.most_words(0, 16), Elias.most_words(257, 2), Elias.least_words(257)), (0, 64, 16));
        // 32768 bits of marks, and of each code a level minus 1 and a sign.
        assert_eq!([2, 8, 16].map(|bits| Sparse.most_words(1, bits)), [1536, 5120, 9216]);
        assert_eq!((Base3.most_words(1280, 2), Base3.most_words(1281, 2), Base3.least_words(1281)), (64, 128, 10));
    }

    #[test]
    fn a_table_is_summed_without_its_padding() {
        assert_eq!((Elias.table_bytes(0), Elias.table_bytes(1), Elias.table_bytes(1025)), (0, 4, 8));
        assert_eq!((Base3.table_bytes(5120), Base3.table_bytes(5121)), (4, 8));
        assert_eq!(Elias.words_of(&[7, 8, 255, 255], 512, 4), Ok(17));
        assert_eq!(Base3.words_of(&[7, 8, 255, 255], 1280, 2), Ok(8));
        assert_eq!((Sparse.table_bytes(0), Sparse.table_bytes(16384), Sparse.table_bytes(16385)), (0, 4, 8));
        // 1 + 1 bits of marks, and 14 + 1 of a record; and of 3 levels 2 bits more.
        assert_eq!(Sparse.words_of(&[1, 0, 0, 0, 1, 0, 2, 0], 16385, 3), Ok(2));
        assert_eq!(Sparse.words_of(&[1, 0, 0, 0, 1, 0, 3, 0], 16385, 3), Err(0x0003_0001));
    }

    #[test]
    fn tags_and_ways_agree() {
        assert!(Entropy::ALL.into_iter().all(|entropy| Entropy::from_tag(entropy.tag()) == Some(entropy)));
        assert_eq!(Entropy::from_tag(5), None);
    }
}
