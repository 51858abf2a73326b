//! Top-k: an oracle that sorts, the inputs on which selections go wrong, and what holds on every backend.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::{
    Device, Error, Float, Gradient, Natural, OneBit, Payload, Qsgd, Quantile, Quantizer, Sign, SparsePayload, Ternary,
    TopK, Tree, Uniform,
};
use half::{bf16, f16};

use crate::cases::{Fill, Random, normal, seed};
use crate::conformance::Outcome;
pub use crate::oracle::sparse::largest;

fn from_uniform(n: usize, seed: u64, of: impl Fn(f64) -> f64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| of(random.unit()) as f32).collect()
}

/// Inputs on which some selection is known to be slow, wrong or undetermined.
pub const FILLS: [Fill; 19] = [
    ("normal", |n| normal(n, 41)),
    ("Laplace", |n| from_uniform(n, 42, |u| (0.5 - u).signum() * (1.0 - 2.0 * (u - 0.5).abs()).ln() * 0.01)),
    ("Student t, 3 degrees", |n| {
        let mut r = Random(43);
        let mut square = || r.normal().powi(2);
        let scales: Vec<f64> = (0..n).map(|_| ((square() + square() + square()) / 3.0).sqrt()).collect();
        let mut r = Random(44);
        scales.into_iter().map(|s| (r.normal() / s) as f32).collect()
    }),
    ("uniform", |n| from_uniform(n, 45, |u| u)),
    ("0.6 to 0.7", |n| from_uniform(n, 46, |u| 0.6 + 0.1 * u)),
    ("the same leading bits", |n| from_uniform(n, 47, |u| f64::from(f32::from_bits(0x3f80_0000 + (u * 256.0) as u32)))),
    ("Zipf", |n| (0..n).map(|i| 1.0 / (1.0 + (i * 7919 % n.max(1)) as f32).powf(1.1)).collect()),
    ("all equal", |n| vec![-0.25; n]),
    ("all zero", |n| vec![0.0; n]),
    ("two values", |n| from_uniform(n, 48, |u| if u < 0.995 { 1.0 } else { -2.0 })),
    ("sixteen values", |n| from_uniform(n, 49, |u| (u * 16.0).floor() - 8.0)),
    ("subnormal", |n| from_uniform(n, 50, |u| u * 1e-38)),
    ("zeros of both signs, and few others", |n| {
        (0..n).map(|i| if i % 97 == 5 { i as f32 } else { [0.0, -0.0][i % 2] }).collect()
    }),
    ("infinities of both signs", |n| {
        (0..n).map(|i| [1.0, f32::INFINITY, -3.0, f32::NEG_INFINITY, 0.5][i * 31 % 5]).collect()
    }),
    ("some NaN", |n| {
        let odd = [f32::NAN, f32::from_bits(0xff80_0001), f32::from_bits(0x7fff_ffff)];
        normal(n, 51).into_iter().enumerate().map(|(i, v)| if i % 1000 == 7 { odd[i / 1000 % 3] } else { v }).collect()
    }),
    ("rising", |n| (0..n).map(|i| i as f32).collect()),
    ("falling", |n| (0..n).map(|i| -((n - i) as f32)).collect()),
    ("few huge, the rest tiny", |n| (0..n).map(|i| if i % 1021 == 3 { 1e30 } else { 1e-30 }).collect()),
    ("real gradients", |n| crate::data::digits().into_iter().cycle().take(n).collect()),
];

/// Lengths around every boundary of a selection: groups of 16, runs of 65536, a gradient that is its own sample.
pub const LENGTHS: [usize; 12] = [0, 1, 2, 15, 16, 17, 1000, 65_535, 65_536, 65_537, 131_073, 200_003];

/// How many to keep of `n`.
pub fn counts(n: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 2, n / 1000, n / 100, n / 10, n / 2, n.saturating_sub(1), n];
    counts.retain(|k| *k <= n);
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn failed(label: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{label}: {e}")
}

