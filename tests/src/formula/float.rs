//! Casts to small formats, floating-point or of integers, with a scale of the bucket or without.

use gradwire::{CodecId, Device, Float, Seed};
use half::{bf16, f16};

use super::{BUCKETS, Quantizer, Formula, Note, Page, Tests};
use crate::cases::{self, Case};
use crate::conformance::Outcome;
use crate::oracle::{self, Encoded, Kind, Setting};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{FILLS, Spec, bell, feedback, halves, halves_with_feedback, shapes, start, with, workers};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Float,
    page: &PAGE,
    settings,
    stochastic: &[
        case(Kind::Float, BF16, Some(512)),
        case(Kind::Float, E4M3, None),
        case(Kind::Float, F16, Some(8192)),
        case(Kind::FloatScaled, E2M1, Some(32)),
        case(Kind::FloatScaled, E5M2, Some(64)),
    ],
    timed,
    vectors,
    committed: include_str!("../../vectors/float.json"),
    theorems,
    independent: &[case(Kind::Float, E4M3, Some(512))],
    feedback: &[case(Kind::FloatScaledNearest, E4M3, Some(32))],
};

const PAGE: Page = Page { tag: 8, widths: &[4, 8, 16], levels: &[(4, 7), (8, 123), (8, 126), (8, 127), (16, 31_743), (16, 32_639), (16, 32_767)], sign_bits: 1, flags: 0, scalars: 1, buckets: BUCKETS, decode: page };

/// Bits of a code, and the largest finite one.
type Format = (u32, u32);
const E2M1: Format = (4, 7);
const E5M2: Format = (8, 123);
const E4M3: Format = (8, 126);
const F16: Format = (16, 31_743);
const BF16: Format = (16, 32_639);
const INT8: Format = (8, 127);
const INT16: Format = (16, 32_767);

/// Bits of the mantissa, and the exponent of the lowest normal number.
fn format(levels: u32) -> (i32, i32) {
    [(7, (1, 0)), (123, (2, -14)), (126, (3, -6)), (127, (6, 0)), (31_743, (10, -14)), (32_639, (7, -126)), (32_767, (14, 0))]
        .into_iter()
        .find(|(other, _)| *other == levels)
        .map(|(_, format)| format)
        .expect("a format's levels")
}

/// The magnitude that a code stands for.
fn number(levels: u32, code: u32) -> f64 {
    let (mantissa, lowest) = format(levels);
    let (field, place) = ((code >> mantissa) as i32, f64::from(code % (1 << mantissa)) / 2f64.powi(mantissa));
    if field == 0 { place * 2f64.powi(lowest) } else { (1.0 + place) * 2f64.powi(field - 1 + lowest) }
}

/// As it is, to nearest, with a scale, and both.
pub(super) const PLAIN: Cast = Cast { scaled: false, nearest: false, bound: None };
pub(super) const NEAREST: Cast = Cast { scaled: false, nearest: true, bound: None };
pub(super) const SCALED: Cast = Cast { scaled: true, nearest: false, bound: None };
pub(super) const SCALED_NEAREST: Cast = Cast { scaled: true, nearest: true, bound: None };
/// With a bound on the error, 2^-10.
pub(super) const BOUNDED: Cast = Cast { scaled: true, nearest: true, bound: Some(1.0 / 1024.0) };

pub(super) struct Cast {
    scaled: bool,
    nearest: bool,
    bound: Option<f64>,
}

impl Cast {
    /// The smallest power of two with which no magnitude is above the largest number.
    fn scale(&self, levels: u32, bucket: &[f64]) -> f64 {
        let largest = bucket.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let (top, (_, lowest)) = (number(levels, levels), format(levels));
        // The lowest normal number stays one, and the largest stays finite.
        let range = -126 - lowest..127 - top.log2() as i32;
        let most = range.end;
        let exponent = range.into_iter().find(|e| largest <= top * 2f64.powi(*e)).unwrap_or(most);
        if self.scaled { 2f64.powi(exponent).max(self.least(levels)) } else { 1.0 }
    }

    /// The scale with which two numbers are twice the bound apart.
    fn least(&self, levels: u32) -> f64 {
        self.bound.map_or(0.0, |bound| 2.0 * bound * 2f64.powi(format(levels).0))
    }

