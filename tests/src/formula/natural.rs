//! Natural compression: powers of two with signs. Natural dithering: the largest magnitude times powers of two.

use gradwire::{CodecId, Device, Natural};

use super::{BUCKETS, Quantizer, Formula, Note, Page, Tests};
use crate::cases::Case;
use crate::conformance::Outcome;
use crate::oracle::{self, Encoded, Kind, Setting};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{
    FILLS, Spec, bell, bucket_name, feedback, halves, halves_with_feedback, shapes, start, with, workers,
};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Natural,
    page: &PAGE,
    settings,
    stochastic: &[case(8, Some(512)), case(3, Some(128)), case(4, None), case(2, Some(64))],
    timed,
    vectors,
    committed: include_str!("../../vectors/natural.json"),
    theorems,
    independent: &[case(8, Some(512))],
    feedback: &[],
};

const PAGE: Page = Page { tag: 12, widths: &[2, 3, 4, 5, 6, 7, 8], levels: &[], sign_bits: 1, flags: 2, scalars: 1, buckets: BUCKETS, decode: page };

pub(super) const POWERS: Powers = Powers;

pub(super) struct Powers;

/// The exponent of the smallest power of two that is at least the largest magnitude, 127 at most.
fn top(largest: f64) -> i32 {
    (-126..127).find(|e| largest <= 2f64.powi(*e)).unwrap_or(127)
}

/// Whether the levels are those of natural dithering.
fn dithers(levels: u32) -> bool {
    levels < 127
}

/// The value of the highest level: the scale of a bucket with this largest magnitude.
fn scale(largest: f64, levels: u32) -> f64 {
    if dithers(levels) || largest == 0.0 { largest } else { 2f64.powi(top(largest)) }
}

/// The value of the lowest level above zero that is used.
fn lowest(largest: f64, levels: u32) -> f64 {
    let lowest = scale(largest, levels) * 2f64.powi(1 - levels as i32);
    if dithers(levels) { lowest } else { lowest.max(2f64.powi(-126)) }
}

/// A magnitude's part of its bucket's scale as an encoder rounds it, times 2^23.
fn part(x: f32, largest: f32) -> f64 {
    let up = if largest < 2f32.powi(-60) { 2f32.powi(64) } else { 1.0 };
    f64::from(x.abs() * up * (2f32.powi(23) / (largest * up)))
}

/// The largest power of two that is not above a magnitude, which is not zero.
fn below(magnitude: f64) -> i32 {
    (-149..=127).rev().find(|e| 2f64.powi(*e) <= magnitude).unwrap_or(-149)
}

