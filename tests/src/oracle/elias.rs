//! Packed payloads, one bit at a time: written from `docs/wire.md`, sharing no code with the product.

use super::wire::crc32;

/// What of a payload's header the codes depend on, and where they begin.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Elements.
    pub n: usize,
    /// Bits of a code of fixed width.
    pub bits: u32,
    /// First byte of the codes, or of the table.
    pub codes_at: usize,
}

impl Shape {
    /// Of a payload of QSGD.
    pub fn of(payload: &[u8]) -> Self {
        let n = u64::from_le_bytes(payload[8..16].try_into().expect("8 bytes")) as usize;
        let buckets = if payload[7] == 255 { n.min(1) } else { n.div_ceil(1 << payload[7]) };
        Self { n, bits: payload[6].into(), codes_at: 32 + 4 * buckets }
    }

    /// Units of 256 codes.
    pub fn units(&self) -> usize {
        self.n.div_ceil(256)
    }
}

/// Where bit `bit` of the code of slot `slot` of lane `lane` lies in a unit, in bits.
fn place(bits: u32, bit: u32, lane: usize, slot: usize) -> usize {
    let mut done = 0;
    for piece in [16, 8, 4, 2, 1].into_iter().filter(|piece| bits & piece != 0) {
        if bit < done + piece {
            // A lane's integers have 32 bits, or as many as its eight pieces take.
            let wide = (8 * piece as usize).min(32);
            let each = wide / piece as usize;
            let integer = slot / each * 32 + lane;
            return 256 * done as usize + integer * wide + slot % each * piece as usize + (bit - done) as usize;
        }
        done += piece;
    }
    panic!("bit {bit} of {bits}")
}

/// Sets the bits of a code of a unit, `at` of them from the first lane's first slot on, lane after lane.
pub fn put(unit: &mut [u8], bits: u32, at: usize, code: u64) {
    for i in 0..bits {
        let to = place(bits, i, at / 8, at % 8);
        unit[to / 8] |= ((code >> i & 1) as u8) << (to % 8);
    }
}

fn bit_of(bytes: &[u8], at: usize) -> bool {
    bytes[at / 8] >> (at % 8) & 1 == 1
}

/// Level and sign of each code of a unit of fixed width, lane after lane.
pub fn levels(unit: &[u8], bits: u32) -> Vec<(u64, bool)> {
    let code = |lane, slot| (0..bits).map(move |bit| bit_of(unit, place(bits, bit, lane, slot))).collect::<Vec<_>>();
    let mut all = Vec::new();
    for lane in 0..32 {
        for slot in 0..8 {
            let code: Vec<bool> = code(lane, slot);
            let (sign, level) = code.split_last().expect("2 bits or more");
            all.push((level.iter().rev().fold(0, |l, bit| 2 * l + u64::from(*bit)), *sign));
        }
    }
    all
}

/// The bits of a unit's Elias codes, unpadded.
pub fn stream(levels: &[(u64, bool)]) -> Vec<bool> {
    let (mut unary, mut rests) = (Vec::new(), Vec::new());
    for (level, sign) in levels {
        let k = level + 1;
        for bit in 0..k.ilog2() {
            unary.push(false);
            rests.push(k >> bit & 1 == 1);
        }
        unary.push(true);
        if *level > 0 {
            rests.push(*sign);
        }
    }
    unary.extend(rests);
    unary
}

/// The bits of a unit's Elias delta codes, unpadded.
pub fn delta_stream(levels: &[(u64, bool)]) -> Vec<bool> {
    let (mut unary, mut middles, mut rests) = (Vec::new(), Vec::new(), Vec::new());
    for (level, sign) in levels {
        let k = level + 1;
        let q = k.ilog2();
        for bit in 0..(q + 1).ilog2() {
            unary.push(false);
            middles.push((q + 1) >> bit & 1 == 1);
        }
        unary.push(true);
        rests.extend((0..q).map(|bit| k >> bit & 1 == 1));
        if *level > 0 {
            rests.push(*sign);
        }
    }
    [unary, middles, rests].concat()
}

/// The payload with its codes packed in this way of the header: 1 is gamma, 3 delta.
pub fn pack(payload: &[u8], entropy: u8) -> Vec<u8> {
    let shape = Shape::of(payload);
    let (mut table, mut words) = (Vec::new(), Vec::new());
    for unit in payload[shape.codes_at..].chunks_exact(32 * shape.bits as usize) {
        let levels = levels(unit, shape.bits);
        let stream = if entropy == 3 { delta_stream(&levels) } else { stream(&levels) };
        table.push((stream.len().div_ceil(32) - 1) as u8);
        for word in stream.chunks(32) {
            words.push(word.iter().rev().fold(0u32, |w, bit| w << 1 | u32::from(*bit)));
        }
    }
    table.resize(table.len().next_multiple_of(4), 0);
    let mut out = payload[..shape.codes_at].to_vec();
    out[20] = entropy;
    out[24..28].copy_from_slice(&(words.len() as u32).to_le_bytes());
    out.extend(table);
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    seal(&mut out);
    out
}

/// The payload with codes of fixed width.
pub fn unpack(payload: &[u8]) -> Vec<u8> {
    let shape = Shape::of(payload);
    let (units, bits) = (shape.units(), shape.bits);
    let table = &payload[shape.codes_at..shape.codes_at + units];
    let mut at = shape.codes_at + units.next_multiple_of(4);
    let mut out = payload[..shape.codes_at].to_vec();
    out[20] = 0;
    out[24..28].fill(0);
    for byte in table {
        let bytes = 4 * (usize::from(*byte) + 1);
        let words = &payload[at..at + bytes];
        at += bytes;
        let bit = |at: usize| at >= 8 * bytes || bit_of(words, at);
        let mut next = 0;
        let mut exponents = Vec::new();
        for _ in 0..256 {
            let from = next;
            while !bit(next) {
                next += 1;
            }
            exponents.push(next - from);
            next += 1;
        }
        if payload[20] == 3 {
            for exponent in &mut exponents {
                // More zeros than any width's are as many as the widest's.
                let zeros = (*exponent).min(4);
                *exponent = (1 << zeros) - 1 + (0..zeros).map(|i| usize::from(bit(next + i)) << i).sum::<usize>();
                next += zeros;
            }
        }
        let mut unit = vec![0u8; 32 * bits as usize];
        for (place_of, exponent) in exponents.iter().enumerate().filter(|(_, exponent)| **exponent > 0) {
            let most = (1u64 << (bits - 1)) - 1;
            // More than any width holds is as much as this one holds.
            let rest = (0..*exponent.min(&20)).fold(0u64, |rest, i| rest | u64::from(bit(next + i)) << i);
            let level = ((1u64 << exponent.min(&20)) + rest - 1).min(most);
            let sign = u64::from(bit(next + exponent));
            next += exponent + 1;
            put(&mut unit, bits, place_of, level | sign << (bits - 1));
        }
        out.extend(unit);
    }
    seal(&mut out);
    out
}

/// Writes the checksum that a payload's bytes have.
pub fn seal(payload: &mut [u8]) {
    let crc = crc32(payload[..28].iter().chain(&payload[32..]).copied());
    payload[28..32].copy_from_slice(&crc.to_le_bytes());
}
