//! Elias codes on the CPU: a unit after the other. Neighbouring codes of a lane are joined in vectors, thirty-two lanes
//! at a time, so that bits are put and taken up to 32 at once.

use std::collections::TryReserveError;

use gradwire_kernels::arith::elias::{exponent_of, largest, middle_bits, read, rest_bits, unary_bits, window, zeros};
use gradwire_kernels::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};

use super::rows::{Unit, pack, unpack};

/// The longest unit: 256 codes of 32 bits.
const MOST_BYTES: usize = 1024;
/// Bytes that are stored or loaded together, and may lie after a unit's last one.
const TOGETHER: usize = 8;

/// Codes of a width that are joined, which take at most 32 bits in either part.
const fn joined(bits: u32) -> usize {
    match bits {
        0..=4 => 8,
        5..=8 => 4,
        _ => 2,
    }
}

/// The place in a unit of each code, in the order in which they are sent: lane after lane.
fn order() -> impl Iterator<Item = usize> {
    (0..LANES).flat_map(|lane| (0..SLOTS).map(move |slot| slot * LANES + lane))
}

/// Joined bits, and how many: those of group `g` of lane `i` are at `32 g + i`.
struct Joined {
    bits: [u32; UNIT / 2],
    lengths: [u32; UNIT / 2],
}

impl Joined {
    const EMPTY: Self = Self { bits: [0; UNIT / 2], lengths: [0; UNIT / 2] };
}

/// The exponent of a level, from that of a float: levels have at most 15 bits. Vectors count no zeros before AVX-512.
#[inline(always)]
fn exponent(level: u32) -> u32 {
    (((level + 1) as i32 as f32).to_bits() >> 23) - 127
}

/// The class of an exponent of at most 15: floor(log2(exponent + 1)).
#[inline(always)]
fn class(exponent: u32) -> u32 {
    u32::from(exponent > 0) + u32::from(exponent > 2) + u32::from(exponent > 6) + u32::from(exponent > 14)
}

/// Joins the parts of a unit's codes: unary parts, middles where these are delta codes, and rests.
#[inline(always)]
fn join<const BITS: u32, const DELTA: bool>(codes: &Unit, [unary, middle, rest]: &mut [Joined; 3]) {
    let each = const { joined(BITS) };
    for group in 0..SLOTS / each {
        for lane in 0..LANES {
            let (mut ones, mut ones_length, mut tails, mut tails_length) = (0, 0, 0, 0);
            let (mut middles, mut middles_length) = (0, 0);
            for slot in 0..each {
                let code = codes[(group * each + slot) * LANES + lane];
                let level = code & largest(BITS);
                let q = exponent(level);
                let before_one = if DELTA { class(q) } else { q };
                ones |= 1 << (ones_length + before_one);
                ones_length += unary_bits(before_one);
                if DELTA {
                    middles |= (q + 1 - (1 << before_one)) << middles_length;
                    middles_length += before_one;
                }
                let sign = (code >> (BITS - 1) & 1) << q;
                let tail = if q == 0 { 0 } else { (level + 1 - (1 << q)) | sign };
                tails |= tail << tails_length;
                tails_length += rest_bits(q);
            }
            let at = group * LANES + lane;
            (unary.bits[at], unary.lengths[at]) = (ones, ones_length);
            (middle.bits[at], middle.lengths[at]) = (middles, middles_length);
            (rest.bits[at], rest.lengths[at]) = (tails, tails_length);
        }
    }
}

/// Writes a unit's Elias codes, and says how many words they are.
#[inline(always)]
fn write<const BITS: u32, const DELTA: bool>(codes: &Unit, out: &mut [u8; MOST_BYTES + TOGETHER]) -> usize {
    let mut parts = [Joined::EMPTY, Joined::EMPTY, Joined::EMPTY];
    join::<BITS, DELTA>(codes, &mut parts);
    let (mut pending, mut count, mut at) = (0u64, 0, 0);
    // Gamma codes have no middles.
    for part in parts.iter().enumerate().filter(|(index, _)| DELTA || *index != 1).map(|(_, part)| part) {
        for lane in 0..LANES {
            for group in 0..SLOTS / const { joined(BITS) } {
                let place = group * LANES + lane;
                // Fewer than 8 bits are pending, and at most 32 come.
                pending |= u64::from(part.bits[place]) << count;
                out[at..at + TOGETHER].copy_from_slice(&pending.to_le_bytes());
                count += part.lengths[place];
                at += (count / 8) as usize;
                pending >>= count / 8 * 8;
                count %= 8;
            }
        }
    }
    out[at..at + TOGETHER].copy_from_slice(&pending.to_le_bytes());
    (8 * at + count as usize).div_ceil(32)
}

