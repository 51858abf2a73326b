//! Which vectors of sparse payloads there are, each with its reason. New ones may be added anywhere.

use half::{bf16, f16};

use super::topk::Keep;
use crate::cases::{Case, Random, SEED, normal};
use crate::oracle::Kind;
use crate::oracle::wire::Type;

/// What is encoded.
#[derive(Clone)]
pub(super) enum Input {
    F32(Vec<f32>),
    /// Bits of f16, or of bf16.
    Half(Type, Vec<u16>),
}

/// How values are sent.
#[derive(Clone)]
pub(super) enum Sent {
    As(Type),
    Quantized(Case, (u64, u64, u32), u32),
}

/// A vector before the oracle answered.
#[derive(Clone)]
pub(super) struct Spec {
    pub(super) name: &'static str,
    pub(super) keep: Keep,
    pub(super) input: Input,
    pub(super) sent: Sent,
    pub(super) residual: Option<Vec<f32>>,
}

impl Spec {
    fn new(name: &'static str, keep: Keep, input: Input, sent: Sent) -> Self {
        Self { name, keep, input, sent, residual: None }
    }

    fn feedback(self, residual: Vec<f32>) -> Self {
        Self { residual: Some(residual), ..self }
    }
}

fn narrow(x: &[f32], of: Type) -> Vec<u16> {
    x.iter().map(|v| if of == Type::F16 { f16::from_f32(*v).to_bits() } else { bf16::from_f32(*v).to_bits() }).collect()
}

fn from_bits<const N: usize>(bits: [u32; N]) -> Vec<f32> {
    bits.map(f32::from_bits).to_vec()
}

pub(super) fn specs() -> Vec<Spec> {
    let mut specs = plain();
    specs.extend(not_numbers());
    specs.extend(rounded());
    specs.extend(selections());
    specs.extend(quantized());
    specs
}

/// The sets, the formats of the indices, and the types.
fn plain() -> Vec<Spec> {
    let plain = |name, k, x| Spec::new(name, Keep::Count(k), Input::F32(x), Sent::As(Type::F32));
    let odd = |n: usize| {
        let specials = [0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xff80_0001, 0x8000_0000, 1, 0x8000_0002, 0x3f80_0000];
        (0..n).map(|i| f32::from_bits(specials[i * 5 % 8])).collect::<Vec<f32>>()
    };
    let mut random = Random(91);
    let few = (0..300).map(|_| (random.bits() % 3) as f32 - 1.0).collect();
    let half = |name, dtype, sent, residual| {
        let x = normal(200, 92);
        let input = if dtype == Type::F32 { Input::F32(x) } else { Input::Half(dtype, narrow(&x, dtype)) };
        Spec { residual, ..Spec::new(name, Keep::Count(20), input, Sent::As(sent)) }
    };
    vec![
        plain("no element", 0, vec![]),
        plain("one element, all of it", 1, vec![-2.5]),
        plain("one element, none of it", 0, vec![-2.5]),
        plain("all of several: no index is written", 33, normal(33, 93)),
        plain("one of many: a list", 1, normal(1000, 94)),
        plain("one in a hundred: Elias and Fano's code", 10, normal(1000, 95)),
        plain("a third, where Elias and Fano's low part is one bit", 100, normal(300, 96)),
        plain("more than half: a bitmap", 200, normal(300, 97)),
        plain("all but one", 299, normal(300, 98)),
        plain("ties go to the lower index", 7, vec![0.5; 64]),
        plain("few distinct values", 50, few),
        plain("NaN, infinities, subnormals and both zeros, one NaN kept", 1, odd(32)),
        plain("NaN, infinities, subnormals and both zeros, half kept", 16, odd(32)),
        plain("zeros of both signs are one magnitude", 3, vec![-0.0, 0.0, -0.0, 0.0, 1.0]),
        half("f16", Type::F16, Type::F16, None),
        half("bf16", Type::Bf16, Type::Bf16, None),
        half("f32 sent as f16", Type::F32, Type::F16, None),
        half("f16 sent as bf16", Type::F16, Type::Bf16, None),
        half("feedback", Type::F32, Type::F32, Some(normal(200, 99))),
        half("feedback, f32 sent as bf16: what rounding takes is kept", Type::F32, Type::Bf16, Some(normal(200, 99))),
        Spec {
            sent: Sent::As(Type::F16),
            residual: Some(vec![0.0; 4]),
            ..plain("f16 sent for what is beyond it", 3, vec![1.0, 70000.0, -1e30, 3.0])
        },
        half("feedback, f16 gradient, values in f32", Type::F16, Type::F32, Some(normal(200, 99))),
    ]
}

