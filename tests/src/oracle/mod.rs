//! A second implementation of the codecs, slow and simple, that shares no code with the product.
//!
//! Written from `docs/wire.md` and the papers; what it and the product agree on is unlikely to be an accident.

pub mod base3;
pub mod elias;
pub mod low_rank;
pub mod packed;
pub mod places;
pub mod powersgd;
pub mod sparse;
pub mod threshold;
pub mod wire;

use half::{bf16, f16};

pub use crate::formula::Kind;

/// A setting of the oracle.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Which codec.
    pub kind: Kind,
    /// Bits of a code.
    pub bits: u32,
    /// Levels.
    pub levels: u32,
    /// Elements of a bucket; `None` for the whole tensor.
    pub bucket: Option<usize>,
    /// The factor 1/(1 + omega), or 1.
    pub beta: f32,
    /// Run, step and tensor.
    pub seed: (u64, u64, u32),
}

/// Exact conversion of a half.
pub fn widen_f16(x: &[f16]) -> Vec<f32> {
    x.iter().map(|h| h.to_f32()).collect()
}

/// Exact conversion of a bfloat16.
pub fn widen_bf16(x: &[bf16]) -> Vec<f32> {
    x.iter().map(|h| h.to_f32()).collect()
}

/// Philox4x32 with 7 rounds.
pub fn philox(mut c: [u32; 4], key: (u32, u32)) -> [u32; 4] {
    let (mut a, mut b) = key;
    for _ in 0..7 {
        let x = 0xD251_1F53u64 * u64::from(c[0]);
        let y = 0xCD9E_8D57u64 * u64::from(c[2]);
        c = [(y >> 32) as u32 ^ c[1] ^ a, y as u32, (x >> 32) as u32 ^ c[3] ^ b, x as u32];
        a = a.wrapping_add(0x9E37_79B9);
        b = b.wrapping_add(0xBB67_AE85);
    }
    c
}

/// The run whose draws a worker of a run has.
pub fn run_of_worker(run: u64, worker: u32) -> u64 {
    (u128::from(run) + u128::from(worker) * 0xD134_2543_DE82_EF95) as u64
}

/// An entry of a seeded column of PowerSGD: key, counter, and four draws of 16 bits about their mean.
pub fn seeded((run, step, tensor): (u64, u64, u32), column: u32, row: u32) -> ((u32, u32), [u32; 4], f32) {
    let salt = (u64::from(column) + 1) * 0x9E37_79B9 % (1 << 32);
    let key = (run as u32, (run >> 32) as u32 ^ salt as u32);
    let counter = [row / 2, tensor, step as u32, (step >> 32) as u32];
    let words = philox(counter, key);
    let two = &words[if row.is_multiple_of(2) { 0..2 } else { 2..4 }];
    let sum: u32 = two.iter().map(|word| word % 65536 + word / 65536).sum();
    (key, counter, ((f64::from(sum) - 131_070.0) / 65536.0) as f32)
}

/// Where an element's random bits come from, as `docs/wire.md` says under "Draws".
pub struct Draw {
    /// Philox's key.
    pub key: (u32, u32),
    /// Philox's counter.
    pub counter: [u32; 4],
    /// Which word of Philox's output.
    pub word: usize,
    /// The draw itself, 16 bits for a bucket and 32 for the whole tensor.
    pub d: u32,
}

/// The draw of an element, whether or not the setting's rounding asks for one.
pub fn draw(s: &Setting, index: usize) -> Draw {
    let (run, step, tensor) = s.seed;
    let key = (run as u32, (run >> 32) as u32);
    let (unit, lane, slot) = ((index / 256) as u32, (index % 32) as u32, index % 256 / 32);
    let (call, word) = match s.bucket {
        None => ((unit * 32 + lane) * 2 + slot as u32 / 4, slot % 4),
        Some(_) => (unit * 32 + lane, slot / 2),
    };
    let counter = [call, tensor, step as u32, (step >> 32) as u32];
    let output = philox(counter, key)[word];
    let d = match s.bucket {
        None => output,
        Some(_) if slot % 2 == 0 => output & 0xffff,
        Some(_) => output >> 16,
    };
    Draw { key, counter, word, d }
}

