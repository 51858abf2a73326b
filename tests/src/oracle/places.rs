//! Payloads packed as places and levels, one bit at a time: written from `docs/wire.md`, sharing no code with the
//! product.

use super::elias::{self, Shape, levels, seal};

/// Codes of a unit.
const CODES: usize = 16_384;

/// floor(log2(16384 / count)).
fn low_bits(count: usize) -> usize {
    (0..=14).rev().find(|w| count << w <= CODES).expect("a count of at most 16384")
}

fn word(bits: &[bool]) -> u32 {
    bits.iter().rev().fold(0, |word, bit| word << 1 | u32::from(*bit))
}

/// The bits of a unit's marks and records, unpadded, and its entry of the table.
fn stream(levels: &[(u64, bool)]) -> (u32, Vec<bool>) {
    let found: Vec<_> = levels.iter().enumerate().filter(|(_, (level, _))| *level > 0).collect();
    let Some(most) = found.iter().map(|(_, (level, _))| *level).max() else { return (0, Vec::new()) };
    let (count, low) = (found.len(), low_bits(found.len()));
    let level_bits = (0..).find(|b| most - 1 < 1 << b).expect("a level");
    let mut marks = vec![false; count + (CODES >> low)];
    let mut records = Vec::new();
    for (index, (place, (level, sign))) in found.into_iter().enumerate() {
        marks[(place >> low) + index] = true;
        records.extend((0..low).map(|bit| place >> bit & 1 == 1));
        records.extend((0..level_bits).map(|bit| (level - 1) >> bit & 1 == 1));
        records.push(*sign);
    }
    marks.extend(records);
    (count as u32 + (level_bits as u32) * 65_536, marks)
}

/// The payload with its codes packed as places and levels.
pub fn pack(payload: &[u8]) -> Vec<u8> {
    let shape = Shape::of(payload);
    let (mut table, mut words) = (Vec::new(), Vec::new());
    for units in payload[shape.codes_at..].chunks(64 * 32 * shape.bits as usize) {
        let levels: Vec<_> =
            units.chunks_exact(32 * shape.bits as usize).flat_map(|unit| levels(unit, shape.bits)).collect();
        let (entry, stream) = stream(&levels);
        table.extend(entry.to_le_bytes());
        words.extend(stream.chunks(32).map(word));
    }
    let mut out = payload[..shape.codes_at].to_vec();
    out[20] = 4;
    out[24..28].copy_from_slice(&(words.len() as u32).to_le_bytes());
    out.extend(table);
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    seal(&mut out);
    out
}

/// The payload with codes of fixed width.
pub fn unpack(payload: &[u8]) -> Vec<u8> {
    let shape = Shape::of(payload);
    let bits = shape.bits as usize;
    let units = shape.n.div_ceil(CODES);
    let (mut at, unit_bytes) = (shape.codes_at + 4 * units, 32 * bits);
    let mut out = payload[..shape.codes_at].to_vec();
    out[20] = 0;
    out[24..28].fill(0);
    for (unit, entry) in payload[shape.codes_at..at].chunks_exact(4).enumerate() {
        let entry = u32::from_le_bytes(entry.try_into().expect("4 bytes"));
        let (count, level_bits) = ((entry % 65_536) as usize, (entry / 65_536) as usize);
        let left = (shape.units() - 64 * unit).min(64);
        let mut codes = vec![0; left * unit_bytes];
        if count > 0 {
            let low = low_bits(count);
            let (marks, record) = (count + (CODES >> low), low + level_bits + 1);
            let words = (marks + count * record).div_ceil(32);
            let bytes = &payload[at..at + 4 * words];
            at += 4 * words;
            let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1 == 1;
            let number = |at: usize, bits: usize| (0..bits).fold(0, |sum, i| sum + (u64::from(bit(at + i)) << i));
            for (index, mark) in (0..marks).filter(|mark| bit(*mark)).take(count).enumerate() {
                let from = marks + index * record;
                let place = (mark - index) * (1 << low) + number(from, low) as usize;
                // More than any width holds is as much as this one holds.
                let level = (number(from + low, level_bits) + 1).min((1 << (bits - 1)) - 1);
                let code = level | u64::from(bit(from + low + level_bits)) << (bits - 1);
                if place < 256 * left {
                    elias::put(&mut codes[place / 256 * unit_bytes..], shape.bits, place % 256, code);
                }
            }
        }
        out.extend(codes);
    }
    seal(&mut out);
    out
}
