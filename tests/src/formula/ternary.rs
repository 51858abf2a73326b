//! Ternary codes: minus a scale, zero, or the scale.

use gradwire::wire::HEADER_BYTES;
use gradwire::{CodecId, Device, Payload, Ternary};

use super::qsgd::root;
use super::{BUCKETS, Quantizer, Formula, Note, Page, Tests};
use crate::cases::{self, Case};
use crate::conformance::Outcome;
use crate::oracle::{self, Encoded, Kind, Setting, scale_of};
use crate::properties::{self, decode_with};
use crate::vectors::spec::{FILLS, Spec, bell, bucket_name, feedback, halves, halves_with_feedback, shapes, start, workers};

pub(super) const TESTS: Tests = Tests {
    codec: CodecId::Ternary,
    page: &PAGE,
    settings,
    stochastic: &[case(Kind::Ternary, Some(512)), case(Kind::Ternary, Some(64)), case(Kind::Ternary, None)],
    timed,
    vectors,
    committed: include_str!("../../vectors/ternary.json"),
    theorems,
    independent: &[case(Kind::Ternary, Some(512))],
    feedback: &[case(Kind::TernaryNearest, Some(64)), case(Kind::TernaryNearest, None)],
};

const PAGE: Page =
    Page { tag: 7, widths: &[2], levels: &[], sign_bits: 1, flags: 2, scalars: 1, buckets: BUCKETS, decode: page };

/// Unbiased; with a scale of 2.5 standard deviations at most; and to nearest, with a scale of 1.25 largest magnitudes.
pub(super) const STOCHASTIC: Scale = Scale::Largest;
pub(super) const CLIPPED: Scale = Scale::Clipped;
pub(super) const NEAREST: Scale = Scale::Stretched;

const CLIP: f32 = 2.5;
const STRETCH: f32 = 1.25;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scale {
    Largest,
    Clipped,
    Stretched,
}

impl Scale {
    fn of(self, bucket: &[f32]) -> f32 {
        let largest = bucket.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        match self {
            Self::Largest => largest,
            Self::Stretched => (largest * STRETCH).min(f32::MAX),
            Self::Clipped => {
                let (root, exponent) = root(bucket);
                let elements = ((bucket.len() as u128) << 30).isqrt() as f32;
                let deviations = f64::from(root / elements * CLIP) * 2f64.powi(exponent + 15);
                largest.min(deviations.min(f64::from(f32::MAX)) as f32)
            }
        }
    }
}

impl Formula for Scale {
    fn name(&self) -> &'static str {
        match self {
            Self::Largest => "ternary",
            Self::Clipped => "ternary clipped",
            Self::Stretched => "ternary nearest",
        }
    }

    fn words(&self) -> [Option<&'static str>; 2] {
        match self {
            Self::Largest => [Some("max"), Some("stochastic")],
            Self::Clipped => [Some("clip=2.5"), Some("stochastic")],
            Self::Stretched => [Some("stretch=1.25"), Some("nearest")],
        }
    }

    fn terms(&self) -> [&'static str; 2] {
        match self {
            Self::Largest => ["max", "stochastic"],
            Self::Clipped => ["deviations", "stochastic"],
            Self::Stretched => ["stretched max", "nearest"],
        }
    }

    fn product(&self, case: &Case) -> Quantizer {
        let c = match self {
            Self::Largest => Ternary::new(),
            Self::Clipped => Ternary::new().clipped(CLIP.into()),
            Self::Stretched => Ternary::nearest(STRETCH.into()).without_feedback(),
        };
        let c = if let Some(b) = case.bucket { c.bucket(b) } else { c.whole_tensor() };
        Quantizer::Ternary(if case.contractive { c.contractive() } else { c })
    }

    fn page(&self) -> &'static Page {
        &PAGE
    }

    fn is_nearest(&self) -> bool {
        *self == Self::Stretched
    }

    fn omega(&self, b: f64, _: f64) -> f64 {
        match self {
            Self::Largest => (b / 4.0).min(b.sqrt() / 2.0),
            Self::Clipped => f64::INFINITY,
            Self::Stretched => 1.0 - f64::from(STRETCH) * (2.0 - f64::from(STRETCH)) / b,
        }
    }

    fn delta(&self, omega: f64) -> f64 {
        if *self == Self::Stretched { 1.0 - omega } else { 1.0 / (1.0 + omega) }
    }

    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>) {
        let largest = bucket.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        (if self.is_nearest() { f64::from(STRETCH) * largest } else { largest }, None)
    }

    fn encode(&self, s: &Setting, bucket: &[f32], first: usize, out: &mut Encoded) {
        let scale = self.of(bucket);
        let lift = scale_of(scale, false);
        let inverse = if scale > 0.0 { 2f32.powi(30) / (scale * lift) } else { 0.0 };
        out.scalars.push(scale * s.beta);
        for (i, v) in bucket.iter().enumerate() {
            let level = oracle::level(s, v.abs().min(scale) * lift * inverse, first + i);
            out.codes.push(level | if v.is_sign_negative() { 2 } else { 0 });
        }
    }

    fn value(&self, _: &Setting, scalars: &[f32], code: u32) -> f32 {
        match code {
            _ if scalars[0].is_nan() => scalars[0],
            0 => 0.0,
            1 => scalars[0],
            2 => -0.0,
            _ => -scalars[0],
        }
    }
}

