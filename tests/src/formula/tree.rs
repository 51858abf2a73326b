//! Dynamic trees: decades below the largest magnitude in equal parts, with signs.

use gradwire::{CodecId, Device, Tree};

use super::{BUCKETS, Quantizer, Formula, Note, Page, Tests};
use crate::cases::Case;
use crate::conformance::Outcome;
use crate::oracle::{self, Encoded, Kind, Setting, scale_of};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{FILLS, Spec, bell, bucket_name, feedback, halves, halves_with_feedback, shapes, start, workers};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Tree,
    page: &PAGE,
    settings,
    stochastic: &[case(Kind::TreeStochastic, Some(512)), case(Kind::TreeStochastic, None)],
    timed,
    vectors,
    committed: include_str!("../../vectors/tree.json"),
    theorems,
    independent: &[case(Kind::TreeStochastic, Some(512))],
    feedback: &[case(Kind::Tree, Some(64))],
};

const PAGE: Page = Page { tag: 10, widths: &[8], levels: &[(8, 127)], sign_bits: 1, flags: 2, scalars: 1, buckets: BUCKETS, decode: page };

/// To nearest.
pub(super) const NEAREST: Rounding = Rounding { nearest: true };
/// With stochastic rounding.
pub(super) const STOCHASTIC: Rounding = Rounding { nearest: false };

pub(super) struct Rounding {
    nearest: bool,
}

/// All levels, in millionths of half the largest magnitude, from the decades' ends and how many parts each has.
fn levels() -> Vec<u32> {
    let mut all = vec![0, 2];
    let mut end = 2;
    for parts in [2, 4, 8, 16, 32, 64] {
        all.extend((1..=parts).map(|part| end + 9 * end * part / parts));
        end *= 10;
    }
    all
}

impl Formula for Rounding {
    fn name(&self) -> &'static str {
        if self.nearest { "tree" } else { "tree stochastic" }
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [None, Some(if self.nearest { "nearest" } else { "stochastic" })]
    }

    fn terms(&self) -> [&'static str; 2] {
        ["decade", if self.nearest { "nearest" } else { "stochastic" }]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = Tree::new();
        let c = if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() };
        let c = if self.nearest { c } else { c.stochastic() };
        Quantizer::Tree(if case.contractive { c.contractive() } else { c })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    fn is_nearest(&self) -> bool {
        self.nearest
    }

    fn omega(&self, b: f64, _: f64) -> f64 {
        0.9205 + (b / 4.0 * 1e-12).min(b.sqrt() * 1e-6)
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        (bucket.iter().fold(0.0f64, |m, v| m.max(v.abs())), None)
    }

    /// Of a bucket whose largest magnitude is two million.
    fn level(&self, level: u32, _: u32) -> f32 {
        levels()[level as usize] as f32
    }

    fn widest(&self, span: f64, _: u32) -> f64 {
        span * 28_125e-6 / 2.0
    }

    fn positions(&self, _: u32, bucket: &[f64]) -> Vec<(f64, f64)> {
        let unit = self.span(bucket).0 / 2e6;
        let levels = levels();
        let place = |v: f64| {
            let code = levels.partition_point(|level| f64::from(*level) * unit <= v).clamp(1, 127) - 1;
            let [low, high] = [levels[code], levels[code + 1]].map(|level| f64::from(level) * unit);
            (high - low, code as f64 + (v - low) / (high - low))
        };
        bucket.iter().map(|v| if unit == 0.0 { (1.0, 0.0) } else { place(v.abs()) }).collect()
    }

    fn encode(&self, s: &Setting, bucket: &[f32], first: usize, out: &mut Encoded) {
        let largest = bucket.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let lift = scale_of(largest, false);
        let inverse = if largest > 0.0 { 2e6 / (largest * lift) } else { 0.0 };
        out.scalars.push(largest * s.beta);
        let levels = levels();
        for (i, v) in bucket.iter().enumerate() {
            let x = v.abs() * lift * inverse;
            // The level that begins the decade, and the step of it.
            let begin = [2, 20, 200, 2_000, 20_000, 200_000].into_iter().rev().find(|end| x >= *end as f32).unwrap_or(0);
            let code = levels.partition_point(|level| *level <= begin) - 1;
            let step = levels[code + 1] - begin;
            let offset = (code as i64 * i64::from(step) - i64::from(begin)) as f32 / step as f32;
            let place = x * (1.0 / step as f32) + offset;
            let level = oracle::level(s, place * 2f32.powi(oracle::fraction(127) as i32), first + i);
            out.codes.push(level | if v.is_sign_negative() { 1 << 7 } else { 0 });
        }
    }

    fn value(&self, _: &Setting, scalars: &[f32], code: u32) -> f32 {
        let scale = scalars[0];
        if scale.is_nan() {
            return scale;
        }
        let lift = scale_of(scale, false);
        let top = scale * lift;
        let level = code % 128;
        let magnitude = if level == 127 { top } else { top / 2e6 * levels()[level as usize] as f32 } / lift;
        if code >> 7 == 1 { -magnitude } else { magnitude }
    }
}

