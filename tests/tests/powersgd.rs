//! PowerSGD on the CPU: the properties that the literature proves, the same bits at every width and thread count, state, bad input.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::{Device, Error, LowRankState, Matrix, NonFinite, PowerSgd, Seed};
use gradwire_tests::cases::{self, Random};
use gradwire_tests::oracle::powersgd::Dense;

/// Half the distance of binary32 numbers about 1.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// What rounding may add to |M - M^|, as a part of |M|.
///
/// An entry of a factor is a sum of at most `c` terms in binary32 (16 lanes of at most 128 along a row, at most 512 down a
/// slab; then binary64), so a factor is off by at most c U |M| sqrt(r). P is off by that, Q by that again, orthonormal columns
/// and the r terms of an entry of L R^T by less: four times that is a bound on their sum.
fn rounding(n: usize, m: usize, r: usize) -> f64 {
    let c = m.div_ceil(16).min(128).max(n.min(512)) + 2;
    4.0 * c as f64 * U * (r as f64).sqrt()
}

fn compress_all(rank: u32) -> PowerSgd {
    PowerSgd::rank(rank).min_compression(0.0)
}

fn state(codec: PowerSgd, n: usize, m: usize) -> LowRankState {
    codec.state(&[Matrix::new(n as u64, m as u64)], Seed::new(7)).expect("valid")
}