impl Formula for Powers {
    fn name(&self) -> &'static str {
        "natural"
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [None; 2]
    }

    fn terms(&self) -> [&'static str; 2] {
        ["power of two", "stochastic"]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = Natural::bits(case.bits);
        let c = if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() };
        Quantizer::Natural(if case.contractive { c.contractive() } else { c })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    fn omega(&self, b: f64, levels: f64) -> f64 {
        0.125 + (b * 4f64.powf(-levels)).min(b.sqrt() * 2f64.powf(1.0 - levels))
    }

    /// The scale is below twice the largest magnitude, or is it.
    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        (2.0 * bucket.iter().fold(0.0f64, |m, v| m.max(v.abs())), None)
    }

    fn level(&self, level: u32, levels: u32) -> f32 {
        if level == 0 { 0.0 } else { 2f32.powi(level as i32 - levels as i32) }
    }

    fn widest(&self, span: f64, _: u32) -> f64 {
        span
    }

    /// Above the lowest level, the distance of two is the lower one's value, so that the place is between 1 and 2.
    fn positions(&self, levels: u32, bucket: &[f64]) -> Vec<(f64, f64)> {
        let largest = bucket.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let (lowest, scale) = (lowest(largest, levels), scale(largest, levels));
        let step = |v: f64| {
            let part = if dithers(levels) { scale } else { 1.0 };
            if v < lowest { lowest } else { 2f64.powi(below(v / part)) * part }
        };
        bucket.iter().map(|v| (step(v.abs()), v.abs() / step(v.abs()))).collect()
    }

    /// A magnitude's place between two levels, to 23 bits, plus the dither.
    fn encode(&self, s: &Setting, bucket: &[f32], first: usize, out: &mut Encoded) {
        let largest = bucket.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        out.scalars.push(scale(largest.into(), s.levels) as f32 * s.beta);
        // Of natural dithering the parts of the largest magnitude times 2^23 are rounded, whose highest level is 23.
        let top = if dithers(s.levels) { 23 } else { top(largest.into()) };
        let lowest = (top - s.levels as i32 + 1).max(-126);
        for (i, v) in bucket.iter().enumerate() {
            let x = if dithers(s.levels) && largest > 0.0 { part(*v, largest) } else { f64::from(v.abs()) };
            let fraction = oracle::fraction(s.levels);
            let dither = (oracle::dither(s, first + i, fraction) >> (fraction - 23)) as f64 * 2f64.powi(-23);
            let cut = |place: f64| (place * 2f64.powi(23)).floor() * 2f64.powi(-23);
            let exponent = if x < 2f64.powi(lowest) {
                (cut(x / 2f64.powi(lowest)) + dither >= 1.0).then_some(lowest)
            } else {
                let e = below(x);
                Some(e + i32::from(x / 2f64.powi(e) - 1.0 + dither >= 1.0))
            };
            let level = exponent.map_or(0, |e| (e - top + s.levels as i32).min(s.levels as i32) as u32);
            // A tensor of zeros has no scale to be below.
            let level = if largest == 0.0 { 0 } else { level };
            out.codes.push(level | if v.is_sign_negative() { 1 << (s.bits - 1) } else { 0 });
        }
    }

    fn value(&self, s: &Setting, scalars: &[f32], code: u32) -> f32 {
        let scale = scalars[0];
        if scale.is_nan() {
            return scale;
        }
        let level = code % (1 << (s.bits - 1));
        let value = (f64::from(scale) * 2f64.powi(level as i32 - s.levels as i32)) as f32;
        let magnitude = if level == 0 { 0.0 } else { value };
        if code >> (s.bits - 1) == 1 { -magnitude } else { magnitude }
    }
}

/// Section "Decoding natural compression" of the page.
fn page(scalars: &[f32], levels: f32, code: u32, bits: u8) -> f32 {
    let scale = scalars[0];
    if scale.is_sign_negative() || !scale.is_finite() {
        return f32::from_bits(0x7fc0_0000);
    }
    let (sign, level) = (code >> (bits - 1), code & ((1 << (bits - 1)) - 1));
    let level = (level as f32).min(levels);
    let magnitude = if level == 0.0 { 0.0 } else { scale * 2f32.powf(level - levels) };
    if sign == 1 { -magnitude } else { magnitude }
}

const fn case(bits: u32, bucket: Option<usize>) -> Case {
    Case { kind: Kind::Natural, bits, levels: (1 << (bits - 1)) - 1, bucket, contractive: false }
}

fn settings() -> Vec<Case> {
    let mut cases: Vec<Case> = (2..=8).map(|bits| case(bits, Some(512))).collect();
    cases.extend((5..=13).map(|log2| case(8, Some(1 << log2))));
    cases.extend([3, 8].map(|bits| case(bits, None)));
    cases.extend([Some(256), None].map(|bucket| Case { contractive: true, ..case(2, bucket) }));
    cases.push(Case { contractive: true, ..case(8, Some(64)) });
    cases
}

fn timed() -> Vec<(Case, bool)> {
    vec![(case(8, Some(512)), true), (case(4, Some(512)), false), (case(8, None), false)]
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for case in [case(8, Some(64)), case(4, Some(8192)), case(8, None)] {
        note("a magnitude is halved or doubled at most", halved_or_doubled(device, &case, x));
        note("powers of two stay", powers_stay(device, &case));
        note("scalars do not depend on order", properties::permutation(device, &case, x));
        note("payload within 1 % of theory", properties::size(device, &case));
    }
}

