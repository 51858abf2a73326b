//! EDEN: the centroids of a normal distribution, with the scale |x|_2^2 / <x, c> of a bucket.

use gradwire::{CodecId, Device, Eden};
use half::{bf16, f16};

use super::{Formula, Note, Page, Quantizer, Tests};
use crate::cases::{Case, Random};
use crate::conformance::Outcome;
use crate::oracle::{Encoded, Kind, Setting};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{FILLS, Input, Spec, bell, start};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Eden,
    page: &PAGE,
    settings,
    stochastic: &[],
    timed,
    vectors,
    committed: include_str!("../../vectors/eden.json"),
    theorems,
    independent: &[],
    feedback: &[],
};

const PAGE: Page = Page {
    tag: 11,
    widths: &[1, 2, 3, 4],
    levels: &[(1, 1), (2, 3), (3, 7), (4, 15)],
    sign_bits: 0,
    flags: 0,
    scalars: 1,
    buckets: &[5, 6, 7, 8, 9, 10, 11, 12, 13],
    decode: page,
};

pub(super) const CENTROIDS: Centroids = Centroids;

pub(super) struct Centroids;

/// The centroids above zero of a width, in units of 2^-13.
fn centroids(bits: u32) -> &'static [u32] {
    match bits {
        1 => &[6536],
        2 => &[3709, 12373],
        3 => &[2008, 6193, 11009, 17629],
        _ => &[1052, 3179, 5380, 7720, 10291, 13255, 16949, 22385],
    }
}

/// Where one centroid ends and the next begins, in units of 2^-18.
fn midpoints(bits: u32) -> &'static [u32] {
    match bits {
        1 => &[],
        2 => &[257320],
        3 => &[131216, 275240, 458209],
        _ => &[67691, 136945, 209597, 288171, 376737, 483271, 629356],
    }
}

impl Formula for Centroids {
    fn name(&self) -> &'static str {
        "EDEN"
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [None, None]
    }

    fn terms(&self) -> [&'static str; 2] {
        ["squares over products with centroids", "nearest"]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = Eden::bits(case.bits);
        Quantizer::Eden(if let Some(b) = case.bucket { c.bucket(b) } else { c })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    /// No variance, but a bound on the error that is possible.
    fn omega(&self, b: f64, levels: f64) -> f64 {
        let of_width = centroids((levels + 1.0).log2() as u32);
        let (low, high) = (f64::from(of_width[0]), f64::from(of_width[of_width.len() - 1]));
        (b * (low + high).powi(2) / (4.0 * low * high) - 1.0).max(1.0)
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        let largest = bucket.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        (2.0 * largest, Some(-largest))
    }

    /// What lies above the highest centroid may be far from it: an element is off by less than twice the largest.
    fn widest(&self, span: f64, _: u32) -> f64 {
        span
    }

    fn encode(&self, s: &Setting, bucket: &[f32], _: usize, out: &mut Encoded) {
        let (half, last) = (1u32 << (s.bits - 1), last_place(bucket));
        let cut: Vec<u128> = bucket.iter().map(|v| (f64::from(v.abs()) / 2f64.powi(last)).floor() as u128).collect();
        let squares: u128 = cut.iter().map(|m| m * m).sum();
        // All of it in binary32, but for the roots, which are cut to integers.
        let root = squares.isqrt().max(1) as f32;
        let exact = ((bucket.len() as u128) << 36).isqrt() as f32 / root;
        let inverse = f32::from_bits(exact.to_bits() & !31);
        let level = |m: u128| midpoints(s.bits).iter().filter(|at| m as f32 * inverse >= **at as f32).count();
        let levels: Vec<usize> = cut.iter().map(|m| level(*m)).collect();
        let products: u128 = cut.iter().zip(&levels).map(|(m, k)| m * u128::from(centroids(s.bits)[*k])).sum();
        let beyond = (128 - products.leading_zeros()).saturating_sub(31);
        let quotient = ((squares << 19) >> beyond) / (products >> beyond).max(1);
        out.scalars.push(((f64::from(quotient as f32) * 2f64.powi(last - 6)) as f32).min(f32::MAX));
        let codes = bucket.iter().zip(levels).map(|(v, k)| (*v >= 0.0, k as u32));
        out.codes.extend(codes.map(|(above, k)| if above { half + k } else { half - 1 - k }));
    }

    fn value(&self, s: &Setting, scalars: &[f32], code: u32) -> f32 {
        page(scalars, s.levels as f32, code, s.bits as u8)
    }
}