/// Packs units, and adds their words to `out`: a byte per unit says how many there are.
///
/// # Errors
/// There is no memory for them all.
#[inline(always)]
pub(super) fn pack_units<const DELTA: bool>(
    bits: u32,
    codes: &[u8],
    table: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<(), TryReserveError> {
    match bits {
        2 => pack_units_of::<2, DELTA>(codes, table, out),
        3 => pack_units_of::<3, DELTA>(codes, table, out),
        4 => pack_units_of::<4, DELTA>(codes, table, out),
        5 => pack_units_of::<5, DELTA>(codes, table, out),
        6 => pack_units_of::<6, DELTA>(codes, table, out),
        7 => pack_units_of::<7, DELTA>(codes, table, out),
        8 => pack_units_of::<8, DELTA>(codes, table, out),
        _ => pack_units_of::<16, DELTA>(codes, table, out),
    }
}

#[inline(always)]
fn pack_units_of<const BITS: u32, const DELTA: bool>(
    codes: &[u8],
    table: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<(), TryReserveError> {
    let mut written = [0; MOST_BYTES + TOGETHER];
    for (unit, entry) in codes.chunks_exact(unit_bytes(BITS)).zip(table) {
        let mut codes = [0; UNIT];
        unpack(BITS, unit, &mut codes);
        let words = write::<BITS, DELTA>(&codes, &mut written);
        // 8 words at least, since a code takes a bit, and 256 at most, since the longest takes 32.
        *entry = (words - 1) as u8;
        out.try_reserve(4 * words)?;
        out.extend_from_slice(&written[..4 * words]);
    }
    Ok(())
}

/// Reads a unit's Elias codes bit by bit, whatever the words hold.
fn read_any<const DELTA: bool>(bits: u32, bytes: &[u8], codes: &mut Unit) {
    let word = |index: u32| {
        let bytes = bytes.get(4 * index as usize..4 * index as usize + 4).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
    };
    let mut exponents = [0; UNIT];
    let mut at = 0;
    for place in order() {
        exponents[place] = zeros(word, at);
        at += unary_bits(exponents[place]);
    }
    for place in order().filter(|_| DELTA) {
        let class = exponents[place];
        exponents[place] = exponent_of(class, window(word, at));
        at += middle_bits(class);
    }
    for place in order() {
        codes[place] = read(word, at, exponents[place], bits);
        at += rest_bits(exponents[place]);
    }
}

/// Where the ones of a unit's unary parts are: after the first entry, which is one before the first bit.
type Ends = [u16; 1 + UNIT + 64];

#[inline(always)]
fn load(bytes: &[u8], bit: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(bit / 8..)?.first_chunk()?))
}

/// Finds the ones; `None` if there are too few.
#[inline(always)]
fn ends(bytes: &[u8], length: usize, ends: &mut Ends) -> Option<()> {
    ends[0] = u16::MAX;
    let (mut found, mut base) = (0, 0);
    while found < UNIT {
        let mut ones = load(bytes, base)?;
        if base + 64 > length {
            ones &= u64::MAX >> (base + 64 - length).min(63);
        }
        let count = ones.count_ones() as usize;
        // Eight at a time, and those that are too many are overwritten: how many there are is as good as random.
        for places in ends[1 + found..1 + found + 64].as_chunks_mut::<8>().0.iter_mut().take(count.div_ceil(8)) {
            for place in places {
                *place = (base as u32 + ones.trailing_zeros()) as u16;
                ones &= ones.wrapping_sub(1);
            }
        }
        found += count;
        base += 64;
        if base >= length && found < UNIT {
            return None;
        }
    }
    Some(())
}

/// Makes exponents of classes, whose middles begin at bit `at`, and says where they end; `None` if an exponent is
/// none of the width's.
#[inline(always)]
fn middles<const BITS: u32>(bytes: &[u8], mut at: usize, exponents: &mut Unit) -> Option<usize> {
    let each = const { joined(BITS) };
    let mut joined = [0; UNIT / 2];
    for lane in 0..LANES {
        for group in 0..SLOTS / each {
            joined[group * LANES + lane] = (load(bytes, at)? >> (at % 8)) as u32;
            for slot in 0..each {
                at += exponents[(group * each + slot) * LANES + lane] as usize;
            }
        }
    }
    let mut most = 0;
    for group in 0..SLOTS / each {
        for lane in 0..LANES {
            let mut bits = joined[group * LANES + lane];
            for slot in 0..each {
                let place = (group * each + slot) * LANES + lane;
                let one = 1 << exponents[place];
                let q = one + (bits & (one - 1)) - 1;
                bits >>= exponents[place];
                exponents[place] = q;
                most = q.max(most);
            }
        }
    }
    (most < BITS).then_some(at)
}

