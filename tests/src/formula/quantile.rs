//! Quantile buckets: a sorted bucket cut at ranks, and a mean for each quantile.

use gradwire::{CodecId, Device, Quantile};
use half::{bf16, f16};

use super::onebit::mean;
use super::{Formula, Note, Page, Quantizer, Tests};
use crate::cases::{self, Case};
use crate::conformance::Outcome;
use crate::oracle::{Encoded, Kind, Setting};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{FILLS, Input, Spec, bell, feedback, start, with};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Quantile,
    page: &PAGE,
    settings,
    stochastic: &[],
    timed,
    vectors,
    committed: include_str!("../../vectors/quantile.json"),
    theorems,
    independent: &[],
    feedback: &[case(6, 1024)],
};

const PAGE: Page = Page {
    tag: 14,
    widths: &[2, 3, 4, 5, 6, 7, 8],
    levels: &[(2, 4), (3, 8), (4, 16), (5, 32), (6, 64), (7, 128), (8, 256)],
    sign_bits: 0,
    flags: 0,
    scalars: 0,
    buckets: &[8, 9, 10, 11, 12],
    decode: page,
};

pub(super) const MEANS: Means = Means;

pub(super) struct Means;

/// The first element of each quantile of a bucket, and how many quantiles are of elements below zero. Zeros have one.
fn edges(bucket: &[f32], quantiles: usize) -> (Vec<f32>, usize) {
    let mut sorted = bucket.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("finite"));
    let (below, rest): (Vec<f32>, Vec<f32>) = sorted.into_iter().partition(|v| *v < 0.0);
    let (zeros, above): (Vec<f32>, Vec<f32>) = rest.into_iter().partition(|v| *v == 0.0);
    let middle = zeros.len().min(1);
    let shared = quantiles - middle;
    let nearest = (shared as f64 * below.len() as f64 / (below.len() + above.len()) as f64).round() as usize;
    let lower = match (below.is_empty(), above.is_empty()) {
        (_, true) => shared,
        (true, _) => 0,
        _ => nearest.clamp(1, shared - 1),
    };
    let first = |side: &[f32], of: usize| {
        // Nothing is in a quantile of elements below zero if there are none, and zeros alone.
        (0..of).map(|j| side.get(j * side.len() / of).copied().unwrap_or(0.0)).collect::<Vec<f32>>()
    };
    ([first(&below, lower), first(&zeros, middle), first(&above, shared - lower)].concat(), lower)
}

impl Formula for Means {
    fn name(&self) -> &'static str {
        "quantile"
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        [None; 2]
    }

    fn terms(&self) -> [&'static str; 2] {
        ["means", "none"]
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = Quantile::levels(case.levels);
        Quantizer::Quantile(case.bucket.map_or(c, |b| c.bucket(b)))
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

    /// A quantile may be as wide as its bucket.
    fn widest(&self, span: f64, _: u32) -> f64 {
        span
    }

    fn encode(&self, s: &Setting, bucket: &[f32], _: usize, out: &mut Encoded) {
        let quantiles = 1 << s.bits;
        let (edges, lower) = edges(bucket, quantiles);
        let mut all = vec![Vec::new(); quantiles];
        for v in bucket {
            let last = edges.iter().rposition(|edge| edge <= v).expect("the first edge is the least element");
            let code = last - usize::from(last > 0 && edges[last] == *v && edges[last - 1] == *v);
            all[code].push(*v);
            out.codes.push(code as u32);
        }
        let means = all.iter().enumerate().map(|(j, of)| {
            let magnitude = mean(of, |_| true);
            if j < lower { 0.0 - magnitude } else { magnitude }
        });
        out.scalars.extend(means);
    }

    fn value(&self, _: &Setting, scalars: &[f32], code: u32) -> f32 {
        scalars[code as usize]
    }
}

/// Section "Decoding quantile buckets" of the page.
fn page(scalars: &[f32], _: f32, code: u32, _: u8) -> f32 {
    let mean = scalars[code as usize];
    if mean.is_finite() { mean } else { f32::from_bits(0x7fc0_0000) }
}

const fn case(bits: u32, bucket: usize) -> Case {
    Case { kind: Kind::Quantile, bits, levels: 1 << bits, bucket: Some(bucket), contractive: false }
}

fn settings() -> Vec<Case> {
    let buckets = (8..=12).map(|log2| case(6, 1 << log2));
    let widths = [2, 3, 4, 5, 7, 8].map(|bits| case(bits, 1024));
    buckets.chain(widths).chain([case(8, 256), case(2, 4096)]).collect()
}

