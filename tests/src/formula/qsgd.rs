//! QSGD: magnitudes as fractions of a bucket's norm, with signs.

use gradwire::{CodecId, Device, Qsgd};

use super::{BUCKETS, Quantizer, Formula, Note, Page, Tests};
use crate::cases::Case;
use crate::conformance;
use crate::models;
use crate::oracle::{self, Encoded, Kind, Setting, scale_of};
use crate::vectors::spec::{
    FILLS, Spec, bell, bucket_name, feedback, halves, halves_with_feedback, shapes, start, with, workers,
};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Qsgd,
    page: &PAGE,
    settings,
    stochastic: &[
        case(Kind::QsgdMax, 2, Some(128)),
        case(Kind::QsgdMax, 4, Some(512)),
        case(Kind::QsgdL2, 4, Some(512)),
        case(Kind::QsgdL2, 8, Some(256)),
        case(Kind::QsgdMax, 16, Some(1024)),
        case(Kind::QsgdL2, 3, None),
    ],
    timed,
    vectors,
    committed: include_str!("../../vectors/qsgd.json"),
    theorems,
    independent: &[case(Kind::QsgdMax, 4, Some(512))],
    feedback: &[],
};

const PAGE: Page = Page { tag: 1, widths: &[2, 3, 4, 5, 6, 7, 8, 16], levels: &[], sign_bits: 1, flags: 3, scalars: 1, buckets: BUCKETS, decode: page };

/// With the largest magnitude as its norm.
pub(super) const MAX: Norm = Norm { l2: false };
/// With the L2 norm.
pub(super) const L2: Norm = Norm { l2: true };

pub(super) struct Norm {
    l2: bool,
}

impl Formula for Norm {
    fn name(&self) -> &'static str {
        if self.l2 { "QSGD L2" } else { "QSGD max" }
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [Some(if self.l2 { "l2" } else { "max" }), None]
    }

    fn terms(&self) -> [&'static str; 2] {
        [if self.l2 { "l2" } else { "max" }, "stochastic"]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let full = (1 << (case.bits - 1)) - 1;
        let c = if case.levels == full { Qsgd::bits(case.bits) } else { Qsgd::levels(case.levels) };
        let c = if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() };
        let c = if self.l2 { c.l2() } else { c };
        Quantizer::Qsgd(if case.contractive { c.contractive() } else { c })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    fn flag(&self) -> u8 {
        u8::from(self.l2)
    }

    fn omega(&self, b: f64, levels: f64) -> f64 {
        (b / (4.0 * levels * levels)).min(b.sqrt() / levels)
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        let largest = bucket.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        (if self.l2 { bucket.iter().map(|v| v * v).sum::<f64>().sqrt() } else { largest }, None)
    }

    fn encode(&self, s: &Setting, bucket: &[f32], first: usize, out: &mut Encoded) {
        let largest = bucket.iter().map(|v| v.abs()).fold(0.0, f32::max);
        let norm = if self.l2 { l2(bucket) } else { largest };
        let lift = scale_of(norm, false);
        let inverse = if norm > 0.0 { oracle::full(s) / (norm * lift) } else { 0.0 };
        out.scalars.push(norm * s.beta);
        for (i, v) in bucket.iter().enumerate() {
            let sign = if v.is_sign_negative() { 1 << (s.bits - 1) } else { 0 };
            out.codes.push(oracle::level(s, v.abs() * lift * inverse, first + i) | sign);
        }
    }

    fn value(&self, s: &Setting, scalars: &[f32], code: u32) -> f32 {
        let norm = scalars[0];
        if norm.is_nan() {
            return norm;
        }
        let lift = scale_of(norm, false);
        let level = code % (1 << (s.bits - 1));
        let magnitude = ((norm * lift / s.levels as f32) * level as f32).min(norm * lift) / lift;
        if code >> (s.bits - 1) == 1 { -magnitude } else { magnitude }
    }
}

