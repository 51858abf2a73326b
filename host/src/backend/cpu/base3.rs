//! Codes in base 3 on the CPU: a unit after the other, its plain bytes in vectors, and its runs byte by byte.

use std::collections::TryReserveError;

use gradwire_kernels::arith::base3::{LONGEST, PART_WORDS, PARTS, PLAIN, codes, digits, length, run, spread, third};
use gradwire_kernels::arith::pack::unit_bytes;

/// Groups of five words of a unit.
const FIVES: usize = PART_WORDS as usize;
const PLAIN_BYTES: usize = PLAIN as usize;

/// Encoded bytes of a unit, and room for one that is not sent.
type Encoded = [u8; PLAIN_BYTES + 2];
/// The words of a unit, sixteen codes or digits each.
type Words = [[u32; PARTS]; FIVES];

/// The plain bytes of a unit, the last words of which may not be there: four words of them for each five of codes.
#[inline(always)]
fn plain(unit: &[u8]) -> [[u32; 4]; FIVES] {
    let mut own: Words = [[0; PARTS]; FIVES];
    for (to, word) in own.as_flattened_mut().iter_mut().zip(unit.as_chunks::<4>().0) {
        *to = digits(u32::from_le_bytes(*word));
    }
    let mut plain = [[0; 4]; FIVES];
    for (to, five) in plain.iter_mut().zip(&own) {
        for (first, to) in (0..).zip(to) {
            *to = five.iter().rev().fold(0, |sum, word| 3 * sum + spread(*word, first));
        }
    }
    plain
}

/// A bit for each of eight bytes, whether it is not zero.
#[inline(always)]
const fn set(bytes: u64) -> u64 {
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let tops = (((bytes & !TOPS) + !TOPS) | bytes) & TOPS;
    // Gathers the top bits in the highest byte.
    (tops >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// Writes what a run of zeros becomes, and says where the next byte goes.
#[inline(always)]
fn skip(out: &mut Encoded, mut at: usize, mut zeros: usize) -> usize {
    while zeros >= LONGEST as usize {
        out[at] = run(LONGEST) as u8;
        (at, zeros) = (at + 1, zeros - LONGEST as usize);
    }
    // Written in any case: whether there are any is as good as random.
    out[at] = run(zeros as u32) as u8;
    at + usize::from(zeros > 0)
}

/// Writes a unit's encoded bytes, and says how many there are.
#[inline(always)]
fn encode(plain: &[u8; PLAIN_BYTES], out: &mut Encoded) -> usize {
    let (mut at, mut next) = (0, 0);
    for (first, bytes) in (0..).step_by(64).zip(plain.as_chunks::<64>().0) {
        let mut left = 0;
        for (k, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
            left |= set(u64::from_le_bytes(*eight)) << (8 * k);
        }
        while left != 0 {
            let place = first + left.trailing_zeros() as usize;
            at = skip(out, at, place - next);
            out[at] = plain[place];
            (at, next, left) = (at + 1, place + 1, left & (left - 1));
        }
    }
    skip(out, at, PLAIN_BYTES - next)
}

/// Packs units, and adds their words to `out`: a byte per unit says how many there are. The codes have 2 bits.
///
/// # Errors
/// There is no memory for them all.
#[inline(always)]
pub(super) fn pack_units(codes: &[u8], table: &mut [u8], out: &mut Vec<u8>) -> Result<(), TryReserveError> {
    for (unit, entry) in codes.chunks(PARTS * unit_bytes(2)).zip(table) {
        let words = plain(unit);
        let mut bytes = [0; PLAIN_BYTES];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words.as_flattened()) {
            *to = word.to_le_bytes();
        }
        let mut written: Encoded = [0; PLAIN_BYTES + 2];
        let count = encode(&bytes, &mut written);
        // Behind the last byte that is sent may be others.
        written[count..].fill(0);
        let words = count.div_ceil(4);
        *entry = (words - 1) as u8;
        out.try_reserve(4 * words)?;
        out.extend_from_slice(&written[..4 * words]);
    }
    Ok(())
}

/// Unpacks the units of a table; the first one's words are at the start of `packed`, and there may be others after.
#[inline(always)]
pub(super) fn unpack_units(table: &[u8], packed: &[u8], out: &mut [u8]) {
    let mut from = 0;
    for (entry, out) in table.iter().zip(out.chunks_mut(PARTS * unit_bytes(2))) {
        let bytes = 4 * (usize::from(*entry) + 1);
        // A run may reach beyond the unit.
        let mut plain = [0; PLAIN_BYTES + LONGEST as usize];
        let mut at = 0;
        for byte in &packed[from..from + bytes] {
            if at >= PLAIN_BYTES {
                break;
            }
            let length = length((*byte).into()) as usize;
            plain[at] = if length == 1 { *byte } else { 0 };
            at += length;
        }
        from += bytes;
        let mut rest = [[0; 4]; FIVES];
        for (word, bytes) in rest.as_flattened_mut().iter_mut().zip(plain.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let mut own: Words = [[0; PARTS]; FIVES];
        for part in 0..PARTS {
            for (to, rest) in own.iter_mut().zip(&mut rest) {
                let next = rest.map(third);
                for (first, (rest, next)) in rest.iter_mut().zip(next).enumerate() {
                    to[part] |= codes(*rest - 3 * next) << (2 * first);
                    *rest = next;
                }
            }
        }
        for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(own.as_flattened()) {
            *to = word.to_le_bytes();
        }
    }
}
