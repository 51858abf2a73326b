//! Payloads forged from a fuzzer's bytes: the first bytes choose the codec and the header's fields, the rest is the
//! body.
//!
//! Most choices are taken from what the format allows, so that most payloads are decoded; the highest values of a
//! choosing byte take the field as it comes, so that every refusal is found as well.

use super::reader::{self, Fields};
use crate::formula::CODECS;

/// Choosing bytes from here on take a field's value from the bytes that follow.
pub const RAW: u8 = 0xf0;
/// The choosing byte of the reserved bytes, from here up to [`RAW`]: codes that can be packed are, in the ways that
/// there are by turns.
const PACKED: u8 = 0xc0;
/// The most elements that a forged payload has a body for. More are decoded on a pool of threads, whose own memory is
/// not what a payload costs; `tests/cpu/mutations.rs` measures that.
const MOST: u64 = 1 << 16;

/// The most bytes of a forged payload: those of [`MOST`] elements of any format take fewer.
const LONGEST: u128 = 1 << 22;

/// What the bytes chose.
#[derive(Clone, Debug)]
pub struct Forged {
    /// A payload with the right checksum.
    pub bytes: Vec<u8>,
    /// Another of the same kind, its body the other way round.
    pub other: Vec<u8>,
    /// A weight, any bits.
    pub weight: f32,
}

/// The same bytes as packed codes: a table within what the width allows, and any words.
fn packed(fields: &Fields, bytes: &[u8], entropy: u8) -> Vec<u8> {
    let fixed = fields.n.div_ceil(256) as usize;
    let (front, codes) = bytes.split_at(bytes.len() - fixed * 32 * usize::from(fields.bits));
    let units = if entropy == 2 { fixed.div_ceil(5) } else { fixed };
    let (least, most) = fields.words(entropy);
    let entry = |byte: &u8| (least - 1 + u64::from(*byte) % (most - least + 1)) as u8;
    let (mut table, words) = if entropy == 4 {
        places(fields, codes)
    } else {
        let table: Vec<u8> = codes.iter().take(units).map(entry).collect();
        let words: u32 = table.iter().map(|byte| u32::from(*byte) + 1).sum();
        (table, words)
    };
    table.resize(table.len().next_multiple_of(4), 0);
    let mut out = front.to_vec();
    out[20] = entropy;
    out[24..28].copy_from_slice(&words.to_le_bytes());
    out.extend(&table);
    out.extend(codes.iter().cycle().take(4 * words as usize));
    out
}

/// A table of places, of units with few codes that are not zero or with many, and the words that it names.
fn places(fields: &Fields, codes: &[u8]) -> (Vec<u8>, u32) {
    let units = fields.n.div_ceil(16_384) as usize;
    let (mut table, mut words) = (Vec::new(), 0);
    for unit in 0..units {
        let byte = |at: usize| u32::from(codes.get(4 * unit + at).copied().unwrap_or(0));
        let count = ((byte(0) | byte(1) << 8) >> (byte(2) % 16)) % 16_385;
        // One more than the page allows is among them.
        let level_bits = byte(3) % (u32::from(fields.bits) + 1);
        let entry = if count == 0 { 0 } else { count | level_bits << 16 };
        words += reader::places_words(entry, fields.bits).unwrap_or(0) as u32;
        table.extend(entry.to_le_bytes());
    }
    (table, words)
}

struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// One of those allowed, or any.
    fn one_of(&mut self, allowed: &[u8]) -> u8 {
        match self.byte() {
            RAW.. => self.byte(),
            choice => allowed[usize::from(choice) % allowed.len()],
        }
    }
}

/// A payload. The first byte chooses the codec.
pub fn payload(bytes: &[u8]) -> Forged {
    let mut choices = Choices(bytes);
    let tags: Vec<u8> = CODECS.iter().map(|tests| tests.page.tag).collect();
    let codec = tags[usize::from(choices.byte()) % tags.len()];
    let mut fields = Fields { codec, bits: 0, bucket: 0, n: 0, levels: 0, dtype: 0, flags: 0 };
    let flags: Vec<u8> = (0..4).filter(|flags| flags & !fields.all_flags() == 0).collect();
    fields = Fields {
        bits: choices.one_of(fields.widths()),
        bucket: choices.one_of(fields.buckets()),
        dtype: choices.one_of(&[0, 1, 2]),
        flags: choices.one_of(&flags),
        ..fields
    };
    fields.n = match choices.byte() {
        RAW.. => choices.word(),
        // Now and then past the largest bucket and a unit, else around the small ones: short ones run fast.
        high => u64::from(choices.byte()) * if high < 0xe0 { 1 + u64::from(high % 4) } else { 34 },
    };
    let (most, named) = (fields.most_levels(), fields.named_levels());
    fields.levels = match choices.byte() {
        RAW.. => choices.word() as u16,
        choice if !named.is_empty() => named[usize::from(choice) % named.len()],
        0..0x80 => most,
        _ => 1 + choices.word() as u16 % most.max(1),
    };
    let weight = match choices.byte() {
        RAW.. => f32::from_bits(choices.word() as u32),
        choice => [0.5, 1.0, -1.0, 0.0][usize::from(choice) % 4],
    };
    let reserved = choices.byte();
    let length = match choices.byte() {
        RAW.. => u128::from(choices.byte()),
        0xee => fields.length() + 1,
        0xed => fields.length().saturating_sub(1),
        _ => fields.length(),
    };
    let mut head = fields.write();
    if reserved >= RAW {
        head[20 + usize::from(reserved % 8)] = choices.byte();
    }
    let body = choices.0;
    let fill = |reverse: bool| {
        // A width that no codec has can ask for tables of gigabytes.
        let is_long = fields.n > MOST || length > LONGEST;
        let length = if is_long { 32 + body.len() } else { length as usize };
        let mut bytes = head.to_vec();
        // A short input is repeated, so that it reaches every bucket and unit.
        let turned: Vec<u8> = if reverse { body.iter().rev().copied().collect() } else { body.to_vec() };
        let pattern = if turned.is_empty() { vec![0] } else { turned };
        bytes.extend(pattern.iter().cycle().take(length.saturating_sub(32)));
        bytes.truncate(length);
        let ways = fields.packings();
        let packable = !ways.is_empty() && bytes.len() as u128 == fields.length();
        if (PACKED..RAW).contains(&reserved) && packable {
            bytes = packed(&fields, &bytes, ways[usize::from(reserved) % ways.len()]);
        }
        reader::seal(&mut bytes);
        bytes
    };
    Forged { bytes: fill(false), other: fill(true), weight }
}