fn same<T: PartialEq + std::fmt::Debug>(label: &str, what: &str, got: &[T], expected: &[T]) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
    Err(format!("{label}: {what} differs first at {at}: {:?}, expected {:?}", got.get(at), expected.get(at)))
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Every count of every input of a length: the entries are the oracle's, their bits the gradient's.
pub fn against_oracle(device: &Device, fill: Fill, n: usize) -> Outcome {
    counts_against_oracle(device, fill, n, &counts(n))
}

/// The same of some counts.
pub fn counts_against_oracle(device: &Device, fill: Fill, n: usize, counts: &[usize]) -> Outcome {
    let x = (fill.1)(n);
    let mut compared = 0;
    for &k in counts {
        let label = format!("top-{k} of {n}, {}", fill.0);
        let expected = largest(&x, k);
        let payload = device.encode_sparse(&TopK::count(k as u64), &x, seed()).map_err(failed(&label))?;
        same(&label, "the kept set", payload.indices(), &expected)?;
        let read = SparsePayload::from_bytes(payload.as_bytes()).map_err(|e| format!("{label}: {e}"))?;
        same(&label, "what was read", read.as_bytes(), payload.as_bytes())?;
        let mut dense = vec![0.0f32; n];
        expected.iter().for_each(|i| dense[*i as usize] = x[*i as usize]);
        let canonical = |v: &f32| if v.is_nan() { f32::from_bits(0x7fc0_0000) } else { *v };
        let expected: Vec<f32> = dense.iter().map(canonical).collect();
        let decoded = device.decode_sparse(&read).map_err(failed(&label))?;
        same(&label, "decoded", &bits(&decoded), &bits(&expected))?;
        let value_bits: Vec<u32> = payload.as_bytes()[payload.as_bytes().len() - 4 * k..]
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let kept: Vec<u32> = payload.indices().iter().map(|i| x[*i as usize].to_bits()).collect();
        same(&label, "values", &value_bits, &kept)?;
        compared += contraction(&label, &x, &dense, k)? + 4;
    }
    Ok(compared)
}

/// |x - C(x)|^2 <= (1 - k/n) |x|^2 (Stich et al. 2018), in f64, whose rounding over `n` terms is below n 2^-52.
fn contraction(label: &str, x: &[f32], kept: &[f32], k: usize) -> Outcome {
    if x.is_empty() || !x.iter().all(|v| v.is_finite()) {
        return Ok(0);
    }
    let square = |v: f64| v * v;
    let lost: f64 = x.iter().zip(kept).map(|(x, c)| square(f64::from(*x) - f64::from(*c))).sum();
    let all: f64 = x.iter().map(|v| square(f64::from(*v))).sum();
    let bound = (1.0 - k as f64 / x.len() as f64) * all;
    let rounding = all * x.len() as f64 * f64::EPSILON;
    if lost <= bound + rounding {
        Ok(1)
    } else {
        Err(format!("{label}: {lost} is lost, and the theorem allows {bound}"))
    }
}

/// Steps of feedback: what is kept is the oracle's of the sum, its values are the sum's bits, and the rest is the
/// residual.
pub fn feedback(device: &Device, fill: Fill, n: usize) -> Outcome {
    let x = (fill.1)(n);
    let mut residual = normal(n, 61);
    let mut compared = 0;
    for k in [n / 100, n / 3].into_iter().chain([n]) {
        let label = format!("top-{k} of {n} with feedback, {}", fill.0);
        let (sum, before) = (sums(&x, &residual), residual.clone());
        let payload = device
            .encode_sparse_with_feedback(&TopK::count(k as u64), &x, &mut residual, seed())
            .map_err(failed(&label))?;
        same(&label, "the kept set", payload.indices(), &largest(&sum, k))?;
        let sent: Vec<u32> = payload.as_bytes()[payload.as_bytes().len() - 4 * k..]
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let kept: Vec<u32> = payload.indices().iter().map(|i| sum[*i as usize].to_bits()).collect();
        same(&label, "values", &sent, &kept)?;
        let expected = left(sum, &before, payload.indices());
        same(&label, "residual", &bits(&residual), &bits(&expected))?;
        compared += 3;
    }
    Ok(compared)
}