/// The last place of the binade of the largest magnitude, as a power of two.
fn last_place(x: &[f32]) -> i32 {
    x.iter().map(|v| (v.abs().to_bits() >> 23).max(1)).max().unwrap_or(1) as i32 - 150
}

/// Decodes a code as `docs/wire.md` says it.
fn page(scalars: &[f32], _: f32, code: u32, bits: u8) -> f32 {
    let scale = scalars[0];
    if scale.is_sign_negative() || !scale.is_finite() {
        return f32::from_bits(0x7fc0_0000);
    }
    let half = 1 << (bits - 1);
    let level = if code >= half { code - half } else { half - 1 - code };
    let centroid = f64::from(centroids(bits.into())[level as usize]) / 8192.0;
    let magnitude = ((f64::from(scale) * centroid) as f32).min(f32::MAX);
    if code >= half { magnitude } else { -magnitude }
}

const fn case(bits: u32, bucket: usize) -> Case {
    Case { kind: Kind::Eden, bits, levels: (1 << bits) - 1, bucket: Some(bucket), contractive: false }
}

fn settings() -> Vec<Case> {
    let mut cases: Vec<Case> = (1..=4).flat_map(|bits| [64, 1024, 8192].map(|bucket| case(bits, bucket))).collect();
    cases.extend([32, 128, 256, 512, 2048, 4096].map(|bucket| case(4, bucket)));
    cases.extend([32, 128].map(|bucket| case(3, bucket)));
    cases
}

fn timed() -> Vec<(Case, bool)> {
    vec![(case(1, 8192), false), (case(2, 8192), false), (case(4, 1024), false), (case(4, 8192), true)]
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for case in [case(1, 64), case(2, 1024), case(3, 8192), case(4, 8192), case(4, 64)] {
        note("the inner product with the bucket is its square", squares_over_products(device, &case, x));
        note("elements have the nearest centroid", nearest_centroids(device, &case));
        note("scalars do not depend on order", properties::permutation(device, &case, x));
        note("payload within 1 % of theory", properties::size(device, &case));
    }
    note("a normal distribution loses what Lloyd and Max have", loss_of_normal_elements(device));
    note("one bit has the codes of DRIVE, and nearly its values", as_drive(device, x));
}

/// In each bucket x of B elements, decoded as d: the inner product <x, d> is |x|^2 but for the rounding of S, and
/// |x - d|^2 is |d|^2 - |x|^2, which is at most the stated bound. Where S is off by e, <x, d> is by e <x, c>, and c is 2.74
/// at most. A decoded value is rounded too.
fn squares_over_products(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 12)?;
    let size = case.bucket.unwrap_or(x.len());
    for (bucket, (x, d)) in x.chunks(size).zip(decoded.chunks(size)).enumerate() {
        let both = || x.iter().zip(d).map(|(v, d)| (f64::from(*v), f64::from(*d)));
        let sum = |of: &dyn Fn(f64, f64) -> f64| both().map(|(v, d)| of(v, d)).sum::<f64>();
        let (all, inner) = (sum(&|v, _| v * v), sum(&|v, d| v * d));
        let (count, one) = (x.len() as f64, sum(&|v, _| v.abs()));
        let largest = d.iter().fold(0.0f64, |m, d| m.max(f64::from(d.abs())));
        // Of both sums a magnitude loses less than a last place of the largest; of S, 2^-6 of that, 2^-30 by what is
        // cut off both sums, and its rounding; of d, its own.
        let place = 2f64.powi(last_place(x));
        let slack = place * (2.0 * one + count * largest) + place / 64.0 * 2.74 * one + inner * 2f64.powi(-22);
        if (inner - all).abs() > slack + count * 2f64.powi(-149) * largest.max(1e-30) {
            return Err(format!("{}: bucket {bucket} has the inner product {inner:e}, not {all:e}", case.label()));
        }
        let lost = sum(&|v, d| (v - d) * (v - d));
        let stated = case.omega(x.len()) * all;
        if lost > stated + 2.0 * slack + all * 2f64.powi(-20) {
            return Err(format!("{}: bucket {bucket} loses {lost:e}, and {stated:e} are stated", case.label()));
        }
    }
    Ok(decoded.len() as u64)
}

