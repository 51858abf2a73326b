//! Ways to spoil a payload.

use super::reader::Fields;
use crate::cases::Random;

/// Spoils bytes; the second are those of another payload.
pub type Mutation = fn(&mut Vec<u8>, &[u8], &mut Random);

/// Every way, with its name.
pub const MUTATIONS: [(&str, Mutation); 11] = [
    ("flipped bits", |bytes, _, random| flip(bytes, random)),
    ("overwritten bytes", |bytes, _, random| overwrite(bytes, random)),
    ("overwritten scalars and codes", |bytes, _, random| body(bytes, random)),
    ("a header field at a boundary", |bytes, _, random| field(bytes, random)),
    ("header fields at boundaries, with the length to match", |bytes, _, random| matching(bytes, random)),
    ("truncated", |bytes, _, random| truncate(bytes, random)),
    ("extended", extend),
    ("spliced with another payload", splice),
    ("a range twice", |bytes, _, random| duplicate(bytes, random)),
    ("a range of zeros", |bytes, _, random| zeros(bytes, random)),
    ("several of these", several),
];

fn coin(random: &mut Random) -> bool {
    random.bits() & 1 == 0
}

/// A number below `end`, or 0.
fn below(random: &mut Random, end: usize) -> usize {
    (random.bits() % end.max(1) as u64) as usize
}

fn range(random: &mut Random, len: usize) -> std::ops::Range<usize> {
    let start = below(random, len + 1);
    start..start + below(random, (len - start).min(64) + 1)
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[below(random, from.len())]
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..=below(random, 4) {
        let at = below(random, bytes.len());
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << (random.bits() % 8);
        }
    }
}

fn overwrite(bytes: &mut [u8], random: &mut Random) {
    // As often in the header as after it.
    let end = if coin(random) { bytes.len() } else { bytes.len().min(32) };
    for _ in 0..=below(random, 4) {
        let at = below(random, end);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = pick(random, &[0, 1, 0x7f, 0x80, 0xff]) ^ if coin(random) { random.bits() as u8 } else { 0 };
        }
    }
}

/// Scalars that no encoder writes are the first thing that a decoder divides by.
fn body(bytes: &mut [u8], random: &mut Random) {
    const SCALARS: [u32; 12] = [
        0,
        1,
        0x8000_0000,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x217f_ffff,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fa0_0001,
    ];
    for _ in 0..4 {
        let word = if coin(random) && coin(random) { random.bits() as u32 } else { pick(random, &SCALARS) };
        let at = 32 + 4 * below(random, (bytes.len().saturating_sub(32) / 4).min(8));
        if let Some(slot) = bytes.get_mut(at..at + 4) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
    }
    for byte in bytes.iter_mut().skip(32 + below(random, 64)).step_by(1 + below(random, 32)) {
        *byte = random.bits() as u8;
    }
}

fn field(bytes: &mut [u8], random: &mut Random) {
    let Some(head) = bytes.first_chunk::<32>() else { return };
    let old = Fields::of(head);
    let n = [
        0,
        1,
        31,
        32,
        33,
        255,
        256,
        257,
        511,
        513,
        1 << 16,
        (1 << 31) - 1,
        1 << 31,
        (1 << 31) + 1,
        1 << 32,
        old.n ^ 1 << 32,
        1 << 62,
        1 << 63,
        u64::MAX,
        u64::MAX - 254,
        old.n.wrapping_add(1),
        old.n.wrapping_sub(1),
        old.n.wrapping_mul(2),
    ];
    let levels = [
        0,
        1,
        2,
        old.levels.wrapping_sub(1),
        old.levels.wrapping_add(1),
        old.most_levels(),
        255,
        256,
        0x7fff,
        0x8000,
        0xffff,
    ];
    match random.bits() % 11 {
        0 => bytes[below(random, 4)] = random.bits() as u8,
        1 => bytes[4] = pick(random, &[0, 1, 2, 128, 255]),
        2 => bytes[5] = pick(random, &[0, 1, 2, 3, 255]),
        3 => bytes[6] = pick(random, &[0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 32, 64, 128, 255]),
        4 => bytes[7] = pick(random, &[0, 4, 5, 6, 9, 13, 14, 31, 32, 63, 64, 128, 254, 255]),
        5 | 6 => bytes[8..16].copy_from_slice(&pick(random, &n).to_le_bytes()),
        7 => bytes[16..18].copy_from_slice(&pick(random, &levels).to_le_bytes()),
        8 => bytes[18] = pick(random, &[0, 1, 2, 3, 128, 255]),
        9 => bytes[19] = pick(random, &[0, 1, 2, 3, 4, 8, 128, 255]),
        _ => bytes[20 + below(random, 12)] = pick(random, &[0, 1, 255]),
    }
}

/// A header that another body than its own would fit, with such a body.
fn matching(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=below(random, 2) {
        field(bytes, random);
    }
    let Some(head) = bytes.first_chunk::<32>() else { return };
    let length = Fields::of(head).length();
    if length <= 4096 {
        bytes.resize_with(length as usize, || random.bits() as u8);
    }
}

fn truncate(bytes: &mut Vec<u8>, random: &mut Random) {
    let most = if coin(random) { bytes.len() } else { bytes.len().min(40) };
    bytes.truncate(bytes.len() - below(random, most + 1));
}

fn extend(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    match random.bits() % 3 {
        0 => bytes.extend(std::iter::repeat_n(0, 1 + below(random, 300))),
        1 => bytes.extend_from_slice(other),
        _ => bytes.push(random.bits() as u8),
    }
}

fn splice(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    // Half of them are one payload's header before another one's body.
    let (keep, from) = if coin(random) {
        (32.min(bytes.len()), 32.min(other.len()))
    } else {
        (below(random, bytes.len() + 1), below(random, other.len() + 1))
    };
    bytes.truncate(keep);
    bytes.extend_from_slice(&other[from..]);
}

fn duplicate(bytes: &mut Vec<u8>, random: &mut Random) {
    let range = range(random, bytes.len());
    let to = below(random, bytes.len() - range.len() + 1);
    if coin(random) {
        bytes.copy_within(range, to);
    } else {
        let twice = bytes[range].to_vec();
        bytes.splice(to..to, twice);
    }
}

fn zeros(bytes: &mut [u8], random: &mut Random) {
    let range = range(random, bytes.len());
    bytes[range].fill(0);
}

fn several(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..2 + below(random, 3) {
        // All but the last, which is this one.
        let (_, mutation) = MUTATIONS[below(random, MUTATIONS.len() - 1)];
        mutation(bytes, other, random);
    }
}