/// The residual after a step with these sums, of which these entries were sent as they are: a step of which a sum is not
/// finite leaves it.
pub fn left(mut sums: Vec<f32>, before: &[f32], sent: &[u32]) -> Vec<f32> {
    if !sums.iter().all(|v| v.is_finite()) {
        return before.to_vec();
    }
    sent.iter().for_each(|i| sums[*i as usize] = 0.0);
    sums
}

/// A value as a selection sees it: every NaN is the one NaN.
pub fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value }
}

/// Gradient + residual, as a selection sees it.
pub fn sums(gradient: &[f32], residual: &[f32]) -> Vec<f32> {
    gradient.iter().zip(residual).map(|(g, e)| canonical(g + e)).collect()
}

/// Checks the CPU with every input, at lengths that selections tell apart.
pub fn with_every_input(check: impl Fn(&Device, &[f32], &str)) {
    let device = Device::cpu();
    for fill in FILLS {
        for n in [0, 1, 2, 17, 1000, 8193, 70_001] {
            check(&device, &(fill.1)(n), fill.0);
        }
    }
}

/// Checks the CPU with each width of its vectors, and the inputs at these places of [`FILLS`].
pub fn at_every_width(inputs: &[usize], check: impl Fn(&Device, &[f32], &str)) {
    for simd in Simd::ALL {
        let Ok(cpu) = Cpu::with_simd(simd) else { continue };
        let device = Device::from_cpu(cpu);
        for index in inputs {
            let fill = FILLS[*index];
            check(&device, &(fill.1)(20_011), fill.0);
        }
    }
}

/// f16 and bf16 gradients keep the bits that they have, and the same entries as their f32 values.
pub fn halves(device: &Device, n: usize) -> Outcome {
    let x = (FILLS[14].1)(n);
    let f16s: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
    let bf16s: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let wide: [Vec<f32>; 2] = [f16s.iter().map(|h| h.to_f32()).collect(), bf16s.iter().map(|h| h.to_f32()).collect()];
    let raw: [Vec<u16>; 2] = [f16s.iter().map(|h| h.to_bits()).collect(), bf16s.iter().map(|h| h.to_bits()).collect()];
    for ((gradient, wide), raw) in [Gradient::F16(&f16s), Gradient::Bf16(&bf16s)].into_iter().zip(wide).zip(raw) {
        let label = format!("top-k of {n} {}", gradient.dtype().name());
        let k = n / 50;
        let payload = device.encode_sparse(&TopK::count(k as u64), gradient, seed()).map_err(failed(&label))?;
        same(&label, "the kept set", payload.indices(), &largest(&wide, k))?;
        let bytes = payload.as_bytes();
        let sent: Vec<u16> =
            bytes[bytes.len() - 2 * k..].chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        let kept: Vec<u16> = payload.indices().iter().map(|i| raw[*i as usize]).collect();
        same(&label, "values", &sent, &kept)?;
    }
    Ok(4)
}