/// A step of a single worker.
fn step(device: &Device, state: &mut LowRankState, gradient: &[f32]) -> Vec<f32> {
    let mut output = vec![f32::NAN; gradient.len()];
    device.low_rank_step(state, gradient, &mut output, |_| {}).expect("valid");
    output
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Standard normal entries.
fn normal(n: usize, m: usize, seed: u64) -> Dense {
    let mut random = Random(seed);
    let x: Vec<f64> = (0..n * m).map(|_| random.normal()).collect();
    Dense { n, m, x }
}

/// Random directions with these singular values, rounded to f32.
fn with_values(n: usize, m: usize, values: &[f64], seed: u64) -> Vec<f32> {
    let (u, v) = (normal(n, values.len(), seed).orthonormal(), normal(m, values.len(), seed + 1).orthonormal());
    let scaled = Dense::new(n, values.len(), |i, k| u.at(i, k) * values[k]);
    scaled.times(&v.t()).x.iter().map(|v| *v as f32).collect()
}

const SHAPES: [(usize, usize); 8] = [(1, 2), (3, 5), (16, 16), (8, 33), (65, 47), (130, 1), (513, 20), (9, 2100)];

#[test]
fn a_matrix_of_low_rank_comes_back() {
    let device = Device::cpu();
    for (n, m) in SHAPES.into_iter().filter(|(_, m)| *m > 1) {
        for r in [1, 2, 3, 5, 8, 32].into_iter().filter(|r| *r <= n.min(m)) {
            let values: Vec<f64> = (0..r).map(|k| 1.0 / (1.0 + k as f64)).collect();
            let x = with_values(n, m, &values, 3);
            let dense = Dense::of(n, m, &x);
            let mut state = state(compress_all(r as u32).without_feedback(), n, m);
            // From a seeded factor Q, |M - M^| is that of P over the least singular value of V^T Q. For one of normal entries
            // that is below 1 / (10 sqrt(m r)) once in ten seeds, and this is one seed.
            let generic = 10.0 * ((m * r) as f64).sqrt();
            let lost = dense.minus(&Dense::of(n, m, &step(&device, &mut state, &x))).norm() / dense.norm();
            assert!(lost <= rounding(n, m, r) * generic, "{n} x {m}, rank {r}: {lost}");
            // The second starts from the right directions.
            let lost = dense.minus(&Dense::of(n, m, &step(&device, &mut state, &x))).norm() / dense.norm();
            assert!(lost <= rounding(n, m, r), "{n} x {m}, rank {r}, warm: {lost}");
        }
    }
}

/// Inputs on which an orthonormal basis is hard to find.
fn hard(n: usize, m: usize) -> Vec<(&'static str, Vec<f32>)> {
    let at = |of: &dyn Fn(usize, usize) -> f32| (0..n * m).map(|e| of(e / m, e % m)).collect::<Vec<f32>>();
    let least = n.min(m);
    let ill = |kappa: f64| {
        let values: Vec<f64> = (0..least).map(|k| kappa.powf(-(k as f64) / (least as f64 - 1.0).max(1.0))).collect();
        with_values(n, m, &values, 5)
    };
    vec![
        ("zero", vec![0.0; n * m]),
        ("one-hot", at(&|i, j| if (i, j) == (n / 2, m / 3) { 5.0 } else { 0.0 })),
        ("constant", vec![-0.25; n * m]),
        ("rank 1", at(&|i, j| (i as f32 + 1.0) * (j as f32 - 3.0))),
        ("normal", cases::normal(n * m, 11)),
        ("condition 1e3", ill(1e3)),
        ("condition 1e6", ill(1e6)),
        ("huge", cases::normal(n * m, 12).iter().map(|v| v * 1e30).collect()),
        ("tiny", cases::normal(n * m, 13).iter().map(|v| v * 1e-30).collect()),
    ]
}

#[test]
fn factors_are_orthonormal_or_zero_and_nothing_grows() {
    let device = Device::cpu();
    for (n, m) in SHAPES.into_iter().filter(|(_, m)| *m > 1) {
        for r in [1, 2, 4, 7, 32].into_iter().filter(|r| *r <= n.min(m)) {
            for (name, x) in hard(n, m) {
                let mut state = state(compress_all(r as u32).without_feedback(), n, m);
                for round in 0..3 {
                    let output = step(&device, &mut state, &x);
                    let [left, _] = state.factors_of(0).expect("compressed");
                    let left = Dense::columns(n, &left);
                    let gram = left.t().times(&left);
                    let mut zeros = 0;
                    for a in 0..r {
                        zeros += usize::from(gram.at(a, a) == 0.0);
                        for b in 0..r {
                            let expected = if a == b && gram.at(a, a) != 0.0 { 1.0 } else { 0.0 };
                            // Entries rounded to binary32 are off by U each, so a product of two unit columns by 2 U; the last sweep adds
                            // 2^-26. Together below 4 U.
                            let off = (gram.at(a, b) - expected).abs();
                            assert!(off <= 4.0 * U, "{n} x {m}, rank {r}, {name}, step {round}: {off:e} at {a}, {b}");
                        }
                    }
                    assert!(name != "zero" || zeros == r);
                    assert!(name != "normal" || zeros == 0, "{n} x {m}, rank {r}");
                    let (dense, output) = (Dense::of(n, m, &x), Dense::of(n, m, &output));
                    let slack = 1.0 + rounding(n, m, r);
                    assert!(dense.minus(&output).norm() <= dense.norm() * slack, "{n} x {m}, rank {r}, {name}");
                    assert!(output.norm() <= dense.norm() * slack, "{n} x {m}, rank {r}, {name}");
                }
            }
        }
    }
}

#[test]
fn a_step_is_the_oracles() {
    let device = Device::cpu();
    for (n, m, r) in [(40, 30, 3), (17, 70, 4), (600, 33, 2), (10, 4200, 5)] {
        let mut state = state(compress_all(r as u32), n, m);
        let first = cases::normal(n * m, 1);
        step(&device, &mut state, &first);
        for seed in 2..5 {
            let gradient = cases::normal(n * m, seed);
            let [_, right] = state.factors_of(0).expect("compressed");
            let before = state.residual().expect("idle");
            let output = Dense::of(n, m, &step(&device, &mut state, &gradient));
            let sum = Dense::new(n, m, |i, j| f64::from(gradient[i * m + j] + before[i * m + j]));
            let p = sum.times(&Dense::columns(m, &right).orthonormal()).orthonormal();
            let expected = p.times(&sum.t().times(&p).t());
            // The condition of P, times what rounding does to it. Entries of the gradient are normal, so its 5 largest singular
            // values are alike: that of M Q is at most sqrt(n m) / (sqrt(n) - sqrt(r)) / ..., and 10 is far above.
            let off = expected.minus(&output).norm() / sum.norm();
            assert!(off <= 10.0 * rounding(n, m, r), "{n} x {m}, rank {r}: {off}");
            let left = Dense::of(n, m, &state.residual().expect("idle"));
            let rest = sum.minus(&output).minus(&left).norm() / sum.norm();
            assert!(rest <= 2.0 * U, "residual = M - M^ with one rounding: {rest}");
        }
    }
}

#[test]
fn energy_never_falls_and_reaches_the_best() {
    let device = Device::cpu();
    for one_sided in [false, true] {
        for (n, m, r) in [(24, 18, 3), (18, 40, 4), (30, 30, 1)] {
            let values: Vec<f64> = (0..n.min(m)).map(|k| 0.8f64.powi(k as i32)).collect();
            let x = with_values(n, m, &values, 21);
            let dense = Dense::of(n, m, &x);
            let found = dense.singular_values();
            let best = found[..r].iter().map(|v| v * v).sum::<f64>();
            let codec = compress_all(r as u32).without_feedback();
            let mut state = state(if one_sided { codec.one_sided() } else { codec }, n, m);
            let mut last = 0.0;
            let slack = rounding(n, m, r) * dense.norm().powi(2);
            for step_of in 0..60 {
                let output = Dense::of(n, m, &step(&device, &mut state, &x));
                // |P^T M|^2 = |M^|^2, since P is orthonormal.
                let energy = output.norm().powi(2);
                assert!(energy >= last - slack, "{n} x {m}, rank {r}, step {step_of}: {energy} after {last}");
                assert!(energy <= best + slack, "{n} x {m}, rank {r}: {energy} of {best}");
                last = energy;
            }
            // The gap closes by (0.8^2)^2 a step, or half as fast: 60 steps leave 0.8^120 of it.
            assert!(last >= best - slack - 0.8f64.powi(100) * best, "{n} x {m}, rank {r}: {last} of {best}");
        }
    }
}

/// Steps of several workers with a mean in f64, as a collective would; the outputs, which must be the same.
fn together(device: &Device, states: &mut [LowRankState], gradients: &[Vec<f32>]) -> Vec<f32> {
    let rounds = states[0].rounds();
    let mut factors = Vec::new();
    for (state, gradient) in states.iter_mut().zip(gradients) {
        let mut factor = vec![0.0; state.factor_len()];
        device.begin_low_rank(state, gradient, &mut factor).expect("valid");
        factors.push(factor);
    }
    for round in 1..=rounds {
        let mean: Vec<f32> = (0..factors[0].len())
            .map(|i| (factors.iter().map(|f| f64::from(f[i])).sum::<f64>() / factors.len() as f64) as f32)
            .collect();
        if round == rounds {
            let finish = |state: &mut LowRankState| {
                let mut output = vec![0.0; state.elements()];
                device.finish_low_rank(state, &mean, &mut output).expect("valid");
                output
            };
            let outputs: Vec<Vec<f32>> = states.iter_mut().map(finish).collect();
            assert!(outputs.iter().all(|output| bits(output) == bits(&outputs[0])), "workers disagree");
            return outputs[0].clone();
        }
        for (state, factor) in states.iter_mut().zip(&mut factors) {
            let mut next = vec![0.0; state.factor_len()];
            device.advance_low_rank(state, &mean, &mut next).expect("valid");
            *factor = next;
        }
    }
    unreachable!("a step has a last round")
}

#[test]
fn factors_are_linear_in_the_gradient() {
    let device = Device::cpu();
    let (n, m, r) = (48, 36, 4);
    let gradients: Vec<Vec<f32>> = (0..3).map(|w| cases::normal(n * m, 30 + w)).collect();
    let mean: Vec<f32> = (0..n * m).map(|i| gradients.iter().map(|g| g[i]).sum::<f32>() / 3.0).collect();
    for codec in [compress_all(r as u32), compress_all(r as u32).iterations(2), compress_all(r as u32).one_sided()] {
        let mut workers = vec![state(codec, n, m); 3];
        let output = Dense::of(n, m, &together(&device, &mut workers, &gradients));
        let alone = Dense::of(n, m, &step(&device, &mut state(codec, n, m), &mean));
        // As against the oracle: ten for the condition of P.
        let off = output.minus(&alone).norm() / alone.norm();
        assert!(off <= 10.0 * rounding(n, m, r), "{codec:?}: {off}");
    }
}

#[test]
fn residuals_telescope() {
    let device = Device::cpu();
    let tensors = [Matrix::new(40, 20), Matrix::vector(33), Matrix::new(12, 64)];
    let elements = 40 * 20 + 33 + 12 * 64;
    for codec in [PowerSgd::rank(2), PowerSgd::rank(2).one_sided(), PowerSgd::rank(1).iterations(3)] {
        let mut states = vec![codec.state(&tensors, Seed::new(3)).expect("valid"); 2];
        assert_eq!([0, 1, 2, 3].map(|t| states[0].is_compressed(t)), [Some(true), Some(false), Some(true), None]);
        let (mut given, mut sent) = (vec![0.0f64; elements], vec![0.0f64; elements]);
        let steps = 20;
        for t in 0..steps {
            let gradients: Vec<Vec<f32>> = (0..2).map(|w| cases::normal(elements, 100 + 2 * t + w)).collect();
            let output = together(&device, &mut states, &gradients);
            for i in 0..elements {
                given[i] += f64::from(gradients[0][i]) / 2.0 + f64::from(gradients[1][i]) / 2.0;
                sent[i] += f64::from(output[i]);
            }
        }
        let residuals: Vec<Vec<f32>> = states.iter().map(|s| s.residual().expect("idle")).collect();
        let largest = cases::normal(elements, 100).iter().fold(0.0f32, |top, v| top.max(v.abs()));
        for i in 0..elements {
            let left = f64::from(residuals[0][i]) / 2.0 + f64::from(residuals[1][i]) / 2.0;
            // Each step rounds G + E and M - M^, by U of what may have grown to the sum of all gradients.
            let bound = 2.0 * steps as f64 * U * f64::from(largest) * 2.0 * steps as f64;
            assert!((given[i] - sent[i] - left).abs() <= bound, "{codec:?}, element {i}");
        }
        assert!(residuals[0].iter().any(|v| *v != 0.0), "feedback has something to keep");
    }
}

#[test]
fn bytes_are_as_promised() {
    let tensors = [Matrix::new(100, 50), Matrix::vector(100), Matrix::new(3, 3), Matrix::of(&[64, 3, 7, 7])];
    for r in [1u64, 4] {
        let state = PowerSgd::rank(r as u32).state(&tensors, Seed::new(1)).expect("valid");
        let of = |n: u64, m: u64| 4 * r * (n + m);
        assert_eq!(state.step_bytes() as u64, of(100, 50) + of(64, 147) + 4 * (100 + 9));
        assert_eq!(state.factor_len() as u64, r * (100 + 64));
    }
    // (100 + 50) 4 rate < 5000 from 8.33 on no more.
    let compressed = |rate| {
        let state = PowerSgd::rank(4).min_compression(rate).state(&tensors[..1], Seed::new(1)).expect("valid");
        state.is_compressed(0)
    };
    assert_eq!((compressed(8.3), compressed(8.4)), (Some(true), Some(false)));
}

fn devices() -> Vec<Device> {
    Simd::ALL.into_iter().filter_map(|simd| Cpu::with_simd(simd).ok()).map(Device::from_cpu).collect()
}

/// A model whose tensors end at every remainder there is, with rows and columns of more than a slab and a panel.
const MODEL: [Matrix; 9] = [
    Matrix::new(65, 47),
    Matrix::vector(13),
    Matrix::new(1100, 33),
    Matrix::new(9, 5000),
    Matrix::new(0, 7),
    Matrix::new(31, 1),
    Matrix::new(700, 2049),
    Matrix::new(16, 2048),
    Matrix::new(2, 2),
];

fn model_run(device: &Device, codec: PowerSgd, steps: u64) -> (Vec<u32>, Vec<u8>) {
    let elements = MODEL.iter().map(Matrix::elements).sum::<u64>() as usize;
    let mut state = codec.state(&MODEL, Seed::new(9)).expect("valid");
    let mut outputs = Vec::new();
    for t in 0..steps {
        outputs.extend(bits(&step(device, &mut state, &cases::normal(elements, 60 + t))));
    }
    (outputs, state.to_bytes().expect("idle"))
}

#[test]
fn the_same_bits_at_every_width_and_thread_count() {
    for codec in
        [PowerSgd::rank(5).min_compression(1.0), PowerSgd::rank(4).one_sided(), PowerSgd::rank(3).iterations(2)]
    {
        let expected = model_run(&Device::cpu(), codec, 3);
        for device in devices() {
            assert!(model_run(&device, codec, 3) == expected, "{codec:?} on {device}");
        }
        for threads in [1, 2, 3, 8] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            let got = pool.install(|| model_run(&Device::cpu(), codec, 3));
            assert!(got == expected, "{codec:?} with {threads} threads");
        }
    }
}

