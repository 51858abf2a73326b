//! Which vectors there are, each with its reason. They never change, because version 1 does not; new ones may be added, under
//! names of their own, anywhere but in front: a name chooses the draws.

use half::{bf16, f16};

use crate::cases::{Case, Random};
use crate::oracle::Kind;

/// What is encoded.
pub(super) enum Input {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

/// A vector before the oracle answered.
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) case: Case,
    pub(super) input: Input,
    /// The residual before, with error feedback.
    pub(super) residual: Option<Vec<f32>>,
    /// Weight and start of a decode-add.
    pub(super) add: Option<(f32, Vec<f32>)>,
    /// The worker of the seed.
    pub(super) worker: u32,
}

impl Spec {
    fn new(name: impl Into<String>, case: Case, x: Vec<f32>) -> Self {
        Self { name: name.into(), case, input: Input::F32(x), residual: None, add: None, worker: 0 }
    }

    fn add(self, weight: f32, start: Vec<f32>) -> Self {
        Self { add: Some((weight, start)), ..self }
    }

    fn worker(self, worker: u32) -> Self {
        Self { worker, ..self }
    }

    fn feedback(self, residual: Vec<f32>) -> Self {
        Self { residual: Some(residual), ..self }
    }
}

/// Values like a gradient's: sums of four 16-bit draws, exact in f32, so that no mathematical library has a say.
fn bell(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut value = || {
        let bits = random.bits();
        (0..4).map(|k| (bits >> (16 * k) & 0xffff) as i32).sum::<i32>() - 2 * 0xffff
    };
    (0..n).map(|_| value() as f32 * 2f32.powi(-21)).collect()
}

fn with(mut x: Vec<f32>, at: usize, value: f32) -> Vec<f32> {
    x[at] = value;
    x
}

