//! A second implementation of the codecs, slow and simple, that shares no code with the product.
//!
//! Written from `docs/wire.md` and the papers; what it and the product agree on is unlikely to be an accident.

pub mod low_rank;
pub mod powersgd;
pub mod sparse;
pub mod wire;

use half::{bf16, f16};

/// What is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// QSGD with the largest magnitude as its norm.
    QsgdMax,
    /// QSGD with the L2 norm.
    QsgdL2,
    /// Uniform with stochastic rounding.
    Uniform,
    /// Uniform, to nearest.
    UniformNearest,
    /// 1-bit SGD.
    OneBit,
}

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
    if s.kind == Kind::UniformNearest {
        return 1 << (fraction - 1);
    }
    let d = draw(s, index).d;
    if s.bucket.is_none() {
        return u64::from(d) >> (32 - fraction);
    }
    (u64::from(d) << (fraction - 16)) + (1u64 << (fraction - 17))
}

/// Bits behind the binary point of a level in fixed point.
pub fn fraction(levels: u32) -> u32 {
    (31 - (32 - levels.leading_zeros())).max(17)
}

fn scale_of(largest: f32, wide: bool) -> f32 {
    if largest < 2f32.powi(-60) {
        2f32.powi(64)
    } else if wide && largest >= 2f32.powi(126) {
        0.5
    } else {
        1.0
    }
}

/// Square root of the exact sum of squares, each magnitude cut to a multiple of the largest one's last place;
/// `blocks` of 8192 are cut to their own largest and their sums aligned, as the format says for whole tensors.
fn l2(x: &[f32]) -> f32 {
    let exponent = |v: f32| (v.abs().to_bits() >> 23).max(1);
    let top = x.iter().map(|v| v.abs()).fold(0.0, f32::max);
    if top == 0.0 {
        return 0.0;
    }
    let mut total = 0u128;
    for block in x.chunks(8192) {
        let largest = block.iter().map(|v| v.abs()).fold(0.0, f32::max);
        let unit = 2f64.powi(exponent(largest) as i32 - 150);
        let sum: u128 = block.iter().map(|v| (f64::from(v.abs()) / unit).floor() as u128).map(|m| m * m).sum();
        total += sum >> (2 * (exponent(top) - exponent(largest))).min(127);
    }
    let mut halvings = 0;
    while total >= 1 << 62 {
        total /= 4;
        halvings += 1;
    }
    let root = f64::from(total.isqrt() as u32 as f32);
    let norm = root * 2f64.powi(exponent(top) as i32 - 150 + halvings);
    norm.min(f64::from(f32::MAX)) as f32
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
    let fraction = fraction(s.levels);
    let full = (u64::from(s.levels) << fraction) as f32;
    let (mut scalars, mut codes) = (Vec::new(), Vec::new());
    let size = s.bucket.unwrap_or(x.len().max(1));
    for (b, bucket) in x.chunks(size).enumerate() {
        let poisoned = bucket.iter().any(|v| !v.is_finite());
        let level = |scaled: f32, index: usize| {
            let fixed = (scaled as u64).min(u64::from(s.levels) << fraction);
            ((fixed + dither(s, b * size + index, fraction)) >> fraction) as u32
        };
        match s.kind {
            Kind::QsgdMax | Kind::QsgdL2 if poisoned => {
                scalars.push(f32::NAN);
                codes.extend(bucket.iter().map(|_| 0));
            }
            Kind::QsgdMax | Kind::QsgdL2 => {
                let largest = bucket.iter().map(|v| v.abs()).fold(0.0, f32::max);
                let norm = if s.kind == Kind::QsgdL2 { l2(bucket) } else { largest };
                let lift = scale_of(norm, false);
                let inverse = if norm > 0.0 { full / (norm * lift) } else { 0.0 };
                scalars.push(norm * s.beta);
                for (i, v) in bucket.iter().enumerate() {
                    let sign = if v.is_sign_negative() { 1 << (s.bits - 1) } else { 0 };
                    codes.push(level(v.abs() * lift * inverse, i) | sign);
                }
            }
            Kind::Uniform | Kind::UniformNearest | Kind::OneBit if poisoned => {
                scalars.extend([f32::NAN; 2]);
                codes.extend(bucket.iter().map(|_| 0));
            }
            Kind::Uniform | Kind::UniformNearest => {
                let (low, high) = extremes(bucket);
                let lift = scale_of(low.abs().max(high.abs()), true);
                let range = high * lift - low * lift;
                let mut inverse = if range > 0.0 { full / range } else { 0.0 };
                if range > 0.0 && range * inverse < full {
                    inverse = inverse.next_up();
                }
                scalars.extend([low * s.beta, high * s.beta]);
                for (i, v) in bucket.iter().enumerate() {
                    codes.push(level((v * lift - low * lift) * inverse, i));
                }
            }
            Kind::OneBit => {
                let [below, above] = [true, false].map(|side| mean(bucket, |v| (**v < 0.0) == side));
                scalars.extend([0.0 - below, above]);
                codes.extend(bucket.iter().map(|v| u32::from(*v >= 0.0)));
            }
        }
    }
    Encoded { scalars, codes }
}

