//! What the vectors of several codecs have in common: inputs, and lists of shapes. Which vectors a codec has is in its
//! file of `formula/`. They never change, because version 1 does not; new ones may be added, under names of their own,
//! anywhere but in front: a name chooses the draws.

use half::{bf16, f16};

use crate::cases::{Case, Random};
use crate::oracle::Kind;

/// What is encoded.
pub(crate) enum Input {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

/// A vector before the oracle answered.
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) case: Case,
    pub(crate) input: Input,
    /// The residual before, with error feedback.
    pub(crate) residual: Option<Vec<f32>>,
    /// Weight and start of a decode-add.
    pub(crate) add: Option<(f32, Vec<f32>)>,
    /// The worker of the seed.
    pub(crate) worker: u32,
}

impl Spec {
    pub(crate) fn new(name: impl Into<String>, case: Case, x: Vec<f32>) -> Self {
        Self { name: name.into(), case, input: Input::F32(x), residual: None, add: None, worker: 0 }
    }

    pub(crate) fn add(self, weight: f32, start: Vec<f32>) -> Self {
        Self { add: Some((weight, start)), ..self }
    }

    pub(crate) fn worker(self, worker: u32) -> Self {
        Self { worker, ..self }
    }

    pub(crate) fn feedback(self, residual: Vec<f32>) -> Self {
        Self { residual: Some(residual), ..self }
    }
}

/// Values like a gradient's: sums of four 16-bit draws, exact in f32, so that no mathematical library has a say.
pub(crate) fn bell(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut value = || {
        let bits = random.bits();
        (0..4).map(|k| (bits >> (16 * k) & 0xffff) as i32).sum::<i32>() - 2 * 0xffff
    };
    (0..n).map(|_| value() as f32 * 2f32.powi(-21)).collect()
}

pub(crate) fn with(mut x: Vec<f32>, at: usize, value: f32) -> Vec<f32> {
    x[at] = value;
    x
}