type Fill = (&'static str, fn(usize) -> Vec<f32>);

/// What a formula could get wrong, at any length above 3.
const FILLS: [Fill; 16] = [
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
fn start(n: usize) -> Vec<f32> {
    let mut x = bell(n, 9);
    for (at, value) in x.iter_mut().zip([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX]) {
        *at = value;
    }
    x
}

/// The vectors of QSGD.
pub(super) fn qsgd() -> Vec<Spec> {
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
    // The name is one of those that give an element the largest draw: three quarters of a 2^-16th of a level round up by it alone.
    let far_below = with(vec![0.75 * 2f32.powi(-16) / 32767.0; 64], 0, 1.0);
    let name = "16 bits, far below a level, draws 1642";
    specs.push(Spec::new(name, Case::new(Kind::QsgdMax, 16, Some(64)), far_below));
    specs
}

/// The vectors of the uniform codec.
pub(super) fn uniform() -> Vec<Spec> {
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
    // The name is one of those that give an element the draw 0, and this maximum times the rounded quotient is below the top.
    let maxima = (0..64).map(|i| if i % 2 == 1 { f32::from_bits(0x3f73_11d9) } else { 0.0 }).collect();
    let name = "8 bits, half of the elements at the maximum, draws 1752";
    specs.push(Spec::new(name, Case::new(Kind::Uniform, 8, Some(64)), maxima));
    specs
}

/// The vectors of 1-bit SGD.
pub(super) fn onebit() -> Vec<Spec> {
    let case = |bucket| Case::new(Kind::OneBit, 1, bucket);
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

fn bucket_name(bucket: Option<usize>) -> String {
    bucket.map_or("whole tensor".to_owned(), |b| format!("buckets of {b}"))
}

/// Every bucket, and lengths around rows, units and buckets.
fn shapes(specs: &mut Vec<Spec>, one: Kind, other: Kind) {
    for bucket in (5..=13).map(|log2| 1 << log2) {
        specs.push(Spec::new(
            format!("buckets of {bucket}, one element"),
            Case::new(other, 3, Some(bucket)),
            bell(1, 30),
        ));
    }
    for n in [0, 1, 31, 33, 257, 513] {
        let name = format!("n = {n}, buckets of 512");
        specs.push(Spec::new(name, Case::new(one, 4, Some(512)), bell(n, 31)));
    }
    for n in [0, 1, 31, 257] {
        specs.push(Spec::new(format!("n = {n}, whole tensor"), Case::new(other, 7, None), bell(n, 32)));
    }
    specs.push(Spec::new("n = 257, buckets of 128, 3 bits", Case::new(one, 3, Some(128)), bell(257, 33)));
}

/// Gradients of the half types; their subnormal and special values.
fn halves(specs: &mut Vec<Spec>, one: Kind, other: Kind) {
    let special = |x: Vec<f32>| with(with(x, 0, f32::INFINITY), 34, 3e-7);
    for (name, x) in [("bell", bell(40, 40)), ("an infinity and a subnormal", special(bell(40, 41)))] {
        let f16s = x.iter().map(|v| f16::from_f32(*v)).collect();
        let case = Case::new(one, 4, Some(32));
        specs.push(Spec { input: Input::F16(f16s), ..Spec::new(format!("f16, {name}"), case, Vec::new()) });
        let bf16s = x.iter().map(|v| bf16::from_f32(*v)).collect();
        let case = Case::new(other, 6, Some(32));
        specs.push(Spec { input: Input::Bf16(bf16s), ..Spec::new(format!("bf16, {name}"), case, Vec::new()) });
    }
    let f16s: Vec<f16> = bell(33, 42).iter().map(|v| f16::from_f32(*v)).collect();
    let case = Case { contractive: one != Kind::UniformNearest, ..Case::new(one, 4, Some(32)) };
    let spec = Spec::new("f16 with feedback", case, Vec::new()).feedback(bell(33, 43));
    specs.push(Spec { input: Input::F16(f16s), ..spec });
}

/// Error feedback of a setting: a first step, a later one, and a bucket that is not finite.
fn feedback(specs: &mut Vec<Spec>, name: &str, case: Case) {
    specs.push(Spec::new(format!("feedback, {name}, first step"), case, bell(34, 50)).feedback(vec![0.0; 34]));
    specs.push(Spec::new(format!("feedback, {name}, later step"), case, bell(34, 51)).feedback(bell(34, 52)));
    let spoiled = with(bell(34, 53), 3, f32::NAN);
    specs.push(Spec::new(format!("feedback, {name}, NaN keeps the residual"), case, spoiled).feedback(bell(34, 54)));
}

/// Seeds of workers: the key is the run's and a multiple of the worker's number, where the upper word carries and where it wraps.
fn workers(specs: &mut Vec<Spec>, one: Kind, other: Kind) {
    for worker in [1, 63, u32::MAX] {
        specs.push(Spec::new(format!("worker {worker}"), Case::new(one, 4, Some(32)), bell(40, 60)).worker(worker));
    }
    specs.push(Spec::new("worker 7, whole tensor", Case::new(other, 6, None), bell(40, 61)).worker(7));
}

/// Feedback of halves: the sum is of binary32, and a NaN's bits are of no consequence.
fn halves_with_feedback(specs: &mut Vec<Spec>, one: Kind, other: Kind) {
    let scaled = |kind| kind != Kind::UniformNearest;
    let narrow = |x: Vec<f32>| x.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>();
    let case = Case { contractive: scaled(one), ..Case::new(one, 5, Some(32)) };
    let spec = Spec::new("bf16 with feedback", case, Vec::new()).feedback(bell(70, 63));
    specs.push(Spec { input: Input::Bf16(narrow(bell(70, 62))), ..spec });
    let mut f16s: Vec<f16> = bell(70, 64).iter().map(|v| f16::from_f32(*v)).collect();
    // Half and residual so far apart that the sum is rounded; a NaN with a payload, without the quiet bit.
    (f16s[1], f16s[2]) = (f16::MAX, f16::from_bits(1));
    f16s[40] = f16::from_bits(0xfd55);
    let case = Case { contractive: scaled(other), ..Case::new(other, 5, Some(32)) };
    let spec = Spec::new("f16 with feedback, the sum is rounded, NaN in one bucket", case, Vec::new());
    specs.push(Spec { input: Input::F16(f16s), ..spec.feedback(bell(70, 65)) });
}