fn timed() -> Vec<(Case, bool)> {
    vec![(case(6, 4096), true), (case(4, 1024), false)]
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for case in [case(2, 256), case(6, 4096), case(8, 1024)] {
        let fills = cases::FILLS.iter().filter(|(name, _)| !name.contains('N') && !name.contains("infinity"));
        let mut inputs: Vec<Vec<f32>> = fills.map(|(_, fill)| fill(1500)).collect();
        // One quantile of all of them would have the mean zero.
        inputs.push((0..256).map(|i| if i == 100 { 255.0 } else { -1.0 }).collect());
        inputs.push(x.to_vec());
        for x in &inputs {
            note("quantiles are monotone, with means that lose least", means(device, &case, x));
        }
        note("quantiles of distinct elements are even", even(device, &case));
        note("few values are exact", exact(device, &case));
        note("scalars do not depend on order", properties::permutation(device, &case, x));
        note("payload within 1 % of theory", properties::size(device, &case));
    }
}

/// Decoding is monotone, and equal elements decode alike. What decoding does not give back adds up to zero in each
/// quantile, to the rounding of means, elements and sums; no other value of a quantile loses less; and its square is at
/// most 1 - 1/B of the bucket's.
fn means(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 12)?;
    let size = case.bucket.unwrap_or(x.len());
    let wrong = |what: String| Err(format!("{}: {what}", case.label()));
    for (bucket, (x, d)) in x.chunks(size).zip(decoded.chunks(size)).enumerate() {
        let mut pairs: Vec<(f64, f64)> = x.iter().zip(d).map(|(v, d)| (f64::from(*v), f64::from(*d))).collect();
        pairs.sort_by(|a, b| a.partial_cmp(b).expect("finite"));
        if let Some(pair) = pairs.windows(2).find(|p| p[0].1 > p[1].1 || p[0].0 == p[1].0 && p[0].1 != p[1].1) {
            return wrong(format!("bucket {bucket}: {pair:?} is not monotone"));
        }
        let square = |all: &[(f64, f64)], of: &dyn Fn(f64, f64) -> f64| {
            all.iter().map(|(v, d)| of(*v, *d) * of(*v, *d)).sum::<f64>()
        };
        for quantile in pairs.chunk_by(|a, b| a.1 == b.1) {
            let (mean, count) = (quantile[0].1, quantile.len() as f64);
            let largest = quantile.iter().fold(0.0f64, |m, (v, _)| m.max(v.abs()));
            let each = largest * 2f64.powi(-30) + mean.abs() * 2f64.powi(-24) + 2f64.powi(-149);
            let left: f64 = quantile.iter().map(|(v, d)| v - d).sum();
            if left.abs() > count * each {
                return wrong(format!("bucket {bucket} keeps {left:e} of the quantile of {mean:e}"));
            }
            let lost = square(quantile, &|v, d| v - d);
            let middle = quantile[quantile.len() / 2].0;
            let ends = (quantile[0].0 + quantile[quantile.len() - 1].0) / 2.0;
            for other in [middle, ends, quantile[0].0, mean * 1.001, mean * 0.999] {
                let others = square(quantile, &|v, _| v - other);
                if lost > others * (1.0 + 1e-12) + count * each * each {
                    return wrong(format!("bucket {bucket} loses {lost:e} by {mean:e}, and {others:e} by {other:e}"));
                }
            }
        }
        let [lost, all] = [square(&pairs, &|v, d| v - d), square(&pairs, &|v, _| v)];
        let rounding = x.len() as f64 * 2f64.powi(-298);
        if lost > (1.0 - 1.0 / x.len() as f64) * all * (1.0 + 2f64.powi(-20)) + rounding {
            return wrong(format!("bucket {bucket} loses {lost:e} of {all:e}"));
        }
    }
    Ok(decoded.len() as u64)
}

/// Of distinct elements, a quantile has at most 1.5 B/(levels - 1), rounded up, and all quantiles are used.
fn even(device: &Device, case: &Case) -> Outcome {
    let size = case.bucket.unwrap_or(4096);
    for below in [0, 1, size / 3, size / 2, size - 1, size] {
        // An odd factor permutes what is below a power of two.
        let x: Vec<f32> = (0..size).map(|i| (i * 7919 % size) as f32 - below as f32).collect();
        let mut decoded = decode_with(device, case, &x, 12)?;
        decoded.sort_by(f32::total_cmp);
        let quantiles: Vec<usize> = decoded.chunk_by(|a, b| a == b).map(<[f32]>::len).collect();
        let (used, most) = (quantiles.len(), quantiles.iter().copied().max().unwrap_or(0));
        let levels = case.levels as usize;
        if used != levels.min(size) || most > (3 * size).div_ceil(2 * (levels - 1)) {
            return Err(format!("{}, {below} below zero: {used} quantiles, of {most} at most", case.label()));
        }
    }
    Ok(6)
}