#[test]
fn halves_are_widened() {
    let device = Device::cpu();
    let (n, m) = (60, 50);
    let wide = cases::normal(n * m, 4);
    let f16s: Vec<half::f16> = wide.iter().map(|v| half::f16::from_f32(*v)).collect();
    let bf16s: Vec<half::bf16> = wide.iter().map(|v| half::bf16::from_f32(*v)).collect();
    let tensors = [Matrix::new(n as u64, m as u64 - 1), Matrix::vector(n as u64)];
    let fresh = || PowerSgd::rank(3).state(&tensors, Seed::new(7)).expect("valid");
    let run = |gradient: gradwire::Gradient<'_>| {
        let (mut state, mut output) = (fresh(), vec![0.0; n * m]);
        device.low_rank_step(&mut state, gradient, &mut output, |_| {}).expect("valid");
        output
    };
    let widened: Vec<f32> = f16s.iter().map(|v| v.to_f32()).collect();
    assert_eq!(run((&f16s).into()), run((&widened).into()));
    let widened: Vec<f32> = bf16s.iter().map(|v| v.to_f32()).collect();
    assert_eq!(run((&bf16s).into()), run((&widened).into()));
}

#[test]
fn a_dead_direction_is_seeded_again() {
    let device = Device::cpu();
    let (n, m, r) = (40, 30, 4);
    let mut state = state(compress_all(r as u32).without_feedback(), n, m);
    // One entry: the columns of P are multiples of one another to the last bit, and all but the first become zeros.
    let mut thin = vec![0.0; n * m];
    thin[7 * m + 5] = 5.0;
    for _ in 0..3 {
        step(&device, &mut state, &thin);
        let [left, _] = state.factors_of(0).expect("compressed");
        assert!(left[n..].iter().all(|v| *v == 0.0));
    }
    for gradient in [with_values(n, m, &[4.0, 3.0, 2.0, 1.0], 8), vec![0.0; n * m]] {
        step(&device, &mut state, &gradient);
        let output = Dense::of(n, m, &step(&device, &mut state, &gradient));
        let dense = Dense::of(n, m, &gradient);
        // Four directions are found again; fewer would leave at least the least of the values.
        assert!(dense.minus(&output).norm() <= 1e-3 * dense.norm(), "{}", dense.minus(&output).norm());
    }
}