/// Of elements with the centroids that Lloyd's method comes to, by integrals of its own: each has the nearest,
/// unless it is within 2^-15 of a midpoint.
fn nearest_centroids(device: &Device, case: &Case) -> Outcome {
    let (found, _) = lloyd(case.bits);
    let mut random = Random(53);
    let x: Vec<f32> = (0..3 * 8192 + 77).map(|_| random.normal() as f32).collect();
    let decoded = decode_with(device, case, &x, 3)?;
    let size = case.bucket.unwrap_or(x.len());
    for (bucket, (x, d)) in x.chunks(size).zip(decoded.chunks(size)).enumerate() {
        let deviation = (x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64).sqrt();
        // S is the ratio of the elements that are there, so values are told by their order.
        let mut values: Vec<f32> = d.iter().map(|d| d.abs()).collect();
        values.sort_by(f32::total_cmp);
        values.dedup();
        let products: f64 = x.iter().zip(d).map(|(v, d)| f64::from(v.abs()) * f64::from(d.abs())).sum::<f64>();
        let squares: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
        let nearest = |z: f64| (0..found.len()).min_by(|i, j| (found[*i] - z).abs().total_cmp(&(found[*j] - z).abs()));
        for (v, d) in x.iter().zip(d) {
            let z = f64::from(v.abs()) / deviation;
            let near_midpoint = found.windows(2).any(|pair| ((pair[0] + pair[1]) / 2.0 - z).abs() < z * 2f64.powi(-15));
            let index = nearest(z).unwrap_or(0);
            // Two values are as far apart as their centroids are.
            let expected = found[index] * f64::from(values[values.len() - 1]) / top_of(&found, x, deviation);
            let off = (f64::from(d.abs()) - expected).abs();
            if !near_midpoint && (off > expected * 1e-3 || (*v < 0.0) != (*d < 0.0)) {
                return Err(format!("{}: bucket {bucket}: {v:e} is {d:e}, not {expected:e}", case.label()));
            }
        }
        if (products - squares).abs() > squares * 2f64.powi(-12) {
            return Err(format!("{}: bucket {bucket} has {products:e} for {squares:e}", case.label()));
        }
    }
    Ok(decoded.len() as u64)
}

/// The centroid of the largest element.
fn top_of(found: &[f64], x: &[f32], deviation: f64) -> f64 {
    let z = x.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs()))) / deviation;
    let distance = |c: &&f64| (**c - z).abs();
    found.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).copied().unwrap_or(1.0)
}

/// The centroids above zero of so many bits, and what they lose of the variance: the fixed point of Lloyd's method on
/// the normal distribution, by sums of 2^12 parts of each interval up to 9 deviations (the midpoint rule).
fn lloyd(bits: u32) -> (Vec<f64>, f64) {
    let count = 1usize << (bits - 1);
    let mut found: Vec<f64> = (0..count).map(|k| (k as f64 + 0.5) * 3.0 / count as f64).collect();
    let moments = |from: f64, to: f64| {
        let parts = 1 << 12;
        let step = (to - from) / f64::from(parts);
        (0..parts).fold([0.0; 3], |m, k| {
            let z = from + (f64::from(k) + 0.5) * step;
            let weight = (-z * z / 2.0).exp() * step * (2.0 / std::f64::consts::PI).sqrt();
            [m[0] + weight, m[1] + weight * z, m[2] + weight * z * z]
        })
    };
    let edges = |found: &[f64]| {
        let inner = found.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        [0.0].into_iter().chain(inner).chain([9.0]).collect::<Vec<f64>>()
    };
    loop {
        let of: Vec<[f64; 3]> = edges(&found).windows(2).map(|edge| moments(edge[0], edge[1])).collect();
        let next: Vec<f64> = of.iter().map(|m| m[1] / m[0]).collect();
        let moved = found.iter().zip(&next).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
        found = next;
        if moved < 1e-10 {
            let lost = of.iter().zip(&found).map(|(m, c)| m[2] - 2.0 * c * m[1] + c * c * m[0]).sum();
            return (found, lost);
        }
    }
}