/// What becomes of the bits of a NaN from type to type.
fn not_numbers() -> Vec<Spec> {
    // Quiet and signalling, with payloads that the shorter type cuts in part, altogether, and not at all.
    let wide = || {
        from_bits([
            0x7f80_0001,
            0xff80_0001,
            0x7fc0_0000,
            0xffc1_2345,
            0x7f80_2000,
            0xff90_a000,
            0x7fff_ffff,
            0x7fab_cdef,
            0x7f80_ffff,
            0x3f80_0000,
            0x7f80_0000,
        ])
    };
    let f16s = || Input::Half(Type::F16, vec![0x7c01, 0xfc01, 0x7e00, 0xfe55, 0x7fff, 0x7d08, 0x3c00, 0x7c00]);
    let bf16s = || Input::Half(Type::Bf16, vec![0x7f81, 0xff81, 0x7fc0, 0xffd5, 0x7fff, 0x7f88, 0x3f80, 0xff80]);
    let all = |name, n, input, sent| Spec::new(name, Keep::Count(n), input, Sent::As(sent));
    vec![
        all("NaN of f32 as they are", 11, Input::F32(wide()), Type::F32),
        all("NaN of f32 sent as f16", 11, Input::F32(wide()), Type::F16),
        all("NaN of f32 sent as bf16", 11, Input::F32(wide()), Type::Bf16),
        all("NaN of f16 as they are", 8, f16s(), Type::F16),
        all("NaN of f16 sent as bf16", 8, f16s(), Type::Bf16),
        all("NaN of f16 sent as f32", 8, f16s(), Type::F32),
        all("NaN of bf16 as they are", 8, bf16s(), Type::Bf16),
        all("NaN of bf16 sent as f16", 8, bf16s(), Type::F16),
        all("NaN of bf16 sent as f32", 8, bf16s(), Type::F32),
        all("NaN of f16 and feedback: a sum is the one NaN", 8, f16s(), Type::F32).feedback(vec![0.25; 8]),
        all("NaN of f16 and feedback, sent as f16", 8, f16s(), Type::F16).feedback(vec![0.25; 8]),
    ]
}

/// Rounding to shorter types: ties, subnormal numbers, the ends of the range.
fn rounded() -> Vec<Spec> {
    let tie = |exponent: i32, odd: i32| odd as f32 * 2f32.powi(exponent);
    let mut x = vec![tie(-25, 1), tie(-25, 3), tie(-25, -5), tie(-26, 1), tie(-26, 3), 65_519.0, 65_520.0, -65_536.0];
    x.extend([1.0 + tie(-11, 1), 1.0 + tie(-11, 3), -1.0 - tie(-8, 1), 1.0 + tie(-8, 3), tie(-24, 2047), tie(-15, 1)]);
    x.extend(from_bits([0x3300_0001, 0x3880_0000, 0x387f_f000, 0x387f_efff, 0x7f7f_7fff, 0xff7f_8000, 0x7f7f_ffff]));
    x.extend(from_bits([0x0000_8000, 0x8001_8000, 0x0000_7fff, 0x0000_8001, 1, 0x8000_0000, 0x007f_ffff, 0x0080_0000]));
    let all = |name, sent| Spec::new(name, Keep::Count(29), Input::F32(x.clone()), Sent::As(sent));
    let f16s = narrow(&normal(60, 101), Type::F16);
    let bf16s = narrow(&normal(60, 102), Type::Bf16);
    let half = |name, input, sent| Spec::new(name, Keep::Count(12), input, Sent::As(sent)).feedback(normal(60, 103));
    vec![
        all("f32 rounded to f16", Type::F16),
        all("f32 rounded to bf16", Type::Bf16),
        all("f32 rounded to f16, what is lost stays", Type::F16).feedback(vec![0.0; 29]),
        half("feedback, f16 gradient, values in f16", Input::Half(Type::F16, f16s), Type::F16),
        half("feedback, bf16 gradient, values in f32", Input::Half(Type::Bf16, bf16s), Type::F32),
    ]
}