#[test]
fn nan_and_infinity_poison_a_matrix_and_pass() {
    let device = Device::cpu();
    let tensors = [Matrix::new(40, 30), Matrix::new(20, 50), Matrix::vector(10)];
    let elements = 1200 + 1000 + 10;
    for codec in [PowerSgd::rank(3), PowerSgd::rank(3).one_sided(), PowerSgd::rank(2).iterations(2)] {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut states = vec![codec.state(&tensors, Seed::new(3)).expect("valid"); 2];
            let clean: Vec<Vec<f32>> = (0..2).map(|w| cases::normal(elements, 70 + w)).collect();
            together(&device, &mut states, &clean);
            let before: Vec<Vec<f32>> = states.iter().map(|s| s.residual().expect("idle")).collect();
            let mut spoiled = clean.clone();
            spoiled[1][777] = odd;
            spoiled[0][2205] = odd;
            let output = together(&device, &mut states, &spoiled);
            assert!(output[..1200].iter().all(|v| v.is_nan()), "{codec:?}: the matrix is NaN on every worker");
            assert!(output[1200..2205].iter().all(|v| v.is_finite()), "{codec:?}: no other is touched");
            assert!(!output[2205].is_finite() && output[2206..].iter().all(|v| v.is_finite()));
            for (w, state) in states.iter().enumerate() {
                let after = state.residual().expect("idle");
                for i in 0..1200 {
                    let expected = if (w, i) == (1, 777) { before[w][i] } else { before[w][i] + clean[w][i] };
                    assert_eq!(after[i], expected, "{codec:?}, worker {w}, element {i}: nothing was sent");
                }
                assert!(after.iter().all(|v| v.is_finite()));
            }
            let output = together(&device, &mut states, &clean);
            assert!(output.iter().all(|v| v.is_finite()), "{codec:?}: it passes");
        }
    }
}

