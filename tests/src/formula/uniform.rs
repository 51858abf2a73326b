//! Uniform quantization between a bucket's minimum and maximum.

use gradwire::{CodecId, Device, Uniform};

use super::{BUCKETS, Quantizer, Formula, Note, Page, Tests};
use crate::cases::Case;
use crate::oracle::{self, Encoded, Kind, Setting, scale_of};
use crate::vectors::spec::{
    FILLS, Spec, bell, bucket_name, feedback, halves, halves_with_feedback, shapes, start, workers,
};
use crate::{bounds, properties};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Uniform,
    page: &PAGE,
    settings,
    stochastic: &[
        case(Kind::Uniform, 1, Some(64)),
        case(Kind::Uniform, 4, Some(512)),
        case(Kind::Uniform, 8, None),
    ],
    timed,
    vectors,
    committed: include_str!("../../vectors/uniform.json"),
    theorems,
    independent: &[case(Kind::Uniform, 4, None)],
    feedback: &[NEAREST_5],
};

const PAGE: Page = Page { tag: 2, widths: &[1, 2, 3, 4, 5, 6, 7, 8], levels: &[], sign_bits: 0, flags: 2, scalars: 2, buckets: BUCKETS, decode: page };
const NEAREST_5: Case = case(Kind::UniformNearest, 5, Some(512));

/// With stochastic rounding.
pub(super) const STOCHASTIC: Rounding = Rounding { nearest: false };
/// To nearest.
pub(super) const NEAREST: Rounding = Rounding { nearest: true };

pub(super) struct Rounding {
    nearest: bool,
}

impl Formula for Rounding {
    fn name(&self) -> &'static str {
        if self.nearest { "uniform nearest" } else { "uniform" }
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [None, Some(if self.nearest { "nearest" } else { "stochastic" })]
    }

    fn terms(&self) -> [&'static str; 2] {
        ["range", if self.nearest { "nearest" } else { "stochastic" }]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = Uniform::bits(case.bits);
        let c = if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() };
        let c = if self.nearest { c.nearest() } else { c };
        Quantizer::Uniform(if case.contractive { c.contractive() } else { c })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    fn is_nearest(&self) -> bool {
        self.nearest
    }

    fn omega(&self, b: f64, levels: f64) -> f64 {
        b / (2.0 * levels * levels)
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        let low = bucket.iter().copied().fold(f64::INFINITY, f64::min);
        let high = bucket.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (high - low, Some(low))
    }

    fn encode(&self, s: &Setting, bucket: &[f32], first: usize, out: &mut Encoded) {
        let full = oracle::full(s);
        let (low, high) = extremes(bucket);
        let lift = scale_of(low.abs().max(high.abs()), true);
        let range = high * lift - low * lift;
        let mut inverse = if range > 0.0 { full / range } else { 0.0 };
        if range > 0.0 && range * inverse < full {
            inverse = inverse.next_up();
        }
        out.scalars.extend([low * s.beta, high * s.beta]);
        for (i, v) in bucket.iter().enumerate() {
            out.codes.push(oracle::level(s, (v * lift - low * lift) * inverse, first + i));
        }
    }

    fn value(&self, s: &Setting, scalars: &[f32], code: u32) -> f32 {
        let (low, high) = (scalars[0], scalars[1]);
        if low.is_nan() {
            return low;
        }
        let lift = scale_of(low.abs().max(high.abs()), true);
        let step = (high * lift - low * lift) / s.levels as f32;
        let (value, top) = (low * lift + step * code as f32, high * lift);
        // Not `min`, which may give either zero of +0 and -0, and gives another one from compiler to compiler.
        (if code == s.levels || value > top { top } else { value }) / lift
    }
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

/// Section "Decoding uniform" of the page.
fn page(scalars: &[f32], levels: f32, code: u32, _: u8) -> f32 {
    let (low, high) = (scalars[0], scalars[1]);
    if !low.is_finite() || !high.is_finite() || low > high {
        return f32::from_bits(0x7fc0_0000);
    }
    let most = low.abs().max(high.abs());
    let up = match most {
        m if m >= 2f32.powi(126) => 0.5,
        m if m < 2f32.powi(-60) => 2f32.powi(64),
        _ => 1.0,
    };
    let (a, b) = (low * up, high * up);
    let step = (b - a) / levels;
    let v = a + step * code as f32;
    (if code as f32 >= levels || v > b { b } else { v }) / up
}

const fn case(kind: Kind, bits: u32, bucket: Option<usize>) -> Case {
    Case { kind, bits, levels: (1 << bits) - 1, bucket, contractive: false }
}

fn settings() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Uniform, Kind::UniformNearest] {
        cases.extend((1..=8).map(|bits| case(kind, bits, Some(512))));
        cases.extend([4, 7].map(|bits| case(kind, bits, None)));
    }
    cases.extend((5..=13).map(|log2| case(Kind::Uniform, 4, Some(1 << log2))));
    cases.extend([Some(256), None].map(|b| Case { contractive: true, ..case(Kind::Uniform, 3, b) }));
    cases
}