    /// How far apart numbers are around a magnitude, before the scale; the exponent of those.
    fn step(levels: u32, magnitude: f64) -> (f64, i32) {
        let (mantissa, lowest) = format(levels);
        let exponent = (lowest..=127).rev().find(|e| 2f64.powi(*e) <= magnitude).unwrap_or(lowest);
        (2f64.powi(exponent - mantissa), exponent)
    }
}

impl Formula for Cast {
    fn name(&self) -> &'static str {
        match (self.scaled, self.nearest) {
            _ if self.bound.is_some() => "float bounded",
            (false, false) => "float",
            (false, true) => "float nearest",
            (true, false) => "float scaled",
            (true, true) => "float scaled nearest",
        }
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        let rounding = if self.nearest { "nearest" } else { "stochastic" };
        let scale = if self.scaled { "scaled" } else { "unit" };
        [Some(self.bound.map_or(scale, |_| "bound=0.0009765625")), Some(rounding)]
    }

    fn terms(&self) -> [&'static str; 2] {
        let scale = if self.scaled { "block" } else { "format" };
        [self.bound.map_or(scale, |_| "bound"), if self.nearest { "nearest" } else { "stochastic" }]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = match (case.bits, case.levels) {
            E2M1 => Float::e2m1(),
            E5M2 => Float::e5m2(),
            F16 => Float::f16(),
            BF16 => Float::bf16(),
            INT8 => Float::int8(),
            INT16 => Float::int16(),
            _ => Float::e4m3(),
        };
        let c = if self.scaled && self.bound.is_none() { c.scaled() } else { c };
        let c = if self.nearest && self.bound.is_none() { c.nearest() } else { c };
        let c = self.bound.map_or(c, |bound| c.error_bound(bound));
        Quantizer::Float(if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    fn usual_levels(&self, bits: u32) -> u32 {
        let formats = if self.bound.is_some() { [E2M1, INT8, INT16] } else { [E2M1, E4M3, BF16] };
        let (_, levels) = formats.into_iter().find(|(width, _)| *width == bits).expect("a format's width");
        levels
    }

    fn is_nearest(&self) -> bool {
        self.nearest
    }

    fn omega(&self, b: f64, levels: f64) -> f64 {
        let levels = levels as u32;
        let (mantissa, lowest) = format(levels);
        let u = 2f64.powi(-mantissa);
        let s = 2f64.powi(1 + lowest - mantissa) / number(levels, levels);
        let above = u * u / (4.0 + 4.0 * u);
        match (self.scaled, levels) {
            // Not a part of the gradient: what is small becomes zero.
            _ if self.bound.is_some() => f64::INFINITY,
            (true, _) => above + (b * s * s / 4.0).min(b.sqrt() * s),
            (false, 32_639) => above,
            (false, _) => f64::INFINITY,
        }
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        (bucket.iter().fold(0.0f64, |m, v| m.max(v.abs())), None)
    }

    fn level(&self, level: u32, levels: u32) -> f32 {
        // With a bound, as large as needs no greater scale than its own.
        (number(levels, level) * self.least(levels).max(1.0)) as f32
    }

    fn widest(&self, span: f64, levels: u32) -> f64 {
        let (mantissa, lowest) = format(levels);
        let subnormal = 2f64.powi(lowest - mantissa) * if self.scaled { 2.0 * span / number(levels, levels) } else { 1.0 };
        (span * 2f64.powi(-mantissa)).max(subnormal).max(self.least(levels) * 2f64.powi(-mantissa))
    }

    fn positions(&self, levels: u32, bucket: &[f64]) -> Vec<(f64, f64)> {
        let scale = self.scale(levels, bucket);
        let of = |v: f64| (Self::step(levels, v.abs() / scale).0 * scale, v.abs());
        bucket.iter().map(|v| of(*v)).map(|(step, v)| (step, v / step)).collect()
    }

    fn encode(&self, s: &Setting, bucket: &[f32], first: usize, out: &mut Encoded) {
        let wide: Vec<f64> = bucket.iter().map(|v| f64::from(*v)).collect();
        let scale = self.scale(s.levels, &wide);
        let (mantissa, lowest) = format(s.levels);
        let dropped = 23 - mantissa as u32;
        let fraction = oracle::fraction(s.levels);
        out.scalars.push(scale as f32);
        for (i, v) in wide.iter().enumerate() {
            let (step, exponent) = Self::step(s.levels, v.abs() / scale);
            let (below, rest) = ((v.abs() / scale / step).floor(), (v.abs() / scale / step).fract());
            let up = if self.nearest {
                rest > 0.5 || rest == 0.5 && below % 2.0 == 1.0
            } else {
                // Cut to so many bits, the last of which says whether anything was cut off.
                let (bits, cut) = ((rest * 2f64.powi(dropped as i32)) as u64, (rest * 2f64.powi(dropped as i32)).fract());
                let dither = oracle::dither(s, first + i, fraction) >> (fraction - dropped);
                (bits | u64::from(cut > 0.0)) + dither >= 1 << dropped
            };
            let code = ((exponent - lowest) as u32) << mantissa;
            let code = (u64::from(code) + below as u64 + u64::from(up)).min(s.levels.into()) as u32;
            out.codes.push(code | if v.is_sign_negative() { 1 << (s.bits - 1) } else { 0 });
        }
    }

    fn value(&self, s: &Setting, scalars: &[f32], code: u32) -> f32 {
        let scale = scalars[0];
        if scale.is_nan() {
            return scale;
        }
        let magnitude = (number(s.levels, code % (1 << (s.bits - 1))) * f64::from(scale)) as f32;
        if code >> (s.bits - 1) == 1 { -magnitude } else { magnitude }
    }
}

/// Section "Decoding floats" of the page.
fn page(scalars: &[f32], levels: f32, code: u32, bits: u8) -> f32 {
    let scale = scalars[0];
    if scale.is_sign_negative() || !scale.is_finite() {
        return f32::from_bits(0x7fc0_0000);
    }
    let (sign, c) = (code >> (bits - 1), (code & ((1 << (bits - 1)) - 1)).min(levels as u32));
    let (m, low) = match levels as u32 {
        7 => (1, 0),
        123 => (2, -14),
        126 => (3, -6),
        127 => (6, 0),
        31_743 => (10, -14),
        32_767 => (14, 0),
        _ => (7, -126),
    };
    let (e, f) = (c >> m, (c % (1 << m)) as f32 / (1 << m) as f32);
    let number = if e == 0 { f * 2f32.powi(low) } else { (1.0 + f) * 2f32.powi(e as i32 - 1 + low) };
    let magnitude = number * scale;
    if sign == 1 { -magnitude } else { magnitude }
}

const fn case(kind: Kind, (bits, levels): Format, bucket: Option<usize>) -> Case {
    Case { kind, bits, levels, bucket, contractive: false }
}

const ALL: [Kind; 4] = [Kind::Float, Kind::FloatNearest, Kind::FloatScaled, Kind::FloatScaledNearest];

fn settings() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in ALL {
        cases.extend([E2M1, E5M2, E4M3, F16, BF16, INT8].map(|format| case(kind, format, Some(512))));
        cases.extend([E4M3, BF16].map(|format| case(kind, format, None)));
    }
    cases.extend((5..=13).map(|log2| case(Kind::FloatScaled, E4M3, Some(1 << log2))));
    cases.push(case(Kind::FloatScaled, E2M1, Some(32)));
    for bucket in [Some(32), Some(64), Some(512), Some(8192), None] {
        cases.extend([INT8, INT16].map(|format| case(Kind::FloatBounded, format, bucket)));
    }
    cases.extend([Kind::FloatScaled, Kind::FloatNearest].map(|kind| case(kind, INT16, Some(512))));
    cases
}