#[test]
fn a_failed_call_leaves_the_state() {
    let device = Device::cpu();
    let tensors = [Matrix::new(40, 30), Matrix::vector(10)];
    let codec = PowerSgd::rank(3).non_finite(NonFinite::Error);
    let mut state = codec.state(&tensors, Seed::new(3)).expect("valid");
    let gradient = cases::normal(1210, 5);
    step(&device, &mut state, &gradient);
    let before = state.clone();
    let (mut p, mut out) = (vec![0.0; 120], vec![0.0; 1210]);
    for (at, odd) in [(0, f32::NAN), (1199, f32::INFINITY), (1203, f32::NEG_INFINITY)] {
        let mut spoiled = gradient.clone();
        spoiled[at] = odd;
        spoiled[1209] = f32::NAN;
        let error = device.begin_low_rank(&mut state, &spoiled, &mut p).expect_err("not finite");
        assert!(matches!(error, Error::NotFinite { index } if index == at as u64), "{error:?}");
        assert_eq!(state, before);
    }
    let error = device.begin_low_rank(&mut state, &gradient[1..], &mut p).expect_err("short");
    assert!(matches!(error, Error::Length { what: "gradient", found: 1209, expected: 1210, .. }), "{error:?}");
    let error = device.begin_low_rank(&mut state, &gradient, &mut p[1..]).expect_err("short");
    assert!(matches!(error, Error::Length { what: "factor", found: 119, expected: 120, .. }), "{error:?}");
    let error = device.advance_low_rank(&mut state, &p.clone(), &mut p).expect_err("out of turn");
    assert!(matches!(error, Error::Order { expected: "begin_low_rank", .. }), "{error:?}");
    let error = device.finish_low_rank(&mut state, &p, &mut out).expect_err("out of turn");
    assert!(matches!(error, Error::Order { expected: "begin_low_rank", .. }), "{error:?}");
    assert_eq!(state, before);

    device.begin_low_rank(&mut state, &gradient, &mut p).expect("valid");
    let begun = state.clone();
    let mut q = vec![0.0; 100];
    assert_eq!(state.factor_len(), q.len());
    assert!(matches!(device.begin_low_rank(&mut state, &gradient, &mut p), Err(Error::Order { .. })));
    assert!(matches!(device.finish_low_rank(&mut state, &p, &mut out), Err(Error::Order { .. })));
    assert!(matches!(state.to_bytes(), Err(Error::Order { .. })));
    assert!(matches!(state.residual(), Err(Error::Order { .. })));
    let error = device.advance_low_rank(&mut state, &p[1..], &mut q).expect_err("short");
    assert!(matches!(error, Error::Length { what: "reduced factor", found: 119, expected: 120, .. }), "{error:?}");
    assert!(matches!(device.advance_low_rank(&mut state, &p, &mut q[1..]), Err(Error::Length { what: "factor", .. })));
    let mut spoiled = p.clone();
    spoiled[7] = f32::NAN;
    let error = device.advance_low_rank(&mut state, &spoiled, &mut q).expect_err("not finite");
    assert!(matches!(error, Error::NotFiniteFactor { index: 7 }), "{error:?}");
    assert_eq!(state, begun);
    device.advance_low_rank(&mut state, &p, &mut q).expect("valid");
    let advanced = state.clone();
    assert!(matches!(device.finish_low_rank(&mut state, &q[1..], &mut out), Err(Error::Length { .. })));
    assert!(matches!(device.finish_low_rank(&mut state, &q, &mut out[1..]), Err(Error::Length { what: "output", .. })));
    assert_eq!(state, advanced);
    // Given up, nothing of the gradient is lost, and of what was kept nothing either.
    state.abandon();
    let (kept, after) = (before.residual().expect("idle"), state.residual().expect("idle"));
    assert!((0..1210).all(|i| after[i] == kept[i] + gradient[i]));
    let twice = step(&device, &mut state, &vec![0.0; 1210]);
    assert!((1200..1210).all(|i| twice[i] == gradient[i]), "a vector that was not sent comes with the next step");
}

