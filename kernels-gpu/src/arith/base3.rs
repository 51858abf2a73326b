//! Codes of 2 bits in base 3, five of them in a byte, and runs of zero bytes in one.
//!
//! Source: Lim, Andersen and Kaminsky, "3LC: Lightweight and effective traffic compression for distributed machine
//! learning", SysML 2019, sections 3.2 (quartic encoding) and 3.3 (zero-run encoding).
//!
//! A *unit* is 1280 codes: five units of 256 codes of fixed width, which are 80 words of 16 codes. The codes at one
//! place of five neighbouring words become a byte: the sum of 3^w times the digit of word `w` of the five, at most 242.
//! A unit thus has 256 bytes, the *plain* ones. Of those, a run of 2 to 14 zeros becomes one byte, 241 + its length; a
//! longer run is cut from its start into runs of 14. Runs do not cross the end of a unit.

use super::elias;

/// Units of 256 codes of fixed width in a unit, and words whose codes at one place make a byte.
pub const PARTS: usize = 5;
/// Words of a unit of 256 codes of 2 bits.
pub const PART_WORDS: u32 = 16;
/// Plain bytes of a unit.
pub const PLAIN: u32 = 256;
/// The most words of a unit.
pub const MOST_WORDS: u32 = PLAIN / 4;
/// The longest run of zeros that a byte stands for.
pub const LONGEST: u32 = 14;
/// The fewest words of a unit: of 256 zeros.
pub const LEAST_WORDS: u32 = PLAIN.div_ceil(LONGEST).div_ceil(4);
/// Units that one workgroup takes.
pub const BLOCK_UNITS: u32 = elias::BLOCK_UNITS;

/// The lowest bit of each of sixteen codes.
const LOW: u32 = 0x5555_5555;
/// The lowest bit of each of four bytes.
const ONES: u32 = 0x0101_0101;

/// The digits of sixteen codes of 2 bits, each in the place of its code: 0 of a level of zero, 1 of the level 1, and 2
/// of that level with a sign.
#[inline(always)]
pub const fn digits(codes: u32) -> u32 {
    (codes & LOW) + (codes & codes >> 1 & LOW)
}

/// Four of the sixteen digits, each in a byte: those at places `first`, `first` + 4, `first` + 8 and `first` + 12.
#[inline(always)]
pub const fn spread(digits: u32, first: u32) -> u32 {
    digits >> (2 * first) & (3 * ONES)
}

/// Codes of four digits, each in a byte.
#[inline(always)]
pub const fn codes(digits: u32) -> u32 {
    digits | digits >> 1 & ONES
}

/// A third of each of four bytes, rounded down.
///
/// ```
/// use gradwire_kernels::arith::base3::third;
/// assert!((0..=255).all(|byte| third(byte * 0x0101_0101) == byte / 3 * 0x0101_0101));
/// ```
#[inline(always)]
pub const fn third(bytes: u32) -> u32 {
    // 171/512 is above 1/3 by less than 1/(3 * 256).
    let low = ((bytes & 0x00ff_00ff) * 171) >> 9 & 0x007f_007f;
    let high = ((bytes >> 8 & 0x00ff_00ff) * 171) >> 9 & 0x007f_007f;
    low | high << 8
}

/// Plain bytes an encoded byte stands for.
#[inline(always)]
pub const fn length(byte: u32) -> u32 {
    if byte > 242 { byte - 241 } else { 1 }
}

/// The byte of a run of so many zeros, 1 to 14.
#[inline(always)]
pub const fn run(zeros: u32) -> u32 {
    if zeros > 1 { 241 + zeros } else { 0 }
}

/// What becomes of the plain byte at `place`, where the run of zeros that it may be in begins at `begin`, and whether
/// the byte after it is another than zero, or there is none: the encoded byte, if one ends here.
#[inline(always)]
pub const fn encoded(byte: u32, place: u32, begin: u32, last: bool) -> (u32, bool) {
    let before = (place - begin) % LONGEST;
    let ends = last || before + 1 == LONGEST;
    if byte == 0 { (run(before + 1), ends) } else { (byte, true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_digits_of_every_kind_come_back() {
        for byte in 0..243u32 {
            let mut rest = byte * ONES;
            let (mut all, mut power) = (0, 1);
            for _ in 0..PARTS {
                let next = third(rest);
                let digit = rest - 3 * next;
                assert_eq!((digit & 0xff) * ONES, digit, "{byte}");
                // The code is one of 2 bits, and its digit is the same.
                let code = codes(digit) & 0xff;
                assert!(code != 2 && digits(code) == digit & 0xff, "{byte}");
                all += power * (digit & 0xff);
                power *= 3;
                rest = next;
            }
            assert_eq!((all, rest), (byte, 0));
        }
    }

    #[test]
    fn digits_lie_where_their_codes_do() {
        // Codes 0, 1, 2 (a zero with a sign) and 3.
        assert_eq!(digits(0b11_10_01_00), 0b10_00_01_00);
        assert_eq!(digits(u32::MAX), 0xaaaa_aaaa);
        assert_eq!(spread(0x0000_0080, 3), 2);
        assert_eq!(spread(0x8000_0000, 3), 0x0200_0000);
    }

    #[test]
    fn runs_are_cut_into_fourteens() {
        let of = |bytes: &[u32]| {
            let mut begin = 0;
            let mut all = std::vec::Vec::new();
            for (place, byte) in bytes.iter().enumerate() {
                let last = bytes.get(place + 1).is_none_or(|next| *next != 0);
                let (value, ends) = encoded(*byte, place as u32, begin, last);
                if ends {
                    all.push(value);
                }
                begin = if *byte == 0 { begin } else { place as u32 + 1 };
            }
            all
        };
        assert_eq!(of(&[5, 0, 7]), [5, 0, 7]);
        assert_eq!(of(&[0, 0, 242]), [243, 242]);
        assert_eq!(of(&[0; 14]), [255]);
        assert_eq!(of(&[0; 15]), [255, 0]);
        assert_eq!(of(&[0; 30]), [255, 255, 243]);
        assert_eq!(of(&[0; 256]).len() as u32, PLAIN.div_ceil(LONGEST));
        for bytes in [&[3u32, 0, 0, 0][..], &[0; 256]] {
            assert_eq!(of(bytes).iter().map(|byte| length(*byte)).sum::<u32>() as usize, bytes.len());
        }
    }
}