fn timed() -> Vec<(Case, bool)> {
    vec![
        (case(Kind::Float, BF16, Some(8192)), false),
        (case(Kind::Float, E4M3, Some(8192)), false),
        (case(Kind::FloatScaled, E4M3, Some(32)), true),
        (case(Kind::FloatScaled, E2M1, Some(32)), true),
        (case(Kind::FloatBounded, INT16, Some(8192)), false),
    ]
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for (kind, format, bucket) in [
        (Kind::FloatNearest, E4M3, Some(512)),
        (Kind::FloatScaledNearest, E2M1, Some(32)),
        (Kind::FloatScaled, E5M2, None),
        (Kind::Float, BF16, Some(64)),
        (Kind::FloatScaledNearest, INT8, Some(32)),
        (Kind::FloatBounded, INT16, Some(512)),
        (Kind::FloatBounded, INT8, None),
    ] {
        let case = case(kind, format, bucket);
        note("numbers of the format stay", properties::exact_on_levels(device, &case));
        note("error of an element at most a step", properties::bounded(device, &case, x));
        note("scalars do not depend on order", properties::permutation(device, &case, x));
        note("payload within 1 % of theory", properties::size(device, &case));
    }
    note("to nearest as the crate half converts", as_half_converts(device));
    for (format, bucket) in [(INT16, Some(8192)), (INT16, None), (INT8, Some(64))] {
        note("no element off by more than the bound", within_the_bound(device, &case(Kind::FloatBounded, format, bucket), x));
    }
}