#[test]
fn settings_out_of_range_are_typed_errors() {
    let tensors = [Matrix::new(40, 30), Matrix::new(2, 1000)];
    let make = |codec: PowerSgd| codec.state(&tensors, Seed::new(1));
    assert!(matches!(make(PowerSgd::rank(0)), Err(Error::Rank { rank: 0, most: 32, tensor: None })));
    assert!(matches!(make(PowerSgd::rank(33)), Err(Error::Rank { rank: 33, most: 32, tensor: None })));
    let error = make(compress_all(3)).expect_err("a matrix of two rows");
    assert!(matches!(error, Error::Rank { rank: 3, most: 2, tensor: Some(1) }), "{error:?}");
    make(PowerSgd::rank(3)).expect("by the published rule it is not compressed");
    assert!(matches!(make(PowerSgd::rank(1).iterations(0)), Err(Error::Setting { .. })));
    for rate in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(make(PowerSgd::rank(1).min_compression(rate)), Err(Error::Setting { .. })));
    }
    let huge = [Matrix::new(u64::MAX, u64::MAX), Matrix::vector(u64::MAX)];
    assert!(matches!(PowerSgd::rank(1).state(&huge, Seed::new(1)), Err(Error::TooLong { .. })));
    let message = make(compress_all(3)).expect_err("as above").to_string();
    assert_eq!(message, "a rank of 1 to 2 is possible at tensor 1; got 3");
}