/// How a setting becomes a set.
fn selections() -> Vec<Spec> {
    let part = |name, n, part: f64| {
        Spec::new(name, Keep::Part(format!("{:016x}", part.to_bits())), Input::F32(normal(n, 110)), Sent::As(Type::F32))
    };
    let above = |name, x, threshold: f32, sent| {
        Spec::new(name, Keep::Threshold(format!("{:08x}", threshold.to_bits())), Input::F32(x), Sent::As(sent))
    };
    // So many of 64 reach the threshold, at places that are spread out.
    let reach = |count: usize| (0..64).map(|i| if i * 37 % 64 < count { 2.0 } else { -0.5 }).collect::<Vec<f32>>();
    let quarter = |places: u64| f64::from_bits(0.25f64.to_bits() + places);
    let blocks = |name, n, elements, k| {
        Spec::new(name, Keep::Blocks(elements, k), Input::F32(normal(n, 111)), Sent::As(Type::F32))
    };
    vec![
        part("no part", 10, 0.0),
        part("the smallest part there is: one entry", 10, f64::from_bits(1)),
        part("all of it", 10, 1.0),
        part("a part of 7.000000000000001 entries: 7", 100, 0.07),
        part("a part of 28.999999999999996 entries: 29", 100, 0.29),
        part("a part of 3.5 entries: 4", 7, 0.5),
        part("a part two last places above 16 entries: 16", 64, quarter(2)),
        part("a part three last places above 16 entries: 17", 64, quarter(3)),
        above("a threshold that 62 of 64 reach: as many bytes as all take", reach(62), 2.0, Type::F32),
        above("a threshold that 63 of 64 reach: all are fewer bytes", reach(63), 2.0, Type::F32),
        above("a threshold that 60 of 64 reach, values in f16", reach(60), 1.0, Type::F16),
        above("a threshold that 61 of 64 reach, values in f16: all", reach(61), 1.0, Type::F16),
        above("a threshold that all reach", reach(64), 2.0, Type::F32),
        above("a threshold that none reaches", reach(30), 2.5, Type::F32),
        above(
            "a threshold of infinity: infinities and NaN",
            from_bits([0x7f80_0000, 0xffc0_0001, 0x7f7f_ffff, 0, 1, 2, 3, 4]),
            f32::INFINITY,
            Type::F32,
        ),
        above("a threshold with feedback, all being fewer bytes", reach(63), 2.0, Type::F32).feedback(vec![0.0; 64]),
        blocks("5 of each block of 32, the last of which has 4", 100, 32, 5),
        blocks("a block that is longer than the gradient", 20, 64, 3),
        Spec::new(
            "segments, one of none and one of all",
            Keep::Segments(vec![(10, 3), (0, 0), (50, 7), (12, 12), (5, 0)]),
            Input::F32(normal(77, 112)),
            Sent::As(Type::F32),
        ),
    ]
}

/// Values that are a payload of their own, of binary32, whose draws go by the place among the kept.
fn quantized() -> Vec<Spec> {
    let sent = |case, worker| Sent::Quantized(case, SEED, worker);
    let of = |name, k, x, case| Spec::new(name, Keep::Count(k), Input::F32(x), sent(case, 0));
    let four = Case::new(Kind::QsgdMax, 4, Some(32));
    let scaled = |case| Case { contractive: true, ..case };
    let mut odd = normal(90, 121);
    (odd[3], odd[60]) = (f32::NAN, f32::INFINITY);
    let f16s = Input::Half(Type::F16, narrow(&normal(90, 122), Type::F16));
    let threshold = Keep::Threshold(format!("{:08x}", 0.5f32.to_bits()));
    vec![
        of("values by QSGD: draws by the place among the kept", 70, normal(90, 120), four),
        of("values by QSGD, L2, one bucket", 70, normal(90, 120), Case::new(Kind::QsgdL2, 8, None)),
        of("values quantized uniformly", 40, normal(90, 120), Case::new(Kind::Uniform, 5, Some(32))),
        of("values to nearest", 40, normal(90, 120), Case::new(Kind::UniformNearest, 3, Some(64))),
        of("no values to quantize", 0, normal(40, 120), four),
        of("a NaN and an infinity among the quantized: their bucket is NaN", 40, odd.clone(), four),
        of("the same with feedback: what is finite of it stays", 40, odd, four).feedback(normal(90, 123)),
        of(
            "fewer values than a bucket: a contraction by their number",
            5,
            normal(90, 124),
            scaled(Case::new(Kind::QsgdMax, 2, Some(32))),
        )
        .feedback(normal(90, 125)),
        of(
            "more values than a bucket, contractive",
            70,
            normal(90, 126),
            scaled(Case::new(Kind::Uniform, 1, Some(32))),
        )
        .feedback(normal(90, 127)),
        Spec {
            input: f16s,
            ..of("quantized values of an f16 gradient: the inner payload is of f32", 40, Vec::new(), four)
        },
        Spec { sent: sent(four, 5), ..of("quantized values of worker 5", 40, normal(90, 128), four) },
        Spec {
            keep: threshold,
            ..of("a threshold that all reach, quantized: bytes are not compared", 0, vec![0.75; 64], four)
        },
    ]
}