/// The mean magnitude of some values of a bucket: each cut to a multiple of 2^-31 of the largest one's binade, in blocks of
/// 8192 first by their own largest; the mean is cut to such a multiple too, and rounded once.
fn mean(bucket: &[f32], of: impl Fn(&&f32) -> bool) -> f32 {
    let exponent = |v: f32| (v.to_bits() >> 23).max(1);
    let largest = |block: &[f32]| exponent(block.iter().filter(&of).map(|v| v.abs()).fold(0.0, f32::max));
    let (top, mut sum, mut count) = (largest(bucket), 0u128, 0);
    for block in bucket.chunks(8192) {
        let unit = 2f64.powi(largest(block) as i32 - 158);
        let own: u128 = block.iter().filter(&of).map(|v| (f64::from(v.abs()) / unit) as u128).sum();
        sum += own >> (top - largest(block)).min(127);
        count += block.iter().filter(&of).count() as u128;
    }
    (f64::from((sum / count.max(1)) as u32 as f32) * 2f64.powi(top as i32 - 158)) as f32
}

/// Minimum and maximum, with -0 below +0.
fn extremes(x: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = (x[0], x[0]);
    for v in x {
        if v.total_cmp(&low).is_lt() {
            low = *v;
        }
        if v.total_cmp(&high).is_gt() {
            high = *v;
        }
    }
    (low, high)
}

/// Decodes.
pub fn decode(s: &Setting, e: &Encoded) -> Vec<f32> {
    let size = s.bucket.unwrap_or(e.codes.len().max(1));
    e.codes.chunks(size).enumerate().flat_map(|(b, codes)| codes.iter().map(move |c| value(s, e, b, *c))).collect()
}

fn value(s: &Setting, e: &Encoded, bucket: usize, code: u32) -> f32 {
    match s.kind {
        Kind::QsgdMax | Kind::QsgdL2 => {
            let norm = e.scalars[bucket];
            if norm.is_nan() {
                return norm;
            }
            let lift = scale_of(norm, false);
            let level = code % (1 << (s.bits - 1));
            let magnitude = ((norm * lift / s.levels as f32) * level as f32).min(norm * lift) / lift;
            if code >> (s.bits - 1) == 1 { -magnitude } else { magnitude }
        }
        Kind::Uniform | Kind::UniformNearest => {
            let (low, high) = (e.scalars[2 * bucket], e.scalars[2 * bucket + 1]);
            if low.is_nan() {
                return low;
            }
            let lift = scale_of(low.abs().max(high.abs()), true);
            let step = (high * lift - low * lift) / s.levels as f32;
            let (value, top) = (low * lift + step * code as f32, high * lift);
            // Not `min`, which may give either zero of +0 and -0, and gives another one from compiler to compiler.
            (if code == s.levels || value > top { top } else { value }) / lift
        }
        Kind::OneBit => e.scalars[2 * bucket + code as usize],
    }
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