/// Of 2^18 normal elements, |x - d|^2 is D / (1 - D) of |x|^2. Of so many elements the part has a deviation below 0.7 %
/// of itself, which is stated six times over: a false alarm has a probability below 1e-8.
fn loss_of_normal_elements(device: &Device) -> Outcome {
    let mut random = Random(61);
    let x: Vec<f32> = (0..1 << 18).map(|_| random.normal() as f32).collect();
    for bits in 1..=4 {
        let (_, lost) = lloyd(bits);
        let decoded = decode_with(device, &case(bits, 8192), &x, 5)?;
        let both = || x.iter().zip(&decoded).map(|(v, d)| (f64::from(*v), f64::from(*d)));
        let part = both().map(|(v, d)| (v - d).powi(2)).sum::<f64>() / both().map(|(v, _)| v * v).sum::<f64>();
        let expected = lost / (1.0 - lost);
        if (part - expected).abs() > 0.04 * expected {
            return Err(format!("{bits} bits lose {part}, not {expected}"));
        }
    }
    Ok(4 << 18)
}

/// One bit has the codes of DRIVE, and its values but for the rounding of a centroid, a scale and a value.
fn as_drive(device: &Device, x: &[f32]) -> Outcome {
    let drive = Case { kind: Kind::Drive, ..case(1, 1024) };
    let (ours, theirs) = (decode_with(device, &case(1, 1024), x, 1)?, decode_with(device, &drive, x, 1)?);
    for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        let off = (f64::from(*a) - f64::from(*b)).abs();
        if a.is_sign_negative() != b.is_sign_negative() || off > f64::from(b.abs()) * 2f64.powi(-12) + 2f64.powi(-140) {
            return Err(format!("element {i} is {a:e}, and {b:e} of DRIVE"));
        }
    }
    Ok(ours.len() as u64)
}

/// The vectors of EDEN.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for bucket in (5..=13).map(|log2| 1 << log2) {
        specs.push(Spec::new(format!("buckets of {bucket}, one element"), case(4, bucket), bell(1, 30)));
    }
    for bits in 1..=4 {
        for (index, n) in [0, 1, 31, 33, 257, 513].into_iter().enumerate() {
            let bucket = 32 << (2 * index).min(8);
            specs.push(Spec::new(format!("n = {n}, {bits} bits, buckets of {bucket}"), case(bits, bucket), bell(n, 31)));
        }
        let equal = bell(70, 33).into_iter().map(|v| 0.7f32.copysign(v)).collect();
        specs.push(Spec::new(format!("equal magnitudes, {bits} bits"), case(bits, 64), equal));
    }
    for (name, fill) in FILLS {
        specs.push(Spec::new(name, case(3, 32), fill(36)).add(0.5, start(36)));
        specs.push(Spec::new(format!("{name}, 4 bits"), case(4, 64), fill(70)));
    }
    let cancelled = [1.0, -1.0, 0.0, -0.0, 2f32.powi(-149), -3.0].repeat(20);
    specs.push(Spec::new("zeros of both signs and the smallest number", case(2, 32), cancelled));
    let mut alone = vec![0.0; 40];
    alone[7] = f32::MAX;
    specs.push(Spec::new("the largest number alone", case(4, 64), alone));
    specs.push(Spec::new("the largest number alone in its kind", case(4, 32), vec![f32::MAX; 40]));
    let x = bell(70, 62);
    let bf16s = Input::Bf16(x.iter().map(|v| bf16::from_f32(*v)).collect());
    specs.push(Spec { input: bf16s, ..Spec::new("bf16", case(4, 64), Vec::new()) });
    let f16s = Input::F16(x.iter().map(|v| f16::from_f32(*v)).collect());
    specs.push(Spec { input: f16s, ..Spec::new("f16", case(2, 64), Vec::new()) });
    specs
}