type Fill = (&'static str, fn(usize) -> Vec<f32>);

/// What a formula could get wrong, at any length above 3.
pub(crate) const FILLS: [Fill; 16] = [
    ("all zero", |n| vec![0.0; n]),
    ("negative zero", |n| vec![-0.0; n]),
    ("zeros of both signs", |n| (0..n).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect()),
    ("subnormal", |n| (0..n as u32).map(|i| f32::from_bits((i * 977) | ((i & 1) << 31))).collect()),
    ("smallest subnormal", |n| (0..n).map(|i| if i % 7 == 0 { f32::from_bits(1) } else { 0.0 }).collect()),
    ("one-hot", |n| with(vec![0.0; n], n / 2, -3.5)),
    ("constant", |n| vec![0.1; n]),
    ("plus and minus the largest", |n| (0..n).map(|i| if i % 2 == 0 { f32::MAX } else { f32::MIN }).collect()),
    ("largest beside smallest", |n| (0..n).map(|i| if i % 3 == 0 { f32::MAX } else { f32::from_bits(1) }).collect()),
    ("every exponent", |n| {
        let mut random = Random(2);
        (0..n).map(|_| f32::from_bits(random.bits() as u32 & 0xbfff_ffff)).collect()
    }),
    ("around the lift, 2^-60", |n| bell(n, 3).into_iter().map(|v| v * 2f32.powi(-56)).collect()),
    ("around 2^126", |n| bell(n, 4).into_iter().map(|v| v * 2f32.powi(130)).collect()),
    ("a large offset", |n| bell(n, 5).into_iter().map(|v| 1000.0 + v).collect()),
    ("a NaN in one bucket", |n| with(bell(n, 6), n / 3, f32::NAN)),
    ("a signalling NaN in one bucket", |n| with(bell(n, 7), n / 3, f32::from_bits(0xff80_0001))),
    ("infinities in one bucket", |n| with(with(bell(n, 8), 1, f32::NEG_INFINITY), 2, f32::INFINITY)),
];

/// A start of a decode-add: ordinary values, a zero of either sign, an infinity.
pub(crate) fn start(n: usize) -> Vec<f32> {
    let mut x = bell(n, 9);
    for (at, value) in x.iter_mut().zip([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX]) {
        *at = value;
    }
    x
}

pub(crate) fn bucket_name(bucket: Option<usize>) -> String {
    bucket.map_or("whole tensor".to_owned(), |b| format!("buckets of {b}"))
}

/// A setting of this width, or of the widest that the codec packs.
fn near(kind: Kind, bits: u32, bucket: Option<usize>) -> Case {
    let widths = kind.codec().widths();
    Case::new(kind, if widths.contains(&bits) { bits } else { widths[widths.len() - 1] }, bucket)
}

/// Every bucket, and lengths around rows, units and buckets.
pub(crate) fn shapes(specs: &mut Vec<Spec>, one: Kind, other: Kind) {
    for bucket in (5..=13).map(|log2| 1 << log2) {
        specs.push(Spec::new(format!("buckets of {bucket}, one element"), near(other, 3, Some(bucket)), bell(1, 30)));
    }
    for n in [0, 1, 31, 33, 257, 513] {
        let name = format!("n = {n}, buckets of 512");
        specs.push(Spec::new(name, near(one, 4, Some(512)), bell(n, 31)));
    }
    for n in [0, 1, 31, 257] {
        specs.push(Spec::new(format!("n = {n}, whole tensor"), near(other, 7, None), bell(n, 32)));
    }
    specs.push(Spec::new("n = 257, buckets of 128, 3 bits", near(one, 3, Some(128)), bell(257, 33)));
}

/// Gradients of the half types; their subnormal and special values.
pub(crate) fn halves(specs: &mut Vec<Spec>, one: Kind, other: Kind) {
    let special = |x: Vec<f32>| with(with(x, 0, f32::INFINITY), 34, 3e-7);
    for (name, x) in [("bell", bell(40, 40)), ("an infinity and a subnormal", special(bell(40, 41)))] {
        let f16s = x.iter().map(|v| f16::from_f32(*v)).collect();
        let case = near(one, 4, Some(32));
        specs.push(Spec { input: Input::F16(f16s), ..Spec::new(format!("f16, {name}"), case, Vec::new()) });
        let bf16s = x.iter().map(|v| bf16::from_f32(*v)).collect();
        let case = near(other, 6, Some(32));
        specs.push(Spec { input: Input::Bf16(bf16s), ..Spec::new(format!("bf16, {name}"), case, Vec::new()) });
    }
    let f16s: Vec<f16> = bell(33, 42).iter().map(|v| f16::from_f32(*v)).collect();
    let case = Case { contractive: contracts(one), ..near(one, 4, Some(32)) };
    let spec = Spec::new("f16 with feedback", case, Vec::new()).feedback(bell(33, 43));
    specs.push(Spec { input: Input::F16(f16s), ..spec });
}

/// Error feedback of a setting: a first step, a later one, and a bucket that is not finite.
pub(crate) fn feedback(specs: &mut Vec<Spec>, name: &str, case: Case) {
    specs.push(Spec::new(format!("feedback, {name}, first step"), case, bell(34, 50)).feedback(vec![0.0; 34]));
    specs.push(Spec::new(format!("feedback, {name}, later step"), case, bell(34, 51)).feedback(bell(34, 52)));
    let spoiled = with(bell(34, 53), 3, f32::NAN);
    specs.push(Spec::new(format!("feedback, {name}, NaN keeps the residual"), case, spoiled).feedback(bell(34, 54)));
}

/// Seeds of workers: the key is the run's and a multiple of the worker's number, where the upper word carries and where
/// it wraps.
pub(crate) fn workers(specs: &mut Vec<Spec>, one: Kind, other: Kind) {
    for worker in [1, 63, u32::MAX] {
        specs.push(Spec::new(format!("worker {worker}"), near(one, 4, Some(32)), bell(40, 60)).worker(worker));
    }
    specs.push(Spec::new("worker 7, whole tensor", near(other, 6, None), bell(40, 61)).worker(7));
}

/// Feedback of halves: the sum is of binary32, and a NaN's bits are of no consequence.
pub(crate) fn halves_with_feedback(specs: &mut Vec<Spec>, one: Kind, other: Kind) {
    let narrow = |x: Vec<f32>| x.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>();
    let case = Case { contractive: contracts(one), ..near(one, 5, Some(32)) };
    let spec = Spec::new("bf16 with feedback", case, Vec::new()).feedback(bell(70, 63));
    specs.push(Spec { input: Input::Bf16(narrow(bell(70, 62))), ..spec });
    let mut f16s: Vec<f16> = bell(70, 64).iter().map(|v| f16::from_f32(*v)).collect();
    // Half and residual so far apart that the sum is rounded; a NaN with a payload, without the quiet bit.
    (f16s[1], f16s[2]) = (f16::MAX, f16::from_bits(1));
    f16s[40] = f16::from_bits(0xfd55);
    let case = Case { contractive: contracts(other), ..near(other, 5, Some(32)) };
    let spec = Spec::new("f16 with feedback, the sum is rounded, NaN in one bucket", case, Vec::new());
    specs.push(Spec { input: Input::F16(f16s), ..spec.feedback(bell(70, 65)) });
}

/// Whether a formula's codec has a contraction, which rounding to nearest has no use for.
fn contracts(kind: Kind) -> bool {
    kind.formula().page().flags & 2 != 0 && !kind.formula().is_nearest()
}
