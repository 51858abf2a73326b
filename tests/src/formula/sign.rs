//! Signs with a scale: the mean of a bucket's magnitudes, or 1.

use gradwire::{CodecId, Device, Sign};
use half::{bf16, f16};

use super::onebit::mean;
use super::{BUCKETS, Quantizer, Formula, Note, Page, Tests};
use crate::cases::Case;
use crate::conformance::Outcome;
use crate::oracle::{Encoded, Kind, Setting};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{FILLS, Input, Spec, bell, bucket_name, feedback, start};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Sign,
    page: &PAGE,
    settings,
    stochastic: &[],
    timed,
    vectors,
    committed: include_str!("../../vectors/sign.json"),
    theorems,
    independent: &[],
    feedback: &[case(Kind::Sign, Some(64)), case(Kind::Sign, None)],
};

const PAGE: Page = Page { tag: 6, widths: &[1], levels: &[], sign_bits: 0, flags: 0, scalars: 1, buckets: BUCKETS, decode: page };

/// The mean of the magnitudes.
pub(super) const SCALED: Scale = Scale { unit: false };
/// One.
pub(super) const UNIT: Scale = Scale { unit: true };

pub(super) struct Scale {
    unit: bool,
}

impl Formula for Scale {
    fn name(&self) -> &'static str {
        if self.unit { "SignSGD" } else { "EF-SignSGD" }
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [Some(if self.unit { "unit" } else { "mean" }), None]
    }

    fn terms(&self) -> [&'static str; 2] {
        [if self.unit { "one" } else { "mean" }, "none"]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = if self.unit { Sign::unit() } else { Sign::new().without_feedback() };
        Quantizer::Sign(if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    /// No variance, but the part of a gradient's square that may be lost.
    fn omega(&self, b: f64, _: f64) -> f64 {
        if self.unit { f64::INFINITY } else { 1.0 - 1.0 / b }
    }

    fn delta(&self, omega: f64) -> f64 {
        1.0 - omega
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        let scale = if self.unit { 1.0 } else { bucket.iter().fold(0.0f64, |m, v| m.max(v.abs())) };
        (2.0 * scale, Some(-scale))
    }

    fn encode(&self, _: &Setting, bucket: &[f32], _: usize, out: &mut Encoded) {
        out.scalars.push(if self.unit { 1.0 } else { mean(bucket, |_| true) });
        out.codes.extend(bucket.iter().map(|v| u32::from(*v >= 0.0)));
    }

    fn value(&self, _: &Setting, scalars: &[f32], code: u32) -> f32 {
        if scalars[0].is_nan() || code == 1 { scalars[0] } else { -scalars[0] }
    }
}

/// Section "Decoding signs" of the page.
pub(super) fn page(scalars: &[f32], _: f32, code: u32, _: u8) -> f32 {
    let scale = scalars[0];
    if scale.is_sign_negative() || !scale.is_finite() {
        return f32::from_bits(0x7fc0_0000);
    }
    if code == 0 { -scale } else { scale }
}

const fn case(kind: Kind, bucket: Option<usize>) -> Case {
    Case { kind, bits: 1, levels: 1, bucket, contractive: false }
}

fn settings() -> Vec<Case> {
    let means = (5..=13).map(|log2| Some(1 << log2)).chain([None]).map(|bucket| case(Kind::Sign, bucket));
    means.chain([Some(64), Some(8192), None].map(|bucket| case(Kind::SignUnit, bucket))).collect()
}

fn timed() -> Vec<(Case, bool)> {
    vec![(case(Kind::Sign, Some(8192)), true), (case(Kind::Sign, None), false), (case(Kind::SignUnit, Some(8192)), false)]
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for bucket in [Some(64), Some(8192), None] {
        let case = case(Kind::Sign, bucket);
        note("the error is what the mean says", mean_of_magnitudes(device, &case, x));
        note("scalars do not depend on order", properties::permutation(device, &case, x));
        note("payload within 1 % of theory", properties::size(device, &case));
    }
    note("signs do not depend on the scale", scale_invariant(device, x));
    note("payload within 1 % of theory", properties::size(device, &case(Kind::SignUnit, Some(8192))));
}

/// |x - d|^2 = |x|^2 - |x|_1^2 / B in each bucket of B elements, to the mean's rounding: a mean that is off by e adds B e^2.
fn mean_of_magnitudes(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 12)?;
    let size = case.bucket.unwrap_or(x.len());
    for (bucket, (x, d)) in x.chunks(size).zip(decoded.chunks(size)).enumerate() {
        let both = || x.iter().zip(d).map(|(v, d)| (f64::from(*v), f64::from(*d)));
        let [lost, all] = [both().map(|(v, d)| (v - d) * (v - d)).sum(), both().map(|(v, _)| v * v).sum::<f64>()];
        let count = x.len() as f64;
        let mean = both().map(|(v, _)| v.abs()).sum::<f64>() / count;
        // Cut to 2^-31 of the largest twice, and rounded to binary32.
        let largest = both().fold(0.0f64, |m, (v, _)| m.max(v.abs()));
        let off = largest * 2f64.powi(-30) + mean * 2f64.powi(-24);
        if (lost - (all - count * mean * mean)).abs() > count * off * off + all * 2f64.powi(-40) {
            return Err(format!("{}: bucket {bucket} loses {lost:e} of {all:e}", case.label()));
        }
        if lost > (1.0 - 1.0 / count) * all * (1.0 + 2f64.powi(-20)) {
            return Err(format!("{}: bucket {bucket} loses {lost:e} of {all:e}", case.label()));
        }
    }
    Ok(decoded.len() as u64)
}

