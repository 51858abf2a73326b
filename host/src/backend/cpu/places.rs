//! Places and levels of the codes that are not zero, on the CPU: a unit after the other. Bytes of zeros are skipped.

use std::collections::TryReserveError;

use gradwire_kernels::arith::elias::level_of;
use gradwire_kernels::arith::pack::{LANES, PIECES, SLOTS, UNIT, cut, unit_bytes};
use gradwire_kernels::arith::places::{
    CODES, PARTS, code, count, entry, mark_at, mark_bits, piece_at, place, record, record_at, record_bits, words,
};

use super::rows::{Unit, unpack};

/// Codes whose level is not zero, with their places, in the order of places.
type Found = Vec<(u32, u32)>;

/// Bytes of an entry of the table.
const ENTRY: usize = 4;

/// Adds the codes of 2 bits whose level is not zero: those of a unit of 256 are in the order of places.
fn find_of_2_bits(first: u32, unit: &[u8], found: &mut Found) {
    for (index, eight) in unit.as_chunks::<8>().0.iter().enumerate() {
        let codes = u64::from_le_bytes(*eight);
        let mut levels = codes & 0x5555_5555_5555_5555;
        while levels != 0 {
            let at = levels.trailing_zeros();
            found.push((first + 32 * index as u32 + at / 2, (codes >> at & 3) as u32));
            levels &= levels - 1;
        }
    }
}

/// As [`find_of_2_bits`], of codes of any width.
fn find(bits: u32, first: u32, unit: &[u8], found: &mut Found) {
    if unit.as_chunks::<32>().0.iter().all(|bytes| *bytes == [0; 32]) {
        return;
    }
    let mut codes: Unit = [0; UNIT];
    unpack(bits, unit, &mut codes);
    for lane in 0..LANES {
        for slot in 0..SLOTS {
            let code = codes[slot * LANES + lane];
            if level_of(code, bits) != 0 {
                found.push((first + (SLOTS * lane + slot) as u32, code));
            }
        }
    }
}

/// Sets bits from bit `at` on.
fn set(words: &mut [u32], at: u32, value: u32) {
    let (index, shift) = ((at / 32) as usize, at % 32);
    words[index] |= value << shift;
    if shift > 0 && value >> (32 - shift) != 0 {
        words[index + 1] |= value >> (32 - shift);
    }
}

/// Packs units, and adds their words to `out`: an entry of the table per unit says how many there are.
///
/// # Errors
/// There is no memory for them all.
pub(super) fn pack_units(bits: u32, codes: &[u8], table: &mut [u8], out: &mut Vec<u8>) -> Result<(), TryReserveError> {
    let mut found = Found::new();
    found.try_reserve_exact(CODES as usize)?;
    let mut own = Vec::new();
    for (unit, slot) in codes.chunks(PARTS as usize * unit_bytes(bits)).zip(table.chunks_exact_mut(ENTRY)) {
        found.clear();
        for (index, unit) in unit.chunks_exact(unit_bytes(bits)).enumerate() {
            let first = (UNIT * index) as u32;
            if bits == 2 { find_of_2_bits(first, unit, &mut found) } else { find(bits, first, unit, &mut found) }
        }
        let most = found.iter().map(|(_, code)| level_of(*code, bits)).max().unwrap_or(0);
        let entry = entry(found.len() as u32, most);
        slot.copy_from_slice(&entry.to_le_bytes());
        own.clear();
        own.try_reserve(words(entry) as usize)?;
        own.resize(words(entry) as usize, 0);
        for (index, (place, code)) in (0..).zip(&found) {
            set(&mut own, mark_at(entry, index, *place), 1);
            set(&mut own, record_at(entry, index), record(entry, *place, *code, bits));
        }
        out.try_reserve(4 * own.len())?;
        out.extend(own.iter().flat_map(|word| word.to_le_bytes()));
    }
    Ok(())
}

/// Words of the units of a table, of which each entry was checked.
pub(super) fn words_of(table: &[u8]) -> usize {
    table.as_chunks().0.iter().map(|entry| words(u32::from_le_bytes(*entry)) as usize).sum()
}

/// The words of one unit.
struct Words<'w>(&'w [[u8; 4]]);

impl Words<'_> {
    /// A word; zeros after the last.
    fn word(&self, index: u32) -> u32 {
        self.0.get(index as usize).map_or(0, |word| u32::from_le_bytes(*word))
    }

    /// 32 bits from bit `at` on.
    fn window(&self, at: u32) -> u32 {
        let both = u64::from(self.word(at / 32)) | u64::from(self.word(at / 32 + 1)) << 32;
        (both >> (at % 32)) as u32
    }
}

/// Sets the bits of the code at a place, if its unit of 256 is there.
fn put(bits: u32, at: u32, code: u32, codes: &mut [u8]) {
    let mut done = 0;
    for piece in PIECES.into_iter().filter(|piece| bits & piece != 0) {
        let (first, value) = (piece_at(at, bits, done, piece), cut(code, done, piece));
        // A piece of 16 bits is two bytes, and any other within one.
        let index = (first / 8) as usize;
        if let Some(byte) = codes.get_mut(index) {
            *byte |= (value << (first % 8)) as u8;
        }
        if piece == 16
            && let Some(byte) = codes.get_mut(index + 1)
        {
            *byte |= (value >> 8) as u8;
        }
        done += piece;
    }
}

/// Unpacks the units of a table, whose words are at the start of `packed`; there may be others after them.
pub(super) fn unpack_units(bits: u32, table: &[u8], packed: &[u8], codes: &mut [u8]) {
    let mut rest = packed.as_chunks().0;
    for (slot, codes) in table.as_chunks().0.iter().zip(codes.chunks_mut(PARTS as usize * unit_bytes(bits))) {
        let entry = u32::from_le_bytes(*slot);
        let (own, after) = rest.split_at(words(entry) as usize);
        rest = after;
        codes.fill(0);
        let (own, marks) = (Words(own), mark_bits(entry));
        let mut index = 0;
        for word in 0..marks.div_ceil(32) {
            let left = marks - 32 * word;
            let mut ones = if left < 32 { own.word(word) & ((1 << left) - 1) } else { own.word(word) };
            while ones != 0 && index < count(entry) {
                let mark = 32 * word + ones.trailing_zeros();
                let record = own.window(record_at(entry, index)) & ((1 << record_bits(entry)) - 1);
                let at = place(entry, index, mark, record);
                if at < CODES {
                    put(bits, at, code(entry, record, bits), codes);
                }
                ones &= ones - 1;
                index += 1;
            }
        }
    }
}