#[test]
fn a_saved_state_goes_on_with_the_same_bits() {
    let device = Device::cpu();
    let elements = MODEL.iter().map(Matrix::elements).sum::<u64>() as usize;
    for codec in [PowerSgd::rank(2), PowerSgd::rank(2).one_sided()] {
        let mut state = codec.state(&MODEL, Seed::new(1 << 40).step(3).tensor(2)).expect("valid");
        for t in 0..3 {
            step(&device, &mut state, &cases::normal(elements, t));
        }
        let bytes = state.to_bytes().expect("idle");
        let mut restored = codec.restore(&MODEL, &bytes).expect("as written");
        assert_eq!(restored.to_bytes().expect("idle"), bytes);
        assert_eq!(restored.steps(), 3);
        let x = cases::normal(elements, 9);
        assert_eq!(bits(&step(&device, &mut restored, &x)), bits(&step(&device, &mut state, &x)));
    }
}

#[test]
fn hostile_states_are_refused_or_mean_something() {
    let device = Device::cpu();
    let tensors = [Matrix::new(8, 12), Matrix::vector(5)];
    let codec = PowerSgd::rank(2);
    let mut state = codec.state(&tensors, Seed::new(1)).expect("valid");
    step(&device, &mut state, &cases::normal(101, 1));
    let bytes = state.to_bytes().expect("idle");
    for len in 0..bytes.len() {
        assert!(matches!(codec.restore(&tensors, &bytes[..len]), Err(Error::State(_))), "{len} bytes");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(matches!(codec.restore(&tensors, &damaged), Err(Error::State(_))), "byte {at}");
    }
    let mut random = Random(5);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..50_000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random.bits() % 3 {
            let at = (random.bits() as usize) % damaged.len();
            damaged[at] = random.bits() as u8;
        }
        // With the checksum that they should have, so that what is behind it is looked at.
        let body = damaged.len() - 4;
        let sum = crc(&damaged[..body]);
        damaged[body..].copy_from_slice(&sum.to_le_bytes());
        match codec.restore(&tensors, &damaged) {
            Err(Error::State(_) | Error::Shape { .. }) => refused += 1,
            Err(other) => panic!("{other:?}"),
            Ok(mut state) => {
                accepted += 1;
                assert_eq!(state.to_bytes().expect("idle").len(), bytes.len());
                if accepted % 100 == 0 {
                    step(&device, &mut state, &cases::normal(101, 2));
                }
            }
        }
    }
    assert!(refused > 1000 && accepted > 1000, "{refused} refused, {accepted} accepted");
    let shape = |tensors: &[Matrix]| codec.restore(tensors, &bytes).expect_err("another model");
    assert!(matches!(shape(&tensors[..1]), Error::Shape { what: "number of tensors", found: 2, expected: 1, .. }));
    let other = shape(&[Matrix::new(12, 8), Matrix::vector(5)]);
    assert!(matches!(other, Error::Shape { what: "number of rows", tensor: Some(0), found: 8, expected: 12 }));
    let other = PowerSgd::rank(1).restore(&tensors, &bytes).expect_err("another rank");
    assert!(matches!(other, Error::Shape { what: "rank", tensor: None, found: 2, expected: 1 }), "{other:?}");
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |mut crc, byte| {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg()));
        crc
    })
}