/// The dither of an element, as a fraction of a level in units of 2^-fraction.
pub fn dither(s: &Setting, index: usize, fraction: u32) -> u64 {
    if s.kind.formula().is_nearest() {
        return 1 << (fraction - 1);
    }
    let d = draw(s, index).d;
    if s.bucket.is_none() {
        return u64::from(d) >> (32 - fraction);
    }
    (u64::from(d) << (fraction - 16)) + (1u64 << (fraction - 17))
}

/// Bits after the binary point of a level in fixed point.
pub fn fraction(levels: u32) -> u32 {
    (31 - (32 - levels.leading_zeros())).max(17)
}

/// The power of two by which a bucket is moved away from what binary32 cannot hold.
pub(crate) fn scale_of(largest: f32, wide: bool) -> f32 {
    if largest < 2f32.powi(-60) {
        2f32.powi(64)
    } else if wide && largest >= 2f32.powi(126) {
        0.5
    } else {
        1.0
    }
}

/// Scalars of each bucket and the code of each element.
pub struct Encoded {
    /// As they stand on the wire.
    pub scalars: Vec<f32>,
    /// One an element.
    pub codes: Vec<u32>,
}

/// Encodes.
pub fn encode(s: &Setting, x: &[f32]) -> Encoded {
    let formula = s.kind.formula();
    let mut encoded = Encoded { scalars: Vec::new(), codes: Vec::new() };
    let size = s.bucket.unwrap_or(x.len().max(1));
    for (b, bucket) in x.chunks(size).enumerate() {
        if bucket.iter().all(|v| v.is_finite()) {
            formula.encode(s, bucket, b * size, &mut encoded);
        } else {
            encoded.scalars.extend(vec![f32::NAN; formula.scalars(s.bits)]);
            encoded.codes.extend(bucket.iter().map(|_| 0));
        }
    }
    encoded
}

/// A value that was scaled to fixed point, rounded to a level by the draw of the element `index`.
pub(crate) fn level(s: &Setting, scaled: f32, index: usize) -> u32 {
    let fraction = fraction(s.levels);
    let fixed = (scaled as u64).min(u64::from(s.levels) << fraction);
    ((fixed + dither(s, index, fraction)) >> fraction) as u32
}

/// All levels in fixed point.
pub(crate) fn full(s: &Setting) -> f32 {
    (u64::from(s.levels) << fraction(s.levels)) as f32
}

/// Decodes.
pub fn decode(s: &Setting, e: &Encoded) -> Vec<f32> {
    let formula = s.kind.formula();
    let (size, each) = (s.bucket.unwrap_or(e.codes.len().max(1)), formula.scalars(s.bits));
    let value = |(b, codes): (usize, &[u32])| {
        let scalars = &e.scalars[each * b..][..each];
        codes.iter().map(|code| formula.value(s, scalars, *code)).collect::<Vec<f32>>()
    };
    e.codes.chunks(size).enumerate().flat_map(value).collect()
}

/// The codes as the wire packs them.
pub fn pack(codes: &[u32], bits: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for unit in codes.chunks(256) {
        let code = |lane: usize, slot: usize| unit.get(slot * 32 + lane).copied().unwrap_or(0);
        let mut done = 0;
        for piece in [16u32, 8, 4, 2, 1].into_iter().filter(|p| bits & p != 0) {
            let part = |lane, slot| u64::from(code(lane, slot) >> done & ((1 << piece) - 1));
            let slots_at_once = (32 / piece as usize).min(8);
            for first in (0..8).step_by(slots_at_once) {
                for lane in 0..32 {
                    let word = (0..slots_at_once).fold(0, |w, k| w | part(lane, first + k) << (k as u32 * piece));
                    out.extend(&word.to_le_bytes()[..slots_at_once * piece as usize / 8]);
                }
            }
            done += piece;
        }
    }
    out
}