/// Of a bounded case: no magnitude that all levels reach is off by more than the bound, small ones are zero, and what
/// is decoded are multiples of twice the bound; with error feedback, no residual is above it after any step.
fn within_the_bound(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let (bound, most) = (1.0 / 1024.0f32, case.levels as f32 / 512.0);
    let x: Vec<f32> = x.iter().map(|v| (v * 0.05).clamp(-most, most)).collect();
    let right = |given: &[f32], decoded: &[f32]| {
        let wrong = |(x, y): &(&f32, &f32)| (*x - *y).abs() > bound || **y % (2.0 * bound) != 0.0;
        match given.iter().zip(decoded).find(wrong) {
            Some(pair) => Err(format!("{}: {pair:?} are more than {bound} apart", case.label())),
            None => Ok(()),
        }
    };
    right(&x, &decode_with(device, case, &x, 3)?)?;
    // What is given and what is left are multiples of 2^-24 below 2^24 of them, so that all sums are exact.
    let x: Vec<f32> = x.iter().map(|v| (v / 8.0 * 16_777_216.0).round() / 16_777_216.0).collect();
    let (mut residual, mut sent) = (vec![0.0; x.len()], vec![0.0f64; x.len()]);
    for step in 0..20u64 {
        let codec = case.kind.formula().product(case);
        let payload = device
            .encode_with_feedback(&codec, &x[..], &mut residual, Seed::new(7).step(step))
            .map_err(|error| error.to_string())?;
        let decoded = device.decode(&payload).map_err(|error| error.to_string())?;
        sent.iter_mut().zip(decoded).for_each(|(sum, y)| *sum += f64::from(y));
        right(&residual, &vec![0.0; x.len()])?;
        let kept = |((x, sent), r): ((&f32, &f64), &f32)| f64::from(*x) * (step + 1) as f64 == sent + f64::from(*r);
        if !x.iter().zip(&sent).zip(&residual).all(kept) {
            return Err(format!("{}: what was sent and what is left are not what was given", case.label()));
        }
    }
    Ok(21 * x.len() as u64)
}

/// f16 and bf16 to nearest are what the crate half gives, for numbers of every exponent, ties among them.
fn as_half_converts(device: &Device) -> Outcome {
    let mut random = cases::Random(31);
    let numbers = (0..20_000).map(|i| match i % 3 {
        0 => f32::from_bits(random.bits() as u32),
        // Halfway between two numbers of f16 or bf16.
        1 => f32::from_bits((random.bits() as u32 & 0xffff_e000) | 0x1000),
        _ => f32::from_bits((random.bits() as u32 & 0xffff_0000) | 0x8000),
    });
    let x: Vec<f32> = numbers.filter(|v| v.is_finite()).collect();
    let of_f16 = decode_with(device, &case(Kind::FloatNearest, F16, Some(512)), &x, 1)?;
    let of_bf16 = decode_with(device, &case(Kind::FloatNearest, BF16, Some(512)), &x, 1)?;
    for ((x, a), b) in x.iter().zip(of_f16).zip(of_bf16) {
        let limited = |half: f32, most: f32| if half.is_infinite() { most.copysign(half) } else { half };
        let a_right = limited(f16::from_f32(*x).to_f32(), 65_504.0);
        let b_right = limited(bf16::from_f32(*x).to_f32(), bf16::MAX.to_f32());
        if (a.to_bits(), b.to_bits()) != (a_right.to_bits(), b_right.to_bits()) {
            return Err(format!("{x:e} becomes {a:e} and {b:e}, and {a_right:e} and {b_right:e} are nearest"));
        }
    }
    Ok(2)
}

