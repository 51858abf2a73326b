//! Functions of whole words.

/// The bits that a table of eight gives for three bits.
pub(super) fn lut(table: u32, x: u32, y: u32, z: u32) -> u32 {
    let minterm = |i: u32| {
        let pick = |bit: u32, word: u32| if i >> bit & 1 == 1 { word } else { !word };
        pick(2, x) & pick(1, y) & pick(0, z)
    };
    (0..8).filter(|i| table >> i & 1 == 1).fold(0, |all, i| all | minterm(i))
}

/// A pair shifted, and its upper or lower word.
pub(super) fn funnel(low: u32, high: u32, by: u32, left: bool, upper: bool, signed: bool) -> u32 {
    let pair = u64::from(high) << 32 | u64::from(low);
    let shifted = match (left, signed) {
        (true, _) => pair.checked_shl(by).unwrap_or(0),
        (false, true) => (pair as i64 >> by.min(63)) as u64,
        (false, false) => pair.checked_shr(by).unwrap_or(0),
    };
    (if upper { shifted >> 32 } else { shifted }) as u32
}

/// Four bytes of two words, each chosen by four bits; the highest of them takes a byte's sign instead.
pub(super) fn bytes(x: u32, y: u32, selector: u32) -> u32 {
    let all = u64::from(y) << 32 | u64::from(x);
    (0..4).fold(0, |word, i| {
        let nibble = selector >> (4 * i) & 15;
        let byte = (all >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        word | u32::from(byte) << (8 * i)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_made_as_the_names_say() {
        let (x, y, z) = (0xf0f0_1234, 0xcccc_5678, 0xaaaa_9abc);
        assert_eq!(lut(0xc0, x, y, z), x & y);
        assert_eq!(lut(0x96, x, y, z), x ^ y ^ z);
        assert_eq!(lut(0xf8, x, y, z), x | y & z);
        assert_eq!(lut(0x33, x, y, z), !y);
        assert_eq!(funnel(0x8000_0001, 0, 1, true, false, false), 2);
        assert_eq!(funnel(0x8000_0001, 0, 1, true, true, false), 1);
        assert_eq!(funnel(0, 0x8000_0000, 31, false, true, true), u32::MAX);
        assert_eq!(funnel(0, 5, 32, false, true, false), 0);
        assert_eq!(funnel(7, 5, 32, false, false, false), 5);
        assert_eq!(bytes(0x3322_1180, 0x7766_5544, 0x9910), 0x1180);
        assert_eq!(bytes(0x3322_1180, 0, 0x8810), 0xffff_1180);
        assert_eq!(bytes(0x3322_1180, 0x7766_5544, 0x7640), 0x7766_4480);
    }
}
