//! DRIVE: signs with the scale |x|_2^2 / |x|_1 of a bucket.

use gradwire::{CodecId, Device, Drive};
use half::{bf16, f16};

use super::sign::page;
use super::{BUCKETS, Formula, Note, Page, Quantizer, Tests};
use crate::cases::{Case, Random};
use crate::conformance::Outcome;
use crate::oracle::{Encoded, Kind, Setting};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{FILLS, Input, Spec, bell, bucket_name, start};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Drive,
    page: &PAGE,
    settings,
    stochastic: &[],
    timed,
    vectors,
    committed: include_str!("../../vectors/drive.json"),
    theorems,
    independent: &[],
    feedback: &[],
};

const PAGE: Page =
    Page { tag: 13, widths: &[1], levels: &[], sign_bits: 0, flags: 0, scalars: 1, buckets: BUCKETS, decode: page };

pub(super) const SIGNS: Signs = Signs;

pub(super) struct Signs;

impl Formula for Signs {
    fn name(&self) -> &'static str {
        "DRIVE"
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [None, None]
    }

    fn terms(&self) -> [&'static str; 2] {
        ["squares over magnitudes", "none"]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = Drive::new();
        Quantizer::Drive(if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    /// No variance, but the largest error that is possible.
    fn omega(&self, b: f64, _: f64) -> f64 {
        (b - 1.0).max(1.0)
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        let largest = bucket.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        (2.0 * largest, Some(-largest))
    }

    fn encode(&self, _: &Setting, bucket: &[f32], _: usize, out: &mut Encoded) {
        out.scalars.push(scale(bucket));
        out.codes.extend(bucket.iter().map(|v| u32::from(*v >= 0.0)));
    }

    fn value(&self, _: &Setting, scalars: &[f32], code: u32) -> f32 {
        if scalars[0].is_nan() || code == 1 { scalars[0] } else { -scalars[0] }
    }
}

/// The last place of the binade of the largest magnitude, as a power of two.
fn last_place(x: &[f32]) -> i32 {
    x.iter().map(|v| (v.abs().to_bits() >> 23).max(1)).max().unwrap_or(1) as i32 - 150
}

/// The quotient of two sums of integers, cut to multiples of 2^-8 of the largest magnitude's last place; blocks of 8192
/// are cut to their own largest first.
fn scale(bucket: &[f32]) -> f32 {
    let (top, mut sum, mut squares) = (last_place(bucket), 0u128, 0u128);
    for block in bucket.chunks(8192) {
        let own = last_place(block);
        let cut = || block.iter().map(|v| (f64::from(v.abs()) / 2f64.powi(own)).floor() as u128);
        sum += cut().sum::<u128>() >> (top - own).min(127);
        squares += cut().map(|m| m * m).sum::<u128>() >> (2 * (top - own)).min(127);
    }
    let beyond = (128 - sum.leading_zeros()).saturating_sub(31);
    let quotient = ((squares << 8) >> beyond) / (sum >> beyond).max(1);
    (f64::from(quotient as f32) * 2f64.powi(top - 8)) as f32
}

const fn case(bucket: Option<usize>) -> Case {
    Case { kind: Kind::Drive, bits: 1, levels: 1, bucket, contractive: false }
}

fn settings() -> Vec<Case> {
    (5..=13).map(|log2| Some(1 << log2)).chain([None]).map(case).collect()
}

fn timed() -> Vec<(Case, bool)> {
    vec![(case(Some(1024)), false), (case(Some(8192)), true)]
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for case in [Some(64), Some(8192), None].map(case) {
        note("the inner product with the bucket is its square", squares_over_magnitudes(device, &case, x));
        note("equal magnitudes come back exactly", equal_magnitudes(device, &case));
        note("scalars do not depend on order", properties::permutation(device, &case, x));
        note("payload within 1 % of theory", properties::size(device, &case));
    }
}

/// In each bucket x of B elements, decoded as d: S is |x|^2 / |x|_1 but for its stated rounding; so the inner product
/// <x, d> is |x|^2, and |x - d|^2 is |x|^2 (B |x|^2 / |x|_1^2 - 1), at most (B - 1) |x|^2. An S that is off by e moves
/// them by e |x|_1, and by 2 e (|x|_1 + B S) + B e^2 at most.
fn squares_over_magnitudes(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 12)?;
    let size = case.bucket.unwrap_or(x.len());
    for (bucket, (x, d)) in x.chunks(size).zip(decoded.chunks(size)).enumerate() {
        let both = || x.iter().zip(d).map(|(v, d)| (f64::from(*v), f64::from(*d)));
        let [all, sum] = [both().map(|(v, _)| v * v).sum::<f64>(), both().map(|(v, _)| v.abs()).sum()];
        let (count, found) = (x.len() as f64, f64::from(d[0].abs()));
        // What a magnitude loses: a last place of the largest, and of a whole tensor's part of its spans' sums another.
        let cut = 2f64.powi(last_place(x)) * if case.bucket.is_some() { 1.0 } else { 2.0 };
        let rounding = 6.0 * 2f64.powi(last_place(x) - 8) + found * 2f64.powi(-24) + 2f64.powi(-150);
        let wide = 1.0 + 2f64.powi(-40);
        let least = (all - 2.0 * cut * sum - count * cut * cut) / sum / wide - rounding;
        let most = all / (sum - count * cut) * wide + rounding;
        if !(least..=most).contains(&found) {
            return Err(format!("{}: bucket {bucket} has the scale {found:e}, {}", case.label(), all / sum));
        }
        let off = (found - all / sum).abs();
        let inner: f64 = both().map(|(v, d)| v * d).sum();
        if (inner - all).abs() > off * sum + all * 2f64.powi(-40) {
            return Err(format!("{}: bucket {bucket} has the inner product {inner:e}, not {all:e}", case.label()));
        }
        let lost: f64 = both().map(|(v, d)| (v - d) * (v - d)).sum();
        let stated = all * (count * all / (sum * sum) - 1.0);
        let slack = 2.0 * off * (sum + count * all / sum) + count * off * off + count * all * 2f64.powi(-40);
        if (lost - stated).abs() > slack || stated > (count - 1.0) * all * wide {
            return Err(format!("{}: bucket {bucket} loses {lost:e}, not {stated:e}", case.label()));
        }
    }
    Ok(decoded.len() as u64)
}

