//! 1-bit SGD: the side of zero, and a mean for each side.

use gradwire::{CodecId, Device, OneBit};
use half::{bf16, f16};

use super::{BUCKETS, Quantizer, Formula, Note, Page, Tests};
use crate::cases::Case;
use crate::conformance::Outcome;
use crate::oracle::{Encoded, Kind, Setting};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{FILLS, Input, Spec, bell, bucket_name, feedback, start};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::OneBit,
    page: &PAGE,
    settings,
    stochastic: &[],
    timed,
    vectors,
    committed: include_str!("../../vectors/onebit.json"),
    theorems,
    independent: &[],
    feedback: &[case(Some(64))],
};

const PAGE: Page = Page { tag: 4, widths: &[1], levels: &[], sign_bits: 0, flags: 0, scalars: 2, buckets: BUCKETS, decode: page };

pub(super) const MEANS: Means = Means;

pub(super) struct Means;

impl Formula for Means {
    fn name(&self) -> &'static str {
        "1-bit SGD"
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [None; 2]
    }

    fn terms(&self) -> [&'static str; 2] {
        ["means", "none"]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = OneBit::new().without_feedback();
        Quantizer::OneBit(if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    /// No variance, but the part of a gradient's square that may be lost.
    fn omega(&self, b: f64, _: f64) -> f64 {
        1.0 - 1.0 / b
    }

    fn delta(&self, omega: f64) -> f64 {
        1.0 - omega
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        let low = bucket.iter().copied().fold(f64::INFINITY, f64::min);
        let high = bucket.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (high - low, Some(low))
    }

    fn encode(&self, _: &Setting, bucket: &[f32], _: usize, out: &mut Encoded) {
        let [below, above] = [true, false].map(|side| mean(bucket, |v| (**v < 0.0) == side));
        out.scalars.extend([0.0 - below, above]);
        out.codes.extend(bucket.iter().map(|v| u32::from(*v >= 0.0)));
    }

    fn value(&self, _: &Setting, scalars: &[f32], code: u32) -> f32 {
        scalars[code as usize]
    }
}

/// The mean magnitude of some values of a bucket: each cut to a multiple of 2^-31 of the largest one's binade, in
/// blocks of 8192 first by their own largest; the mean is cut to such a multiple too, and rounded once.
pub(super) fn mean(bucket: &[f32], of: impl Fn(&&f32) -> bool) -> f32 {
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

/// Section "Decoding 1-bit SGD" of the page.
fn page(scalars: &[f32], _: f32, code: u32, _: u8) -> f32 {
    let (below, above) = (scalars[0], scalars[1]);
    if !below.is_finite() || !above.is_finite() || below > above {
        return f32::from_bits(0x7fc0_0000);
    }
    if code == 0 { below } else { above }
}

const fn case(bucket: Option<usize>) -> Case {
    Case { kind: Kind::OneBit, bits: 1, levels: 1, bucket, contractive: false }
}

fn settings() -> Vec<Case> {
    (5..=13).map(|log2| Some(1 << log2)).chain([None]).map(case).collect()
}

fn timed() -> Vec<(Case, bool)> {
    [64, 512].map(|bucket| (case(Some(bucket)), bucket == 512)).to_vec()
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for case in [Some(64), Some(8192), None].map(case) {
        note("residuals add up to zero on each side", two_means(device, &case, x));
        note("scalars do not depend on order", properties::permutation(device, &case, x));
        note("payload within 1 % of theory", properties::size(device, &case));
    }
}

/// What decoding does not give back adds up to zero on each side of zero, to the rounding of means, elements and
/// sums; and its square is at most 1 - 1/B of the bucket's.
fn two_means(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 12)?;
    let size = case.bucket.unwrap_or(x.len());
    for (bucket, (x, d)) in x.chunks(size).zip(decoded.chunks(size)).enumerate() {
        let both = || x.iter().zip(d).map(|(v, d)| (f64::from(*v), f64::from(*d)));
        for below in [true, false] {
            let side = || both().filter(|(v, _)| (*v < 0.0) == below);
            let left: f64 = side().map(|(v, d)| v - d).sum();
            let largest = side().fold(0.0f64, |m, (v, _)| m.max(v.abs()));
            let each = largest * 2f64.powi(-30) + side().fold(0.0f64, |m, (_, d)| m.max(d.abs())) * 2f64.powi(-24);
            if left.abs() > side().count() as f64 * each {
                return Err(format!("{}: bucket {bucket} keeps {left:e} of one side", case.label()));
            }
        }
        let [lost, all] = [both().map(|(v, d)| (v - d) * (v - d)).sum(), both().map(|(v, _)| v * v).sum::<f64>()];
        if lost > (1.0 - 1.0 / x.len() as f64) * all * (1.0 + 2f64.powi(-20)) {
            return Err(format!("{}: bucket {bucket} loses {lost:e} of {all:e}", case.label()));
        }
    }
    Ok(decoded.len() as u64)
}

/// The vectors of 1-bit SGD.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for bucket in (5..=13).map(|log2| 1 << log2) {
        specs.push(Spec::new(format!("buckets of {bucket}, one element"), case(Some(bucket)), bell(1, 30)));
    }
    for (index, n) in [0, 1, 31, 33, 257, 513].into_iter().enumerate() {
        let bucket = Some(32 << (2 * index).min(8));
        specs.push(Spec::new(format!("n = {n}, {}", bucket_name(bucket)), case(bucket), bell(n, 31)));
        specs.push(Spec::new(format!("n = {n}, whole tensor"), case(None), bell(n, 32)));
    }
    for (name, fill) in FILLS {
        specs.push(Spec::new(name, case(Some(32)), fill(36)).add(0.5, start(36)));
        specs.push(Spec::new(format!("{name}, whole tensor"), case(None), fill(36)));
    }
    let far_smaller = (0..8200).map(|i| if i < 8192 { -(2f32.powi(-20)) } else { -1.0 }).collect();
    specs.push(Spec::new("a whole tensor of two spans, the first far smaller", case(None), far_smaller));
    feedback(&mut specs, "buckets of 32", case(Some(32)));
    feedback(&mut specs, "whole tensor", case(None));
    let x = bell(70, 62);
    let bf16s = Input::Bf16(x.iter().map(|v| bf16::from_f32(*v)).collect());
    let spec = Spec::new("bf16 with feedback", case(Some(64)), Vec::new()).feedback(bell(70, 63));
    specs.push(Spec { input: bf16s, ..spec });
    let f16s = Input::F16(x.iter().map(|v| f16::from_f32(*v)).collect());
    specs.push(Spec { input: f16s, ..Spec::new("f16", case(Some(64)), Vec::new()) });
    specs
}
