//! Every way to select, on a device that runs passes: bytes and residuals are the CPU's, whose own test is an oracle.

use std::sync::atomic::{AtomicBool, Ordering};

use gradwire::session::Role;
use gradwire::{
    Codec, Device, Dtype, Error, Estimate, Gradient, LazyResidual, NonFinite, Qsgd, Seed, Segment, TopK, Uniform,
};
use gradwire_kernels::arith::topk::{TOGETHER, sampled};
use half::{bf16, f16};

use crate::cases::{Fill, Random, normal, seed};
use crate::conformance::{Outcome, differ};
use crate::sparse;

/// Settings for a gradient of `n` elements, one for each thing that kernels and plans tell apart.
pub fn settings(n: u64) -> Vec<(String, TopK)> {
    let mut all = vec![
        ("one in a hundred".to_owned(), TopK::fraction(0.01)),
        ("a third, as f16".to_owned(), TopK::fraction(0.34).values(gradwire::Dtype::F16)),
        ("one in fifty, through QSGD".to_owned(), TopK::fraction(0.02).then(Qsgd::bits(8))),
        ("one in fifty, through uniform".to_owned(), TopK::fraction(0.02).then(Uniform::bits(8).bucket(32))),
        ("one in fifty, estimated by GaussianK".to_owned(), TopK::estimate(0.02, Estimate::Gaussian)),
        ("one in ten, estimated by SIDCo".to_owned(), TopK::estimate(0.1, Estimate::Sidco)),
        ("none".to_owned(), TopK::count(0)),
        ("all, clamped".to_owned(), TopK::count(n + 1).clamped()),
    ];
    for threshold in [0.0, -0.0, 1e-3, 0.5, 2.5, f32::INFINITY] {
        all.push((format!("above {threshold}"), TopK::above(threshold)));
    }
    for (elements, k) in [(1, 1), (7, 3), (100, 1), (1000, 0), (8160, 81), (8161, 8161), (8192, 100), (8193, 9)] {
        all.push((format!("{k} of every {elements}"), TopK::blocks(elements, k)));
    }
    all.push(("blocks larger than the gradient".to_owned(), TopK::blocks(1 << 40, 5).clamped()));
    all.push(("few segments".to_owned(), TopK::segments(&segments(n, 5))));
    // So many that a workgroup's tiles are of several.
    all.push(("many segments".to_owned(), TopK::segments(&segments(n, 40))));
    all
}

/// Segments of odd lengths that together are `n` elements: some are empty, some keep nothing, some everything.
pub fn segments(n: u64, count: u64) -> Vec<Segment> {
    let mut random = Random(91);
    let mut left = n;
    let mut all = Vec::new();
    for i in 0..count {
        let elements = match i {
            _ if i + 1 == count => left,
            1 => 0,
            _ => (random.bits() % (2 * n / count + 1)).min(left),
        };
        left -= elements;
        let k = match i % 5 {
            2 => 0,
            3 => elements,
            _ => elements / 37,
        };
        all.push(Segment { elements, k });
    }
    all
}

/// Gradients of every type, with and without feedback.
pub fn against_cpu(device: &Device, codec: &TopK, label: &str, x: &[f32]) -> Outcome {
    (0..3).try_fold(0, |compared, dtype| Ok(compared + against_cpu_in(device, codec, label, x, dtype)?))
}

