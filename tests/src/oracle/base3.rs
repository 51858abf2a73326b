//! Payloads in base 3, one code at a time: written from `docs/wire.md`, sharing no code with the product.

use super::elias::{Shape, levels, seal};

/// The 256 plain bytes of a unit, of which up to five parts of 256 codes are there.
fn plain(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0u8; 256];
    for (part, unit) in parts.iter().enumerate() {
        for (at, (level, sign)) in levels(unit, 2).into_iter().enumerate() {
            // Lane after lane, eight codes of each; a word has two lanes.
            let (word, place) = (16 * part + at / 16, at % 16);
            let digit = if level == 0 { 0 } else { 1 + u8::from(sign) };
            bytes[16 * (word / 5) + 4 * (place % 4) + place / 4] += 3u8.pow(word as u32 % 5) * digit;
        }
    }
    bytes
}

/// The bytes that plain ones become.
pub fn runs(plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < plain.len() {
        let zeros = plain[at..].iter().take(14).take_while(|byte| **byte == 0).count();
        out.push(match zeros {
            0 => plain[at],
            1 => 0,
            _ => 241 + zeros as u8,
        });
        at += zeros.max(1);
    }
    out
}

/// The payload with its codes of 2 bits packed.
pub fn pack(payload: &[u8]) -> Vec<u8> {
    let shape = Shape::of(payload);
    let parts: Vec<&[u8]> = payload[shape.codes_at..].chunks_exact(64).collect();
    let (mut table, mut words) = (Vec::new(), Vec::new());
    for unit in parts.chunks(5) {
        let mut bytes = runs(&plain(unit));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        table.push((bytes.len() / 4 - 1) as u8);
        words.extend(bytes);
    }
    table.resize(table.len().next_multiple_of(4), 0);
    let mut out = payload[..shape.codes_at].to_vec();
    out[20] = 2;
    out[24..28].copy_from_slice(&(words.len() as u32 / 4).to_le_bytes());
    out.extend(table);
    out.extend(words);
    seal(&mut out);
    out
}

/// The payload with codes of fixed width.
pub fn unpack(payload: &[u8]) -> Vec<u8> {
    let shape = Shape::of(payload);
    let units = shape.n.div_ceil(1280);
    let table = &payload[shape.codes_at..shape.codes_at + units];
    let mut at = shape.codes_at + units.next_multiple_of(4);
    let mut out = payload[..shape.codes_at].to_vec();
    out[20] = 0;
    out[24..28].fill(0);
    for (unit, entry) in table.iter().enumerate() {
        let mut plain = Vec::new();
        for byte in &payload[at..at + 4 * (usize::from(*entry) + 1)] {
            match byte {
                0..=242 => plain.push(*byte),
                run => plain.extend(std::iter::repeat_n(0, usize::from(*run) - 241)),
            }
        }
        at += 4 * (usize::from(*entry) + 1);
        plain.resize(256, 0);
        for word in (0..80).take_while(|word| 256 * (5 * unit + word / 16) < shape.n) {
            let digit = |place: usize| {
                let byte = plain[16 * (word / 5) + 4 * (place % 4) + place / 4];
                u32::from(byte) / 3u32.pow(word as u32 % 5) % 3
            };
            let code = |place| [0, 1, 3][digit(place) as usize] << (2 * place);
            out.extend((0..16).map(code).sum::<u32>().to_le_bytes());
        }
    }
    seal(&mut out);
    out
}