/// What a bucket has few values of is exact: as many elements as levels, and values that are there as often as two
/// quantiles may have elements. Zeros are exact however few they are.
fn exact(device: &Device, case: &Case) -> Outcome {
    let (size, levels) = (case.bucket.unwrap_or(4096), case.levels as usize);
    let times = 2 * (3 * size).div_ceil(2 * (levels - 1));
    let often = (0..size).map(|i| ((i / times) as f32 - 1.5) * 0.7).rev();
    // The last value is there less often, and takes that of the one before it.
    let often: Vec<f32> = often.map(|v| v.min(((size / times).max(1) as f32 - 2.5) * 0.7)).collect();
    let few: Vec<f32> = (0..levels.min(size)).map(|i| (i as f32 - 2.5) * 1.1).collect();
    for x in [vec![0.1; size], vec![-0.1; 7], few, often] {
        let decoded = decode_with(device, case, &x, 12)?;
        if let Some(at) = (0..x.len()).find(|at| x[*at] != decoded[*at]) {
            return Err(format!("{}: {:e} becomes {:e}", case.label(), x[at], decoded[at]));
        }
    }
    let bell = |i: usize| (i * 7919 % size) as f32 / size as f32 - 0.3;
    for every in [2, 7, 100, size] {
        // Zeros at some places, at all but some, and one value at all but some.
        let few: Vec<f32> = (0..size).map(|i| if i % every == 0 { 0.0 } else { bell(i) }).collect();
        let most: Vec<f32> = (0..size).map(|i| if i % every == 0 { bell(i) } else { 0.0 }).collect();
        let other: Vec<f32> = (0..size).map(|i| if i % every == 0 { bell(i) } else { 0.5 }).collect();
        for (x, frequent) in [(few, 0.0), (most, 0.0), (other, 0.5)] {
            if frequent != 0.0 && x.iter().filter(|v| **v == frequent).count() < times {
                continue;
            }
            let decoded = decode_with(device, case, &x, 12)?;
            if let Some(at) = (0..x.len()).find(|at| (x[*at] == frequent) != (decoded[*at] == frequent)) {
                return Err(format!("{}, every {every}: {:e} becomes {:e}", case.label(), x[at], decoded[at]));
            }
        }
    }
    Ok(16)
}

/// The vectors of quantile buckets.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for bucket in (8..=12).map(|log2| 1 << log2) {
        let one = Spec::new(format!("buckets of {bucket}, one element"), case(2, bucket), bell(1, 30));
        specs.push(one.add(0.25, start(1)));
    }
    for n in [0, 1, 3, 4, 5, 255, 257, 513] {
        specs.push(Spec::new(format!("n = {n}, buckets of 256"), case(2, 256), bell(n, 31)).add(-0.3, start(n)));
    }
    for bits in 2..=8 {
        specs.push(Spec::new(format!("{bits} bits"), case(bits, 256), bell(300, 32)).add(-0.3, start(300)));
    }
    specs.push(Spec::new("64 levels in buckets of 512", case(6, 512), bell(700, 33)).add(-0.3, start(700)));
    for (name, fill) in FILLS {
        specs.push(Spec::new(name, case(2, 256), fill(36)).add(0.5, start(36)));
    }
    let mostly = (0..256).map(|i| if i == 77 { 1.0 } else { 0.0 }).collect();
    specs.push(Spec::new("zeros and a one", case(4, 256), mostly).add(1.0, start(256)));
    let frequent = (0..200).map(|i| if i % 3 == 0 { i as f32 - 90.0 } else { -7.5 }).collect();
    specs.push(Spec::new("a frequent value", case(3, 256), frequent).add(1.0, start(200)));
    specs.push(Spec::new("zeros alone", case(2, 256), vec![0.0; 9]).add(1.0, start(9)));
    let ties = (0..300).map(|i| (i % 7) as f32 - 2.0).collect();
    specs.push(Spec::new("ties", case(3, 256), ties).add(2.0, start(300)));
    let zeros = (0..90).map(|i| [-1.0, -0.0, 0.0, 0.5][i % 4] * (i / 8) as f32).collect();
    specs.push(Spec::new("zeros of both signs between others", case(3, 256), zeros).add(2.0, start(90)));
    let above = (0..70).map(|i| i as f32).collect();
    specs.push(Spec::new("one element below zero", case(2, 256), with(above, 5, -1.0)).add(1.0, start(70)));
    let below = (0..70).map(|i| -1.0 - i as f32).collect();
    specs.push(Spec::new("one element above zero", case(2, 256), with(below, 5, 1.0)).add(1.0, start(70)));
    specs.push(Spec::new("all but one alike", case(2, 256), with(vec![-1.0; 100], 7, 99.0)).add(1.0, start(100)));
    let half: Vec<f32> = (0..6).map(|i| if i < 3 { i as f32 - 3.0 } else { i as f32 }).collect();
    specs.push(Spec::new("quantiles in proportion, to nearest", case(3, 256), [half, vec![9.0; 6]].concat()));
    feedback(&mut specs, "buckets of 256", case(2, 256));
    let x = bell(70, 62);
    let bf16s = Input::Bf16(x.iter().map(|v| bf16::from_f32(*v)).collect());
    let spec = Spec::new("bf16 with feedback", case(4, 256), Vec::new()).feedback(bell(70, 63));
    specs.push(Spec { input: bf16s, ..spec });
    let f16s = Input::F16(x.iter().map(|v| f16::from_f32(*v)).collect());
    specs.push(Spec { input: f16s, ..Spec::new("f16", case(2, 256), Vec::new()) });
    specs
}