/// The same of one type: f32, f16 and bf16 are 0, 1 and 2.
pub fn against_cpu_in(device: &Device, codec: &TopK, label: &str, x: &[f32], dtype: usize) -> Outcome {
    let cpu = Device::cpu();
    let fail = |e: Error| format!("{label}: {e}");
    let f16s: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
    let bf16s: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let gradient = [Gradient::F32(x), Gradient::F16(&f16s), Gradient::Bf16(&bf16s)][dtype];
    let label = format!("{label}, n = {}, {}", x.len(), gradient.dtype().name());
    let expected = cpu.encode_sparse(codec, gradient, seed());
    let got = device.encode_sparse(codec, gradient, seed());
    let expected = match (got, expected) {
        (Ok(got), Ok(expected)) => {
            differ("payload", &label, got.as_bytes(), expected.as_bytes())?;
            expected
        }
        (Err(got), Err(expected)) if got.to_string() == expected.to_string() => return Ok(0),
        (got, expected) => return Err(format!("{label}: {got:?}, expected {expected:?}")),
    };
    let decoded = |device: &Device| device.decode_sparse(&expected).map_err(fail);
    differ("decoded", &label, bytemuck::cast_slice(&decoded(device)?), bytemuck::cast_slice(&decoded(&cpu)?))?;
    let mut sums = [normal(x.len(), 92), normal(x.len(), 92)];
    device.decode_sparse_add(&expected, 0.3, &mut sums[0]).map_err(fail)?;
    cpu.decode_sparse_add(&expected, 0.3, &mut sums[1]).map_err(fail)?;
    differ("decode-add", &label, bytemuck::cast_slice(&sums[0]), bytemuck::cast_slice(&sums[1]))?;

    let mut residuals = [normal(x.len(), 93), normal(x.len(), 93)];
    let got = device.encode_sparse_with_feedback(codec, gradient, &mut residuals[0], seed());
    let expected = cpu.encode_sparse_with_feedback(codec, gradient, &mut residuals[1], seed());
    match (got, expected) {
        (Ok(got), Ok(expected)) => differ("payload", &label, got.as_bytes(), expected.as_bytes())?,
        (Err(got), Err(expected)) if got.to_string() == expected.to_string() => {}
        (got, expected) => return Err(format!("{label}, with feedback: {got:?}, expected {expected:?}")),
    }
    differ("residual", &label, bytemuck::cast_slice(&residuals[0]), bytemuck::cast_slice(&residuals[1]))?;
    Ok(5)
}

/// Selections one after another, while a second thread keeps the same GPU busy with encodes on a stream of its own:
/// blocks that wait for one another must come to an end, and to the CPU's bytes, whatever else is resident.
pub fn under_load(device: &Device, other: &Device, runs: usize) -> Outcome {
    let fail = |what: &'static str| move |e: Error| format!("{what}: {e}");
    let n = 1 << 20;
    let ties: Vec<f32> = normal(n, 97).iter().map(|v| (4.0 * v).round()).collect();
    // The last one misleads its sample: all passes that wait for one another have something to do.
    let gradients = [normal(n, 96), ties, MISLEADING[0].1(n)];
    let codecs = [TopK::fraction(0.01), TopK::fraction(0.1), TopK::segments(&segments(n as u64, 5))];
    let mut expected = Vec::new();
    for x in &gradients {
        for codec in &codecs {
            let payload = Device::cpu().encode_sparse(codec, x, seed()).map_err(fail("on the CPU"))?;
            expected.push((x, codec, payload));
        }
    }
    let plan = Qsgd::bits(4).plan(1 << 24, Dtype::F32).map_err(fail("the load"))?;
    let passes = plan.passes(seed(), &other.limits()).map_err(fail("the load"))?;
    let (is_busy, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut session = other.session(plan.sizes())?;
            session.write(Role::Input, 0, &vec![1; 1 << 26])?;
            while !is_done.load(Ordering::Relaxed) {
                session.time(&passes, 100)?;
                is_busy.store(true, Ordering::Relaxed);
            }
            Ok(())
        });
        // Whatever becomes of the selections, the other thread has to end.
        let _end = AtEnd(&is_done);
        while !is_busy.load(Ordering::Relaxed) && !load.is_finished() {
            std::thread::yield_now();
        }
        let outcome = (0..runs).try_fold(0, |compared, run| {
            let (x, codec, expected) = &expected[run % expected.len()];
            let got = device.encode_sparse(codec, *x, seed()).map_err(fail("under load"))?;
            differ("payload", &format!("run {run}"), got.as_bytes(), expected.as_bytes())?;
            Ok(compared + 1)
        });
        is_done.store(true, Ordering::Relaxed);
        match load.join() {
            Ok(Ok(())) => outcome,
            Ok(Err(error)) => outcome.and(Err(fail("the load")(error))),
            Err(_) => Err("the thread that makes the load has panicked".to_owned()),
        }
    })
}