fn timed() -> Vec<(Case, bool)> {
    let stochastic = [1, 2, 3, 4, 6, 8].map(|bits| (case(Kind::Uniform, bits, Some(512)), [4, 8].contains(&bits)));
    let nearest = [4, 8].map(|bits| (case(Kind::UniformNearest, bits, Some(512)), false));
    stochastic.into_iter().chain(nearest).collect()
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    // The smallest payloads there are, where the header weighs most.
    for bucket in [None, Some(8192)] {
        note("payload within 1 % of theory", properties::size(device, &case(Kind::Uniform, 1, bucket)));
    }
    let ranges = bounds::ranges(400, 73);
    for (kind, bits) in [(Kind::Uniform, 1), (Kind::UniformNearest, 5), (Kind::Uniform, 8), (Kind::UniformNearest, 8)] {
        let outcome = bounds::holds(device, &case(kind, bits, Some(32)), &ranges);
        note("error of an element within the bound, binary32's rounding included", outcome);
    }
    note("error of an element at most a level", properties::bounded(device, &NEAREST_5, x));
}

/// The vectors of the uniform codec.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for bits in 1..=8 {
        let case = Case::new(Kind::Uniform, bits, Some(32));
        let spec = Spec::new(format!("{bits}-bit codes, stochastic"), case, bell(33, 20));
        specs.push(if bits % 2 == 0 { spec.add(-0.3, start(33)) } else { spec });
        let case = Case::new(Kind::UniformNearest, bits, Some(32));
        specs.push(Spec::new(format!("{bits}-bit codes, nearest, two buckets and a tail"), case, bell(65, 21)));
        let kind = if bits % 3 == 0 { Kind::UniformNearest } else { Kind::Uniform };
        let name = if bits % 3 == 0 { "nearest" } else { "stochastic, 32-bit draws" };
        let case = Case::new(kind, bits, None);
        specs.push(Spec::new(format!("{bits}-bit codes, whole tensor, {name}"), case, bell(40, 22)));
    }
    shapes(&mut specs, Kind::Uniform, Kind::UniformNearest);
    let ties = (0..64).map(|i| (i % 31) as f32 / 2.0).collect();
    specs.push(Spec::new("ties at half a level, nearest", Case::new(Kind::UniformNearest, 4, Some(32)), ties));
    for (kind, rounding) in [(Kind::Uniform, "stochastic"), (Kind::UniformNearest, "nearest")] {
        for (name, fill) in FILLS {
            let spec = Spec::new(format!("{name}, {rounding}"), Case::new(kind, 4, Some(32)), fill(36));
            // Both decode by one formula, so that one of them is enough.
            specs.push(if kind == Kind::Uniform { spec.add(0.5, start(36)) } else { spec });
        }
        let case = Case::new(kind, 5, None);
        specs.push(Spec::new(format!("an infinity, whole tensor, {rounding}"), case, FILLS[15].1(33)));
        for bucket in [Some(32), Some(256), None] {
            let case = Case { contractive: true, ..Case::new(kind, 3, bucket) };
            let name = format!("contractive, {rounding}, {}", bucket_name(bucket));
            specs.push(Spec::new(name, case, bell(35, 24)));
        }
    }
    halves(&mut specs, Kind::Uniform, Kind::UniformNearest);
    let contraction = |kind, bits, bucket| Case { contractive: true, ..Case::new(kind, bits, bucket) };
    feedback(&mut specs, "8 bits, stochastic", Case::new(Kind::Uniform, 8, Some(32)));
    feedback(&mut specs, "5 bits, nearest", Case::new(Kind::UniformNearest, 5, Some(32)));
    feedback(&mut specs, "8 bits, nearest, whole tensor", Case::new(Kind::UniformNearest, 8, None));
    feedback(&mut specs, "1 bit, stochastic, contractive", contraction(Kind::Uniform, 1, Some(32)));
    feedback(&mut specs, "3 bits, stochastic, contractive, whole tensor", contraction(Kind::Uniform, 3, None));
    workers(&mut specs, Kind::Uniform, Kind::UniformNearest);
    halves_with_feedback(&mut specs, Kind::Uniform, Kind::UniformNearest);
    // The name is one of those that give an element the draw 0, and this maximum times the rounded quotient is below
    // the top.
    let maxima = (0..64).map(|i| if i % 2 == 1 { f32::from_bits(0x3f73_11d9) } else { 0.0 }).collect();
    let name = "8 bits, half of the elements at the maximum, draws 1752";
    specs.push(Spec::new(name, Case::new(Kind::Uniform, 8, Some(64)), maxima));
    specs
}