/// What is decoded is a level between half of a magnitude and twice it; below the lowest level, zero or that level.
fn halved_or_doubled(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 13)?;
    let size = case.bucket.unwrap_or(x.len());
    for (x, d) in x.chunks(size).zip(decoded.chunks(size)) {
        let largest = f64::from(x.iter().fold(0.0f32, |m, v| m.max(v.abs())));
        let lowest = lowest(largest, case.levels);
        let part = if dithers(case.levels) { largest } else { 1.0 };
        for (x, d) in x.iter().zip(d).map(|(x, d)| (f64::from(x.abs()), f64::from(d.abs()))) {
            // Levels below the smallest normal number are rounded.
            let power = 2f64.powi(below(d / part)) * part;
            let is_level = d == 0.0 || d == power || d == f64::from(power as f32) || d < 2f64.powi(-126);
            let near = if x < lowest { d == 0.0 || d == f64::from(lowest as f32) } else { d > x / 2.0 && d < x * 2.0 };
            if !is_level || !near {
                return Err(format!("{}: {x:e} becomes {d:e}", case.label()));
            }
        }
    }
    Ok(decoded.len() as u64)
}

/// Numbers that are levels are decoded as they are, whatever is drawn.
fn powers_stay(device: &Device, case: &Case) -> Outcome {
    let levels = case.levels.min(100) as i32;
    let x: Vec<f32> = (0..600).map(|i| 2f32.powi(-(i % levels)) * if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
    let x: Vec<f32> = x.chunks(32).flat_map(|chunk| [&[1.0f32], &chunk[1..]].concat()).collect();
    for run in 0..8 {
        // Natural dithering's levels are parts of the largest magnitude, whatever that is.
        for scale in if dithers(case.levels) { &[1.0, 0.7, 3e38, 1e-20][..] } else { &[1.0] } {
            let x: Vec<f32> = x.iter().map(|v| v * scale).collect();
            let decoded = decode_with(device, case, &x, run)?;
            if let Some(i) = (0..x.len()).find(|i| x[*i].to_bits() != decoded[*i].to_bits()) {
                return Err(format!("{}: {} becomes {}", case.label(), x[i], decoded[i]));
            }
        }
    }
    Ok(8 * x.len() as u64)
}

/// The vectors of natural compression.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for bits in 2..=8 {
        let spec = Spec::new(format!("{bits}-bit codes"), case(bits, Some(32)), bell(65, 10));
        specs.push(if bits % 2 == 0 { spec.add(-0.3, start(65)) } else { spec });
        specs.push(Spec::new(format!("{bits}-bit codes, whole tensor, 32-bit draws"), case(bits, None), bell(40, 12)));
    }
    shapes(&mut specs, Kind::Natural, Kind::Natural);
    for (name, fill) in FILLS {
        specs.push(Spec::new(name, case(8, Some(32)), fill(36)).add(0.5, start(36)));
        specs.push(Spec::new(format!("{name}, 3 bits"), case(3, Some(32)), fill(36)));
        specs.push(Spec::new(format!("{name}, contractive"), Case { contractive: true, ..case(2, None) }, fill(36)));
    }
    for (name, largest) in [("2^127", 2f32.powi(127)), ("2^-125", 2f32.powi(-125)), ("2^-126", f32::MIN_POSITIVE)] {
        let x: Vec<f32> = (0..64).map(|i| largest * (1.0 - i as f32 / 64.0)).collect();
        specs.push(Spec::new(format!("up to {name}"), case(8, Some(64)), with(x.clone(), 5, f32::from_bits(3))));
        specs.push(Spec::new(format!("up to {name}, 4 bits"), case(4, Some(64)), x.clone()));
        let odd = x.iter().map(|v| v * 0.7).collect();
        specs.push(Spec::new(format!("up to 0.7 times {name}, 5 bits"), case(5, Some(64)), odd));
    }
    for bucket in [Some(32), Some(256), None] {
        let case = Case { contractive: true, ..case(3, bucket) };
        specs.push(Spec::new(format!("contractive, {}", bucket_name(bucket)), case, bell(35, 14)));
    }
    halves(&mut specs, Kind::Natural, Kind::Natural);
    feedback(&mut specs, "8 bits", case(8, Some(32)));
    feedback(&mut specs, "2 bits, contractive, whole tensor", Case { contractive: true, ..case(2, None) });
    workers(&mut specs, Kind::Natural, Kind::Natural);
    halves_with_feedback(&mut specs, Kind::Natural, Kind::Natural);
    specs
}