/// Sets a flag when it is dropped.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is not finite is refused with the index of the first, and the residual stays; whether or not some of all is
/// kept, and where what is refused is more than what is kept.
pub fn refuses_not_finite(device: &Device) -> Outcome {
    let n = 20_000;
    let part = |elements, k| Segment { elements, k };
    let mut compared = 0;
    for (label, codec) in [
        ("ten", TopK::count(10)),
        ("one", TopK::count(1)),
        ("none", TopK::count(0)),
        ("none of the segment", TopK::segments(&[part(12_000, 5), part(8000, 0)])),
        ("some of each segment", TopK::segments(&[part(12_000, 5), part(8000, 1)])),
        ("some of each block", TopK::blocks(100, 1)),
        ("what is large", TopK::above(3.0)),
    ] {
        let codec = codec.non_finite(NonFinite::Error);
        let mut x = normal(n, 94);
        // NaN is kept before infinity, but does not come first.
        (x[12_345], x[17_000]) = (f32::INFINITY, f32::NAN);
        let mut residual = normal(n, 95);
        let before = residual.clone();
        for outcome in [
            device.encode_sparse(&codec, &x, seed()),
            device.encode_sparse_with_feedback(&codec, &x, &mut residual, seed()),
        ] {
            if !matches!(outcome, Err(Error::NotFinite { index: 12_345 })) {
                return Err(format!("top-k refusing NaN, {label}: {outcome:?}"));
            }
            compared += 1;
        }
        if residual != before {
            return Err(format!("top-k refusing NaN, {label}: the residual changed"));
        }
        // The sum alone is not finite.
        (x[12_345], x[17_000]) = (f32::MAX, 1.0);
        residual[12_345] = f32::MAX;
        let outcome = device.encode_sparse_with_feedback(&codec, &x, &mut residual, seed());
        if !matches!(outcome, Err(Error::NotFinite { index: 12_345 })) {
            return Err(format!("top-k refusing infinite sums, {label}: {outcome:?}"));
        }
        device.encode_sparse(&codec, &x, seed()).map_err(|e| format!("top-k of finite elements, {label}: {e}"))?;
        compared += 2;
    }
    Ok(compared)
}

/// Steps of feedback whose residual is taken off late: the payloads and the residual are those of the CPU's steps that
/// take it off at once, whatever is pending, and whatever is asked for in between.
pub fn lazily(device: &Device, n: usize) -> Outcome {
    lazily_in_turn(device, n, 0, 1)
}

/// The same of every so many-th setting, from the one of that number on.
pub fn lazily_in_turn(device: &Device, n: usize, first: usize, every: usize) -> Outcome {
    let cpu = Device::cpu();
    let mut compared = 0;
    let mut codecs = settings(n as u64);
    codecs.push(("one".to_owned(), TopK::count(1).clamped()));
    codecs.push(("half, refusing NaN".to_owned(), TopK::fraction(0.5).non_finite(NonFinite::Error)));
    for (label, codec) in codecs.into_iter().skip(first).step_by(every) {
        for (fill, of) in [("normal", normal as fn(usize, u64) -> Vec<f32>), ("few values", few_values)] {
            let label = format!("lazily, {label}, {fill}, n = {n}");
            let fail = |e: Error| format!("{label}: {e}");
            let mut eager = of(n, 110);
            let mut lazy = LazyResidual::from(eager.clone());
            for step in 0..4u64 {
                let mut x = of(n, 111 + step);
                // NaN and infinity on the second step; then the codec changes, and so does the gradient's type.
                let guarded = format!("{codec:?}").contains("Error");
                if step == 1 && n > 40 && !guarded {
                    (x[7], x[n - 3]) = (f32::NAN, f32::NEG_INFINITY);
                }
                let halves: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
                let other = TopK::blocks(20_000, 3).clamped();
                let (codec, gradient) = match step {
                    2 => (&other, Gradient::F32(&x)),
                    3 => (&codec, Gradient::F16(&halves)),
                    _ => (&codec, Gradient::F32(&x)),
                };
                let seed = seed().step(step);
                let expected = cpu.encode_sparse_with_feedback(codec, gradient, &mut eager, seed);
                let got = device.encode_sparse_lazily(codec, gradient, &mut lazy, seed);
                match (got, expected) {
                    (Ok(got), Ok(expected)) => differ("payload", &label, got.as_bytes(), expected.as_bytes())?,
                    (Err(got), Err(expected)) if got.to_string() == expected.to_string() => {}
                    (got, expected) => return Err(format!("{label}: {got:?}, expected {expected:?}")),
                }
                let now = lazy.clone().into_values();
                differ("residual", &label, bytemuck::cast_slice(&now), bytemuck::cast_slice(&eager))?;
                let mut settled = lazy.clone();
                device.settle(&mut settled).map_err(fail)?;
                differ("settled", &label, bytemuck::cast_slice(&settled.into_values()), bytemuck::cast_slice(&eager))?;
                compared += 3;
            }
            // A step that fails leaves it, and so does what the CPU does with what another device left.
            let before = lazy.clone().into_values();
            let short = device.encode_sparse_lazily(&codec, &vec![1.0f32; n + 1], &mut lazy, seed());
            if !matches!(short, Err(Error::Length { .. } | Error::TooFew { .. })) {
                return Err(format!("{label}: {short:?} for a gradient of another length"));
            }
            let mut odd = of(n, 116);
            if n > 0 {
                odd[n / 2] = f32::NAN;
                let refused =
                    device.encode_sparse_lazily(&codec.clone().non_finite(NonFinite::Error), &odd, &mut lazy, seed());
                if !matches!(&refused, Err(Error::NotFinite { index }) if *index == n as u64 / 2) {
                    return Err(format!("{label}: {refused:?} for NaN"));
                }
            }
            let now = lazy.clone().into_values();
            differ("residual after errors", &label, bytemuck::cast_slice(&now), bytemuck::cast_slice(&before))?;
            let x = of(n, 117);
            let expected = cpu.encode_sparse_with_feedback(&codec, &x, &mut eager, seed()).map_err(fail)?;
            let got = cpu.encode_sparse_lazily(&codec, &x, &mut lazy, seed()).map_err(fail)?;
            differ("payload of the CPU", &label, got.as_bytes(), expected.as_bytes())?;
            differ(
                "residual of the CPU",
                &label,
                bytemuck::cast_slice(lazy.materialize()),
                bytemuck::cast_slice(&eager),
            )?;
            compared += 3;
        }
    }
    Ok(compared)
}