/// The vectors of casts.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    let formats = [("E2M1", E2M1), ("E5M2", E5M2), ("E4M3", E4M3), ("f16", F16), ("bf16", BF16), ("int8", INT8), ("int16", INT16)];
    for (name, format) in formats {
        let integers = [INT8, INT16].contains(&format);
        for kind in if integers { vec![Kind::FloatScaled, Kind::FloatNearest] } else { ALL.to_vec() } {
            let what = kind.name();
            let spec = Spec::new(format!("{name}, {what}"), case(kind, format, Some(32)), bell(33, 10));
            specs.push(if kind == Kind::Float { spec.add(-0.3, start(33)) } else { spec });
            if kind == Kind::FloatScaled && !integers {
                specs.push(Spec::new(format!("{name}, {what}, whole tensor"), case(kind, format, None), bell(40, 12)));
            }
            // Halves between codes, from below the smallest to above the largest number.
            let (_, levels) = format;
            let codes = (0..32).map(|i| levels / 29 * i.min(29) + i % 3);
            let halves = codes.map(|code| {
                let [a, b] = [code.min(levels), (code + 1).min(levels)].map(|code| number(levels, code));
                ((a + b) / 2.0) as f32 * if code % 2 == 0 { 1.0 } else { -1.0 }
            });
            specs.push(Spec::new(format!("{name}, {what}, ties"), case(kind, format, Some(32)), halves.collect()));
        }
    }
    for (name, format) in [("int8", INT8), ("int16", INT16)] {
        let of = |what: &str, bucket, factor: f32| {
            let x = bell(65, 14).into_iter().map(|v| v * factor).collect();
            Spec::new(format!("{name}, bounded, {what}"), case(Kind::FloatBounded, format, bucket), x)
        };
        specs.push(of("small", Some(32), 0.002).add(-0.3, start(65)));
        specs.push(of("in reach", Some(32), 0.05));
        specs.push(of("beyond", Some(32), 300.0));
        specs.push(of("beyond, whole tensor", None, 300.0));
    }
    for (what, fill) in FILLS {
        specs.push(Spec::new(format!("int8, bounded, {what}"), case(Kind::FloatBounded, INT8, Some(32)), fill(32)));
    }
    feedback(&mut specs, "int16, bounded", case(Kind::FloatBounded, INT16, Some(32)));
    shapes(&mut specs, Kind::Float, Kind::FloatScaled);
    for (name, fill) in FILLS {
        specs.push(Spec::new(name, case(Kind::Float, E5M2, Some(32)), fill(33)));
        specs.push(Spec::new(format!("{name}, scaled"), case(Kind::FloatScaled, E4M3, Some(32)), fill(33)).add(0.5, start(33)));
    }
    let not_a_number = with(bell(33, 9), 3, f32::NAN);
    specs.push(Spec::new("a NaN, bf16, nearest", case(Kind::FloatNearest, BF16, Some(32)), not_a_number));
    for (name, largest) in [("2^127", 2f32.powi(127)), ("2^-120", 2f32.powi(-120)), ("2^-126", f32::MIN_POSITIVE)] {
        let x: Vec<f32> = (0..64).map(|i| largest * (1.9 - i as f32 / 64.0)).collect();
        let x = with(x, 5, f32::from_bits(3));
        specs.push(Spec::new(format!("up to {name}, scaled"), case(Kind::FloatScaled, E4M3, Some(64)), x.clone()));
        specs.push(Spec::new(format!("up to {name}, E2M1"), case(Kind::FloatScaledNearest, E2M1, Some(64)), x.clone()));
        specs.push(Spec::new(format!("up to {name}, bf16, scaled"), case(Kind::FloatScaled, BF16, Some(64)), x));
    }
    halves(&mut specs, Kind::FloatScaled, Kind::FloatNearest);
    feedback(&mut specs, "bf16", case(Kind::Float, BF16, Some(32)));
    feedback(&mut specs, "E2M1, scaled", case(Kind::FloatScaled, E2M1, Some(32)));
    workers(&mut specs, Kind::Float, Kind::FloatScaled);
    halves_with_feedback(&mut specs, Kind::FloatScaled, Kind::FloatScaledNearest);
    specs
}