#[test]
fn a_change_of_workers_keeps_the_sum_of_residuals() {
    let device = Device::cpu();
    let tensors = [Matrix::new(40, 30), Matrix::vector(10)];
    let codec = PowerSgd::rank(2);
    let mut states = vec![codec.state(&tensors, Seed::new(3)).expect("valid"); 3];
    for t in 0..3 {
        let gradients: Vec<Vec<f32>> = (0..3).map(|w| cases::normal(1210, 10 * t + w)).collect();
        together(&device, &mut states, &gradients);
    }
    let total = |states: &[LowRankState]| {
        let residuals: Vec<Vec<f32>> = states.iter().map(|s| s.residual().expect("idle")).collect();
        (0..1210).map(|i| residuals.iter().map(|r| f64::from(r[i])).sum::<f64>()).collect::<Vec<f64>>()
    };
    let before = total(&states);
    let leaving = states.pop().expect("three");
    states[0].absorb(&leaving).expect("the same model");
    let joining = states[1].joining().expect("idle");
    states.extend([joining.clone(), joining]);
    let after = total(&states);
    assert!(before.iter().zip(&after).all(|(b, a)| (a - b).abs() <= 4.0 * U * 10.0 * 0.1));
    assert!(before.iter().any(|v| *v != 0.0));
    // They go on together.
    let gradients: Vec<Vec<f32>> = (0..4).map(|w| cases::normal(1210, 90 + w)).collect();
    together(&device, &mut states, &gradients);
    let other = PowerSgd::rank(2).state(&tensors[..1], Seed::new(3)).expect("valid");
    let kept = states[0].clone();
    assert!(matches!(states[0].absorb(&other), Err(Error::Shape { .. })));
    assert_eq!(states[0], kept);
}