/// Reads a unit's Elias codes of `length` bits, if there are [`TOGETHER`] bytes after them; `None` if they are
/// none that an encoder writes.
#[inline(always)]
fn read_whole<const BITS: u32, const DELTA: bool>(bytes: &[u8], length: usize, codes: &mut Unit) -> Option<()> {
    let each = const { joined(BITS) };
    let mut places: Ends = [0; 1 + UNIT + 64];
    ends(bytes, length, &mut places)?;
    let mut found = [0u16; UNIT];
    for i in 0..UNIT {
        found[i] = places[i + 1].wrapping_sub(places[i]).wrapping_sub(1);
    }
    let longest = if DELTA { class(BITS - 1) } else { BITS - 1 };
    if found.iter().fold(0, |most, q| most.max(*q)) > longest as u16 {
        return None;
    }
    let mut exponents: Unit = [0; UNIT];
    for (i, place) in order().enumerate() {
        exponents[place] = u32::from(found[i]);
    }
    let mut at = usize::from(places[UNIT]) + 1;
    if DELTA {
        at = middles::<BITS>(bytes, at, &mut exponents)?;
    }
    let mut rest = Joined::EMPTY;
    for group in 0..SLOTS / each {
        for lane in 0..LANES {
            let mut length = 0;
            for slot in 0..each {
                length += rest_bits(exponents[(group * each + slot) * LANES + lane]);
            }
            rest.lengths[group * LANES + lane] = length;
        }
    }
    for lane in 0..LANES {
        for group in 0..SLOTS / each {
            let place = group * LANES + lane;
            rest.bits[place] = (load(bytes, at)? >> (at % 8)) as u32;
            at += rest.lengths[place] as usize;
        }
    }
    if at > length {
        return None;
    }
    for group in 0..SLOTS / each {
        for lane in 0..LANES {
            let mut bits = rest.bits[group * LANES + lane];
            for slot in 0..each {
                let place = (group * each + slot) * LANES + lane;
                let q = exponents[place];
                let one = 1 << q;
                let level = (one + (bits & (one - 1)) - 1).min(largest(BITS));
                codes[place] = if q == 0 { 0 } else { level | (bits >> q & 1) << (BITS - 1) };
                // One bit more than the exponent, and a level has at most 15.
                bits = if q == 0 { bits } else { bits >> 1 >> q };
            }
        }
    }
    Some(())
}

/// Unpacks the units of a table; the first one's words are at the start of `packed`, and there may be others after.
#[inline(always)]
pub(super) fn unpack_units<const DELTA: bool>(bits: u32, table: &[u8], packed: &[u8], codes: &mut [u8]) {
    match bits {
        2 => unpack_units_of::<2, DELTA>(table, packed, codes),
        3 => unpack_units_of::<3, DELTA>(table, packed, codes),
        4 => unpack_units_of::<4, DELTA>(table, packed, codes),
        5 => unpack_units_of::<5, DELTA>(table, packed, codes),
        6 => unpack_units_of::<6, DELTA>(table, packed, codes),
        7 => unpack_units_of::<7, DELTA>(table, packed, codes),
        8 => unpack_units_of::<8, DELTA>(table, packed, codes),
        _ => unpack_units_of::<16, DELTA>(table, packed, codes),
    }
}

#[inline(always)]
fn unpack_units_of<const BITS: u32, const DELTA: bool>(table: &[u8], packed: &[u8], codes: &mut [u8]) {
    let mut from = 0;
    let mut copy = [0; MOST_BYTES + TOGETHER];
    for (entry, out) in table.iter().zip(codes.chunks_exact_mut(unit_bytes(BITS))) {
        let length = 4 * (usize::from(*entry) + 1);
        let bytes = &packed[from..from + length];
        from += length;
        let roomy = packed.get(from - length..from + TOGETHER).unwrap_or_else(|| {
            copy[..length].copy_from_slice(bytes);
            &copy[..length + TOGETHER]
        });
        let mut values = [0; UNIT];
        if read_whole::<BITS, DELTA>(roomy, 8 * length, &mut values).is_none() {
            read_any::<DELTA>(BITS, bytes, &mut values);
        }
        pack(BITS, &values, out);
    }
}