/// SignSGD of c x is SignSGD of x, for c above 0.
fn scale_invariant(device: &Device, x: &[f32]) -> Outcome {
    let case = case(Kind::SignUnit, Some(8192));
    let plain = decode_with(device, &case, x, 1)?;
    for factor in [2f32.powi(-20), 3.0, 1e20] {
        let scaled: Vec<f32> = x.iter().map(|v| v * factor).collect();
        if decode_with(device, &case, &scaled, 2)? != plain {
            return Err(format!("{}: {factor:e} times the gradient has other signs", case.label()));
        }
    }
    let right = x.iter().zip(&plain).all(|(x, d)| *d == if *x >= 0.0 { 1.0 } else { -1.0 });
    if right { Ok(plain.len() as u64) } else { Err(format!("{}: a sign is not the element's", case.label())) }
}

/// The vectors of signs.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for bucket in (5..=13).map(|log2| 1 << log2) {
        specs.push(Spec::new(format!("buckets of {bucket}, one element"), case(Kind::Sign, Some(bucket)), bell(1, 30)));
    }
    for (index, n) in [0, 1, 31, 33, 257, 513].into_iter().enumerate() {
        let bucket = Some(32 << (2 * index).min(8));
        let name = bucket_name(bucket);
        specs.push(Spec::new(format!("n = {n}, {name}"), case(Kind::Sign, bucket), bell(n, 31)));
        specs.push(Spec::new(format!("n = {n}, {name}, unit"), case(Kind::SignUnit, bucket), bell(n, 31)));
        specs.push(Spec::new(format!("n = {n}, whole tensor"), case(Kind::Sign, None), bell(n, 32)));
    }
    for (name, fill) in FILLS {
        specs.push(Spec::new(name, case(Kind::Sign, Some(32)), fill(36)).add(0.5, start(36)));
        specs.push(Spec::new(format!("{name}, whole tensor"), case(Kind::Sign, None), fill(36)));
        specs.push(Spec::new(format!("{name}, unit"), case(Kind::SignUnit, Some(32)), fill(36)));
    }
    let far_smaller = (0..8200).map(|i| if i < 8192 { -(2f32.powi(-20)) } else { -1.0 }).collect();
    specs.push(Spec::new("a whole tensor of two spans, the first far smaller", case(Kind::Sign, None), far_smaller));
    specs.push(Spec::new("unit, whole tensor", case(Kind::SignUnit, None), bell(70, 33)));
    feedback(&mut specs, "buckets of 32", case(Kind::Sign, Some(32)));
    feedback(&mut specs, "whole tensor", case(Kind::Sign, None));
    let x = bell(70, 62);
    let bf16s = Input::Bf16(x.iter().map(|v| bf16::from_f32(*v)).collect());
    let spec = Spec::new("bf16 with feedback", case(Kind::Sign, Some(64)), Vec::new()).feedback(bell(70, 63));
    specs.push(Spec { input: bf16s, ..spec });
    let f16s = Input::F16(x.iter().map(|v| f16::from_f32(*v)).collect());
    specs.push(Spec { input: f16s, ..Spec::new("f16", case(Kind::Sign, Some(64)), Vec::new()) });
    specs
}