/// Section "Decoding ternary codes" of the page.
fn page(scalars: &[f32], _: f32, code: u32, _: u8) -> f32 {
    let scale = scalars[0];
    if scale.is_sign_negative() || !scale.is_finite() {
        return f32::from_bits(0x7fc0_0000);
    }
    let magnitude = if code & 1 == 1 { scale } else { 0.0 };
    if code & 2 == 2 { -magnitude } else { magnitude }
}

const fn case(kind: Kind, bucket: Option<usize>) -> Case {
    Case { kind, bits: 2, levels: 1, bucket, contractive: false }
}

fn settings() -> Vec<Case> {
    let buckets = || (5..=13).map(|log2| Some(1 << log2)).chain([None]);
    let kinds = [Kind::Ternary, Kind::TernaryClipped, Kind::TernaryNearest];
    let mut cases: Vec<Case> = kinds.into_iter().flat_map(|kind| buckets().map(move |bucket| case(kind, bucket))).collect();
    cases.extend([Some(64), None].map(|bucket| Case { contractive: true, ..case(Kind::Ternary, bucket) }));
    cases
}

fn timed() -> Vec<(Case, bool)> {
    vec![
        (case(Kind::Ternary, Some(512)), true),
        (case(Kind::Ternary, None), false),
        (case(Kind::TernaryClipped, Some(8192)), false),
        (case(Kind::TernaryNearest, Some(512)), false),
    ]
}

fn theorems(device: &Device, x: &[f32], note: &mut Note<'_>) {
    for bucket in [Some(64), Some(8192), None] {
        let nearest = case(Kind::TernaryNearest, bucket);
        note("the error is at most the contraction's", contracts(device, &nearest, x));
        note("magnitudes of half of the scale become the scale", halves_become_the_scale(device, &nearest, x));
        note("scalars do not depend on order", properties::permutation(device, &nearest, x));
        let clipped = case(Kind::TernaryClipped, bucket);
        note("what is clipped is unbiased for the clipped gradient", clipped_is_unbiased(device, &clipped, x));
        note("the scale is at most so many deviations", deviations(device, &clipped, x));
        note("payload within 1 % of theory", properties::size(device, &clipped));
    }
}

/// In each bucket of B elements, |x - d|^2 is at most (1 - s (2 - s)/B) |x|^2, for a stretch of s.
fn contracts(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 5)?;
    let size = case.bucket.unwrap_or(x.len());
    for (bucket, (x, d)) in x.chunks(size).zip(decoded.chunks(size)).enumerate() {
        let pairs = || x.iter().zip(d).map(|(v, d)| (f64::from(*v), f64::from(*d)));
        let [lost, all] = [pairs().map(|(v, d)| (v - d).powi(2)).sum(), pairs().map(|(v, _)| v * v).sum::<f64>()];
        // The scale is rounded once, to binary32.
        if lost > case.omega(x.len()) * all + 2.0 * all * 2f64.powi(-22) {
            return Err(format!("{}: bucket {bucket} loses {lost:e} of {all:e}", case.label()));
        }
    }
    Ok(decoded.len() as u64)
}

/// An element is the scale, with its sign, if and only if it is at least half of it.
fn halves_become_the_scale(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 6)?;
    let size = case.bucket.unwrap_or(x.len());
    for (x, d) in x.chunks(size).zip(decoded.chunks(size)) {
        let scale = f64::from(x.iter().fold(0.0f32, |m, v| m.max(v.abs())) * STRETCH);
        for (v, d) in x.iter().zip(d) {
            let place = f64::from(v.abs()) / scale;
            let expected = if place >= 0.5 { scale.copysign((*v).into()) } else { 0.0 };
            // A place is rounded twice before it is compared with a half.
            if f64::from(*d) != expected && (place - 0.5).abs() > 2f64.powi(-22) {
                return Err(format!("{}: {v:e} becomes {d:e}, and the scale is {scale:e}", case.label()));
            }
        }
    }
    Ok(decoded.len() as u64)
}

/// The scalars of a payload of so many buckets.
fn scales_of(payload: &Payload, buckets: usize) -> Vec<f64> {
    let words = payload.as_bytes()[HEADER_BYTES..][..4 * buckets].chunks_exact(4);
    words.map(|word| f32::from_le_bytes(word.try_into().expect("four bytes")).into()).collect()
}