/// The L2 norm.
fn l2(x: &[f32]) -> f32 {
    let (root, exponent) = root(x);
    (f64::from(root) * 2f64.powi(exponent)).min(f64::from(f32::MAX)) as f32
}

/// Square root of the exact sum of squares, as an integer and the exponent of its unit; each magnitude is cut to a
/// multiple of the largest one's last place; `blocks` of 8192 are cut to their own largest and their sums aligned, as
/// the format says for whole tensors.
pub(super) fn root(x: &[f32]) -> (f32, i32) {
    let exponent = |v: f32| (v.abs().to_bits() >> 23).max(1);
    let top = x.iter().map(|v| v.abs()).fold(0.0, f32::max);
    if top == 0.0 {
        return (0.0, 0);
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
    (total.isqrt() as u32 as f32, exponent(top) as i32 - 150 + halvings)
}

/// Section "Decoding QSGD" of the page.
fn page(scalars: &[f32], levels: f32, code: u32, bits: u8) -> f32 {
    let norm = scalars[0];
    if norm.is_sign_negative() || !norm.is_finite() {
        return f32::from_bits(0x7fc0_0000);
    }
    let up = if norm < 2f32.powi(-60) { 2f32.powi(64) } else { 1.0 };
    let top = norm * up;
    let (sign, level) = (code >> (bits - 1), code & ((1 << (bits - 1)) - 1));
    let v = top / levels * level as f32;
    let value = if v > top { top } else { v } / up;
    if sign == 1 { -value } else { value }
}

const fn case(kind: Kind, bits: u32, bucket: Option<usize>) -> Case {
    Case { kind, bits, levels: (1 << (bits - 1)) - 1, bucket, contractive: false }
}

fn settings() -> Vec<Case> {
    let mut cases = Vec::new();
    // Formula by formula: inputs are dealt out in turn, and a formula must not meet every second one alone.
    for kind in [Kind::QsgdMax, Kind::QsgdL2] {
        cases.extend([2, 3, 4, 5, 6, 7, 8, 16].map(|bits| case(kind, bits, Some(512))));
        cases.extend((5..=13).map(|log2| case(kind, 4, Some(1 << log2))));
        cases.extend([4, 7].map(|bits| case(kind, bits, None)));
        cases.extend([Some(256), None].map(|bucket| Case { contractive: true, ..case(kind, 3, bucket) }));
    }
    // The presets of Grubic et al. that the loops above leave out.
    cases.push(Case::new(Kind::QsgdMax, 2, Some(128)));
    cases.push(Case::new(Kind::QsgdMax, 16, Some(8192)));
    cases.push(Case::new(Kind::QsgdL2, 16, None));
    // Level counts that do not fill their width.
    for levels in [2, 5, 100, 1000] {
        let bits = [2, 3, 4, 5, 6, 7, 8, 16].into_iter().find(|b| (1 << (b - 1)) > levels).unwrap_or(16);
        cases.push(Case { levels, ..Case::new(Kind::QsgdMax, bits, Some(64)) });
    }
    cases
}

fn timed() -> Vec<(Case, bool)> {
    let mut timed = vec![(case(Kind::QsgdMax, 2, Some(128)), false)];
    timed.extend((3..=8).map(|bits| (case(Kind::QsgdMax, bits, Some(512)), [4, 8].contains(&bits))));
    timed.push((case(Kind::QsgdMax, 16, Some(8192)), false));
    timed.push((case(Kind::QsgdMax, 4, None), false));
    timed.push((case(Kind::QsgdL2, 2, Some(128)), false));
    timed.extend([4, 8].map(|bits| (case(Kind::QsgdL2, bits, Some(512)), false)));
    timed
}

fn theorems(device: &Device, _: &[f32], note: &mut Note<'_>) {
    note("NaN and infinity refused, residual kept", conformance::refuses_not_finite(device));
    note("many tensors: NaN and infinity refused, residuals kept", models::refuses_not_finite(device));
}

/// The vectors of QSGD.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for bits in [2, 3, 4, 5, 6, 7, 8, 16] {
        let case = Case::new(Kind::QsgdMax, bits, Some(32));
        let spec = Spec::new(format!("{bits}-bit codes, max"), case, bell(33, 10));
        specs.push(if bits % 2 == 0 { spec.add(-0.3, start(33)) } else { spec });
        let case = Case::new(Kind::QsgdL2, bits, Some(32));
        specs.push(Spec::new(format!("{bits}-bit codes, L2, two buckets and a tail"), case, bell(65, 11)));
        let kind = if bits % 2 == 0 { Kind::QsgdL2 } else { Kind::QsgdMax };
        let case = Case::new(kind, bits, None);
        specs.push(Spec::new(format!("{bits}-bit codes, whole tensor, 32-bit draws"), case, bell(40, 12)));
    }
    for levels in [1u32, 2, 5, 100, 1000, 32766] {
        let bits = [2, 3, 4, 5, 6, 7, 8, 16].into_iter().find(|b| levels < 1 << (b - 1)).unwrap_or(16);
        let case = Case { levels, ..Case::new(Kind::QsgdMax, bits, Some(64)) };
        specs.push(Spec::new(format!("{levels} levels"), case, bell(40, 13)));
    }
    let far_smaller = "an L2 norm over two spans of 8192, the first far smaller";
    shapes(&mut specs, Kind::QsgdMax, Kind::QsgdL2);
    for (kind, norm) in [(Kind::QsgdMax, "max"), (Kind::QsgdL2, "L2")] {
        for (name, fill) in FILLS {
            let spec = Spec::new(format!("{name}, {norm}"), Case::new(kind, 4, Some(32)), fill(36));
            // Both decode by one formula, so that one of them is enough.
            specs.push(if kind == Kind::QsgdMax { spec.add(0.5, start(36)) } else { spec });
        }
        let case = Case::new(kind, 5, None);
        specs.push(Spec::new(format!("an infinity, whole tensor, {norm}"), case, FILLS[15].1(33)));
        for bucket in [Some(32), Some(256), None] {
            let case = Case { contractive: true, ..Case::new(kind, 3, bucket) };
            let name = format!("contractive, {norm}, {}", bucket_name(bucket));
            specs.push(Spec::new(name, case, bell(35, 14)));
        }
    }
    for (name, small) in [(far_smaller, 2f32.powi(-9)), ("two spans, the first vanishes", 2f32.powi(-45))] {
        let x = (0..8193).map(|i| if i < 8192 { small } else { -1.0 }).collect();
        specs.push(Spec::new(name, Case::new(Kind::QsgdL2, 2, None), x));
    }
    halves(&mut specs, Kind::QsgdMax, Kind::QsgdL2);
    let contraction = |kind, bits, bucket| Case { contractive: true, ..Case::new(kind, bits, bucket) };
    feedback(&mut specs, "8 bits, max", Case::new(Kind::QsgdMax, 8, Some(32)));
    feedback(&mut specs, "8 bits, L2", Case::new(Kind::QsgdL2, 8, Some(32)));
    feedback(&mut specs, "16 bits, max, whole tensor", Case::new(Kind::QsgdMax, 16, None));
    feedback(&mut specs, "2 bits, max, contractive", contraction(Kind::QsgdMax, 2, Some(32)));
    feedback(&mut specs, "4 bits, L2, contractive, whole tensor", contraction(Kind::QsgdL2, 4, None));
    workers(&mut specs, Kind::QsgdMax, Kind::QsgdL2);
    halves_with_feedback(&mut specs, Kind::QsgdMax, Kind::QsgdL2);
    // The name is one of those that give an element the largest draw: three quarters of a 2^-16th of a level round up
    // by it alone.
    let far_below = with(vec![0.75 * 2f32.powi(-16) / 32767.0; 64], 0, 1.0);
    let name = "16 bits, far below a level, draws 1642";
    specs.push(Spec::new(name, Case::new(Kind::QsgdMax, 16, Some(64)), far_below));
    specs
}