/// Values of which many are equal, zeros of both signs among them.
fn few_values(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| [0.0, -0.0, 1.0, -1.0, 2.0, -2.5][random.bits() as usize % 6]).collect()
}

/// Inputs on which the sample is wrong: what it looks at is not what the rest is.
pub const MISLEADING: [Fill; 11] = [
    ("the sample is huge", |n| misleading(normal(n, 96), |v| 1e6 * (v.abs() + 1.0))),
    ("the sample is tiny", |n| misleading(normal(n, 97), |v| 1e-6 * v)),
    ("the sample is huge, the rest one value", |n| misleading(vec![0.5; n], |_| 1.0)),
    ("the sample is huge, the rest has one exponent", |n| {
        misleading(normal(n, 98).into_iter().map(|v| 1.0 + v.abs().fract()).collect(), |v| v * 1e6)
    }),
    ("the sample is tiny, the rest one value", |n| misleading(vec![0.5; n], |_| 0.25)),
    ("the sample is tiny, the rest NaN of many kinds", |n| {
        let odd = |i: u32| f32::from_bits(0x7f80_0001 + i.wrapping_mul(0x9e37) % 0x7f_fffe);
        misleading((0..n as u32).map(odd).collect(), |_| 0.25)
    }),
    ("the sample is tiny, the rest NaN and infinity", |n| {
        misleading((0..n).map(|i| [f32::NAN, f32::INFINITY][i % 2]).collect(), |_| 0.25)
    }),
    // As many as a thousandth are above, a few of them in every tile; of the next key nearly all are in the last tiles.
    ("the sample is huge, the last kept value is rare at first", |n| {
        misleading((0..n).map(|i| rare_at_first(i, n)).collect(), |_| 1e6)
    }),
    ("the sample is tiny, the last kept value is rare at first", |n| {
        misleading((0..n).map(|i| rare_at_first(i, n)).collect(), |_| 1e-6)
    }),
    // All keys in one bin of 2^15, each in every tile.
    ("the sample is huge, the rest has the same leading bits", |n| {
        misleading(
            (0..n as u32).map(|i| f32::from_bits(0x3f80_0000 + i.wrapping_mul(0x9e37_79b1) % 0x8000)).collect(),
            |_| 2.0,
        )
    }),
    ("the sample is tiny, the rest has two values", |n| {
        misleading((0..n).map(|i| f32::from_bits(0x3f80_0000 + (i % 2) as u32)).collect(), |_| 0.5)
    }),
];