/// A tree of merges is the reference's, and what all nodes hold afterwards is what they held before.
pub fn merges(device: &Device, workers: usize, n: usize, k: usize) -> Outcome {
    let label = format!("{workers} workers merge top-{k} of {n}");
    // Small integers, so that every sum is exact and mass can be compared with equality.
    let mut random = Random(71);
    let mut gradients = vec![vec![0.0f32; n]; workers];
    gradients.iter_mut().flatten().for_each(|v| *v = (random.bits() % 200) as f32 - 100.0);
    let mut residuals = vec![vec![0.0f32; n]; workers];
    let codec = TopK::count(k as u64);
    let mut sent = Vec::new();
    for (gradient, residual) in gradients.iter().zip(&mut residuals) {
        sent.push(device.encode_sparse_with_feedback(&codec, gradient, residual, seed()).map_err(failed(&label))?);
    }
    let mut width = 1;
    while width < workers {
        for node in (0..workers - width).step_by(2 * width) {
            let (a, b) = (sent[node].clone(), sent[node + width].clone());
            let dense = |p: &SparsePayload| device.decode_sparse(p).map_err(failed(&label));
            let sum: Vec<f32> = dense(&a)?.iter().zip(dense(&b)?).map(|(a, b)| a + b).collect();
            let merged = device.merge_sparse(&codec, &a, &b, &mut residuals[node], seed()).map_err(failed(&label))?;
            // Zeros are not sent where the union has fewer than k; of the oracle's, those that the union has.
            let in_union = |i: &u32| a.indices().contains(i) || b.indices().contains(i);
            let expected: Vec<u32> = largest(&sum, k).into_iter().filter(in_union).collect();
            let got: Vec<u32> = merged.indices().iter().copied().filter(|i| sum[*i as usize] != 0.0).collect();
            let expected: Vec<u32> = expected.into_iter().filter(|i| sum[*i as usize] != 0.0).collect();
            same(&label, "the merged set", &got, &expected)?;
            sent[node] = merged;
        }
        width *= 2;
    }
    let update = device.decode_sparse(&sent[0]).map_err(failed(&label))?;
    for i in 0..n {
        let before: f32 = gradients.iter().map(|g| g[i]).sum();
        let after: f32 = residuals.iter().map(|r| r[i]).sum::<f32>() + update[i];
        if before != after {
            return Err(format!("{label}: element {i} summed to {before}, and {after} is left of it"));
        }
    }
    Ok(n as u64)
}

/// Values rounded or quantized: the same entries; the payload of values is the quantizer's own.
pub fn quantized(device: &Device, n: usize) -> Outcome {
    let all: [Quantizer; 10] = [
        Qsgd::bits(8).into(),
        Uniform::bits(4).bucket(32).into(),
        OneBit::new().whole_tensor().without_feedback().into(),
        Sign::new().without_feedback().into(),
        Ternary::new().elias().into(),
        Ternary::nearest(1.5).without_feedback().base3().into(),
        Float::e4m3().scaled().into(),
        Tree::new().into(),
        Natural::compression().into(),
        Quantile::levels(64).bucket(256).into(),
    ];
    all.into_iter().try_fold(0, |checked, codec| Ok(checked + quantized_by(device, n, codec)?))
}

fn quantized_by(device: &Device, n: usize, codec: Quantizer) -> Outcome {
    let (x, k) = (normal(n, 81), n / 20);
    let label = format!("top-{k} of {n}, {codec:?}");
    let payload = device.encode_sparse(&TopK::count(k as u64).then(codec), &x, seed()).map_err(failed(&label))?;
    let indices = largest(&x, k);
    same(&label, "the kept set", payload.indices(), &indices)?;
    let values: Vec<f32> = indices.iter().map(|i| x[*i as usize]).collect();
    let expected = device.encode(&codec, &values, seed()).map_err(failed(&label))?;
    let tail = payload.as_bytes().len() - expected.as_bytes().len();
    same(&label, "values", &payload.as_bytes()[tail..], expected.as_bytes())?;
    let inner = Payload::from_bytes(&payload.as_bytes()[tail..]).map_err(|e| format!("{label}: {e}"))?;
    let mut dense = vec![0.0; n];
    let decoded = device.decode(&inner).map_err(failed(&label))?;
    indices.iter().zip(decoded).for_each(|(i, v)| dense[*i as usize] = v);
    same(&label, "decoded", &bits(&device.decode_sparse(&payload).map_err(failed(&label))?), &bits(&dense))?;
    Ok(3)
}