/// Section "Decoding a dynamic tree" of the page.
fn page(scalars: &[f32], _: f32, code: u32, _: u8) -> f32 {
    let scale = scalars[0];
    if scale.is_sign_negative() || !scale.is_finite() {
        return f32::from_bits(0x7fc0_0000);
    }
    let up = if scale < 2f32.powi(-60) { 2f32.powi(64) } else { 1.0 };
    let (top, l) = (scale * up, (code & 0x7f) as i32);
    let e = l.max(1).ilog2() as i32;
    let m = if l < 2 { 2 * l } else { 2 * 10i32.pow(e as u32 - 1) * (2i32.pow(e as u32) + 9 * (l + 1 - 2i32.pow(e as u32))) / 2i32.pow(e as u32) };
    let v = if l == 127 { top } else { top / 2e6 * m as f32 };
    let value = v / up;
    if code >> 7 == 1 { -value } else { value }
}

const fn case(kind: Kind, bucket: Option<usize>) -> Case {
    Case { kind, bits: 8, levels: 127, bucket, contractive: false }
}

fn settings() -> Vec<Case> {
    let mut cases: Vec<Case> = (5..=13).map(|log2| case(Kind::Tree, Some(1 << log2))).collect();
    cases.extend([Some(64), Some(512), None].map(|bucket| case(Kind::TreeStochastic, bucket)));
    cases.push(case(Kind::Tree, None));
    cases.extend([Some(256), None].map(|bucket| Case { contractive: true, ..case(Kind::TreeStochastic, bucket) }));
    cases
}

fn timed() -> Vec<(Case, bool)> {
    vec![(case(Kind::Tree, Some(512)), true), (case(Kind::TreeStochastic, Some(512)), false)]
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for bucket in [Some(64), Some(512), None] {
        let nearest = case(Kind::Tree, bucket);
        note("levels stay", properties::exact_on_levels(device, &nearest));
        note("error of an element at most half the distance of its levels", properties::bounded(device, &nearest, x));
        note("error within the decade's part of a magnitude", by_decades(device, &nearest, x));
        note("scalars do not depend on order", properties::permutation(device, &nearest, x));
        note("payload within 1 % of theory", properties::size(device, &nearest));
    }
    note("levels stay", properties::exact_on_levels(device, &case(Kind::TreeStochastic, Some(512))));
}

/// Decoding is monotone, gives back the largest magnitude, and moves no other by more than the page's part of it.
fn by_decades(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    // Magnitudes of all decades.
    let x: Vec<f32> = x.iter().enumerate().map(|(i, v)| v * 10f32.powi(-(i as i32 % 9))).collect();
    let decoded = decode_with(device, case, &x, 17)?;
    let size = case.bucket.unwrap_or(x.len());
    for (x, d) in x.chunks(size).zip(decoded.chunks(size)) {
        let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let mut pairs: Vec<(f32, f32)> = x.iter().copied().zip(d.iter().copied()).collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let Some(pair) = pairs.windows(2).find(|pair| pair[0].1 > pair[1].1) {
            return Err(format!("{}: {pair:?} is not monotone", case.label()));
        }
        for (x, d) in pairs {
            let part = f64::from(x.abs()) / f64::from(largest);
            let limit = match -part.log10() {
                _ if part == 1.0 => 0.0,
                below if below < 6.0 => part * [0.07, 0.13, 0.22, 0.36, 0.53, 0.70][below as usize],
                _ => 0.5001e-6,
            };
            if (f64::from(d) - f64::from(x)).abs() > limit * f64::from(largest) {
                return Err(format!("{}: {x:e} becomes {d:e} beside {largest:e}", case.label()));
            }
        }
    }
    Ok(decoded.len() as u64)
}

/// The vectors of dynamic trees.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for (kind, rounding) in [(Kind::Tree, "nearest"), (Kind::TreeStochastic, "stochastic")] {
        specs.push(Spec::new(format!("buckets, {rounding}"), case(kind, Some(32)), bell(65, 30)).add(-0.3, start(65)));
        specs.push(Spec::new(format!("whole tensor, {rounding}"), case(kind, None), bell(40, 32)));
        for (name, fill) in FILLS {
            specs.push(Spec::new(format!("{name}, {rounding}"), case(kind, Some(32)), fill(36)));
        }
        let decades = (0..96).map(|i| 10f32.powf(-(i as f32) / 12.0) * if i % 3 == 1 { -3.0 } else { 3.0 }).collect();
        specs.push(Spec::new(format!("eight decades, {rounding}"), case(kind, Some(128)), decades));
        for bucket in [Some(32), Some(256), None] {
            let case = Case { contractive: true, ..case(kind, bucket) };
            specs.push(Spec::new(format!("contractive, {rounding}, {}", bucket_name(bucket)), case, bell(35, 34)));
        }
    }
    let all = levels().into_iter().map(|level| level as f32).collect();
    specs.push(Spec::new("every level", case(Kind::Tree, Some(128)), all));
    shapes(&mut specs, Kind::Tree, Kind::TreeStochastic);
    halves(&mut specs, Kind::Tree, Kind::TreeStochastic);
    feedback(&mut specs, "nearest", case(Kind::Tree, Some(32)));
    feedback(&mut specs, "stochastic, whole tensor", case(Kind::TreeStochastic, None));
    workers(&mut specs, Kind::TreeStochastic, Kind::TreeStochastic);
    halves_with_feedback(&mut specs, Kind::Tree, Kind::TreeStochastic);
    specs
}