/// One of three neighbouring values: one element in a thousand is above the last kept value, which one in a hundred
/// has, and nearly all that are after 15 of 16 parts.
fn rare_at_first(i: usize, n: usize) -> f32 {
    let above = match i.wrapping_mul(2_654_435_761) >> 7 {
        h if h % 1009 == 0 => 2,
        h if h % 101 == 0 || i > n / 16 * 15 => 1,
        _ => 0,
    };
    f32::from_bits(0x3f80_0000 + above)
}

/// Changes the elements that the kernels sample of a gradient that is one segment.
fn misleading(x: Vec<f32>, change: impl Fn(f32) -> f32) -> Vec<f32> {
    let n = x.len();
    misleading_in(x, &[n], change)
}

/// Changes the elements that the kernels sample of each of several segments, where each is more than a tile.
pub fn misleading_in(mut x: Vec<f32>, segments: &[usize], change: impl Fn(f32) -> f32) -> Vec<f32> {
    // As `SelectPlan` in host/src/sparse/select/mod.rs has it. If it differed, the sample would be right after all, and
    // `tests::traffic` would see fewer reads.
    let longest = segments.iter().copied().max().unwrap_or(0) as u32;
    let samples_log2 = (longest >> 21).max(1).ilog2().min(5);
    let mut start = 0;
    for len in segments {
        let part = &mut x[start..start + len];
        let n = part.len() as u32;
        let slots_log2 = (n >> (15 + samples_log2)).clamp(1, 32).ilog2();
        for workgroup in 0..1 << samples_log2 {
            for sector in 0..1 << (5 + slots_log2) {
                let within = start as u32 + sampled(sector, 5 + slots_log2, n, workgroup);
                let at = (within / TOGETHER * TOGETHER).max(start as u32) - start as u32;
                // To the sector's end, wherever the segment begins.
                for element in at..(at + TOGETHER).min(n) {
                    part[element as usize] = change(part[element as usize]);
                }
            }
        }
        start += len;
    }
    x
}

/// A gradient of more elements than a device binds at once, in the segments of a model.
pub fn in_parts(device: &Device, n: usize) -> Outcome {
    let x = sparse::FILLS[2].1(n);
    let few: Vec<Segment> = segments(n as u64, 7).into_iter().map(|s| Segment { k: s.elements / 200, ..s }).collect();
    let mut compared = 0;
    for (label, codec) in [
        ("one in a thousand", TopK::fraction(0.001)),
        ("few segments", TopK::segments(&few)),
        ("3 of every 5000", TopK::blocks(5000, 3)),
        ("one in a thousand, refusing NaN", TopK::fraction(0.001).non_finite(NonFinite::Error)),
    ] {
        compared += against_cpu(device, &codec, label, &x)?;
    }
    Ok(compared)
}

/// The step of a gTop-k tree, for every selection: the same payload and residual as the CPU's.
pub fn merges(device: &Device, n: usize) -> Outcome {
    let cpu = Device::cpu();
    let sent = |s: u64| cpu.encode_sparse(&TopK::fraction(0.05), &normal(n, s), Seed::new(s));
    let fail = |e: Error| format!("merge of {n}: {e}");
    let (a, b) = (sent(1).map_err(fail)?, sent(2).map_err(fail)?);
    let mut compared = 0;
    for (label, codec) in settings(n as u64) {
        let mut residuals = [normal(n, 99), normal(n, 99)];
        let got = device.merge_sparse(&codec, &a, &b, &mut residuals[0], seed());
        let expected = cpu.merge_sparse(&codec, &a, &b, &mut residuals[1], seed());
        let label = format!("merge of {n}, {label}");
        match (got, expected) {
            (Ok(got), Ok(expected)) => differ("payload", &label, got.as_bytes(), expected.as_bytes())?,
            (Err(got), Err(expected)) if got.to_string() == expected.to_string() => {}
            (got, expected) => return Err(format!("{label}: {got:?}, expected {expected:?}")),
        }
        differ("residual", &label, bytemuck::cast_slice(&residuals[0]), bytemuck::cast_slice(&residuals[1]))?;
        compared += 2;
    }
    Ok(compared)
}