/// Magnitudes that are equal are the quotient of the sums, whatever signs and exponent they have.
fn equal_magnitudes(device: &Device, case: &Case) -> Outcome {
    let mut random = Random(41);
    for exponent in [1u32, 2, 40, 126, 200, 254] {
        for mantissa in [0, 1, 0x7f_ffff, random.bits() as u32 & 0x7f_ffff] {
            let magnitude = f32::from_bits((exponent - 1) << 23 | mantissa.max(1));
            let n = 1 + (random.bits() % 9000) as usize;
            let x: Vec<f32> = (0..n).map(|_| if random.bits() & 1 == 0 { magnitude } else { -magnitude }).collect();
            if decode_with(device, case, &x, 1)? != x {
                return Err(format!("{}: {n} times {magnitude:e} changes", case.label()));
            }
        }
    }
    Ok(24)
}

/// The vectors of DRIVE.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for bucket in (5..=13).map(|log2| 1 << log2) {
        specs.push(Spec::new(format!("buckets of {bucket}, one element"), case(Some(bucket)), bell(1, 30)));
    }
    for (index, n) in [0, 1, 31, 33, 257, 513].into_iter().enumerate() {
        let bucket = Some(32 << (2 * index).min(8));
        specs.push(Spec::new(format!("n = {n}, {}", bucket_name(bucket)), case(bucket), bell(n, 31)));
        specs.push(Spec::new(format!("n = {n}, whole tensor"), case(None), bell(n, 32)));
        let equal = bell(n, 33).into_iter().map(|v| 0.7f32.copysign(v)).collect();
        specs.push(Spec::new(format!("n = {n}, equal magnitudes, buckets of 64"), case(Some(64)), equal));
    }
    for (name, fill) in FILLS {
        specs.push(Spec::new(name, case(Some(32)), fill(36)).add(0.5, start(36)));
        specs.push(Spec::new(format!("{name}, whole tensor"), case(None), fill(36)));
    }
    let far_smaller = (0..8200).map(|i| if i < 8192 { -(2f32.powi(-20)) } else { -1.0 }).collect();
    specs.push(Spec::new("a whole tensor of two spans, the first far smaller", case(None), far_smaller));
    let cancelled = [1.0, -1.0, 0.0, -0.0, 2f32.powi(-149), -3.0].repeat(20);
    specs.push(Spec::new("zeros of both signs and the smallest number", case(Some(32)), cancelled));
    let x = bell(70, 62);
    let bf16s = Input::Bf16(x.iter().map(|v| bf16::from_f32(*v)).collect());
    specs.push(Spec { input: bf16s, ..Spec::new("bf16", case(Some(64)), Vec::new()) });
    let f16s = Input::F16(x.iter().map(|v| f16::from_f32(*v)).collect());
    specs.push(Spec { input: f16s, ..Spec::new("f16", case(Some(64)), Vec::new()) });
    specs
}