/// The mean of what is decoded is the gradient with its magnitudes cut at the scale: Hoeffding for each element, with a
/// false alarm once in 10^9 runs of this test.
fn clipped_is_unbiased(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let runs = 200;
    let size = case.bucket.unwrap_or(x.len());
    let mut sums = vec![0.0f64; x.len()];
    let mut scales = Vec::new();
    for run in 0..runs {
        let payload = device.encode(&case.codec(), x, gradwire::Seed::new(run)).map_err(|e| e.to_string())?;
        let decoded = device.decode(&payload).map_err(|e| e.to_string())?;
        sums.iter_mut().zip(&decoded).for_each(|(sum, d)| *sum += f64::from(*d));
        scales = scales_of(&payload, x.len().div_ceil(size));
    }
    let reach = ((2.0 * x.len() as f64 * 1e9).ln() / (2.0 * runs as f64)).sqrt() + 2f64.powi(-16);
    for (i, sum) in sums.iter().enumerate() {
        let scale = scales[i / size];
        let clipped = f64::from(x[i].abs()).min(scale).copysign(x[i].into());
        if (sum / runs as f64 - clipped).abs() > reach * scale {
            return Err(format!("{}: element {i} is {} in the mean, and {clipped} clipped", case.label(), sum / runs as f64));
        }
    }
    Ok(runs)
}

/// Scales are 2.5 times the root of the mean square, held to 2^-17, and never above the largest magnitude. Equal
/// elements keep their value.
fn deviations(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let heavy: Vec<f32> = x.iter().map(|v| v * v * v).collect();
    for x in [x, &heavy] {
        let payload = device.encode(&case.codec(), x, cases::seed()).map_err(|e| e.to_string())?;
        let size = case.bucket.unwrap_or(x.len());
        let scales = scales_of(&payload, x.len().div_ceil(size));
        for (b, bucket) in x.chunks(size).enumerate() {
            let squares: f64 = bucket.iter().map(|v| f64::from(*v).powi(2)).sum();
            let largest = bucket.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
            let scale = scales[b];
            let expected = (2.5 * (squares / bucket.len() as f64).sqrt()).min(largest);
            if (scale / expected - 1.0).abs() > 2f64.powi(-17) {
                return Err(format!("{}: bucket {b} has the scale {scale:e}, and {expected:e} is right", case.label()));
            }
        }
    }
    let equal = vec![-0.3f32; 5000];
    let decoded = decode_with(device, case, &equal, 1)?;
    if decoded != equal {
        return Err(format!("{}: equal elements change", case.label()));
    }
    Ok(x.len() as u64)
}

/// The vectors of ternary codes.
fn vectors() -> Vec<Spec> {
    let mut specs = Vec::new();
    for (kind, name) in [(Kind::Ternary, "max"), (Kind::TernaryClipped, "clipped"), (Kind::TernaryNearest, "nearest")] {
        for bucket in [Some(32), Some(256), None] {
            specs.push(Spec::new(format!("{name}, {}", bucket_name(bucket)), case(kind, bucket), bell(65, 10)));
        }
        for (fill, make) in FILLS {
            specs.push(Spec::new(format!("{fill}, {name}"), case(kind, Some(32)), make(36)).add(0.5, start(36)));
        }
        specs.push(Spec::new(format!("one element, {name}"), case(kind, Some(64)), bell(1, 3)));
        let far_smaller = (0..8193).map(|i| if i < 8192 { 2f32.powi(-9) } else { -1.0 }).collect();
        specs.push(Spec::new(format!("two spans, the first far smaller, {name}"), case(kind, None), far_smaller));
    }
    let heavy = |n: usize| bell(n, 19).into_iter().map(|v| v * v * v * 1e20).collect::<Vec<_>>();
    for bucket in [Some(64), Some(512), None] {
        specs.push(Spec::new(format!("heavy tails, {}", bucket_name(bucket)), case(Kind::TernaryClipped, bucket), heavy(520)));
    }
    shapes(&mut specs, Kind::Ternary, Kind::TernaryNearest);
    for bucket in [Some(32), Some(256), None] {
        let case = Case { contractive: true, ..case(Kind::Ternary, bucket) };
        specs.push(Spec::new(format!("contractive, {}", bucket_name(bucket)), case, bell(35, 14)));
    }
    halves(&mut specs, Kind::Ternary, Kind::TernaryNearest);
    feedback(&mut specs, "nearest", case(Kind::TernaryNearest, Some(32)));
    feedback(&mut specs, "contractive, whole tensor", Case { contractive: true, ..case(Kind::Ternary, None) });
    workers(&mut specs, Kind::Ternary, Kind::Ternary);
    halves_with_feedback(&mut specs, Kind::Ternary, Kind::TernaryNearest);
    specs
}
