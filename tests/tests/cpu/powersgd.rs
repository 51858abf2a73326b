//! PowerSGD on the CPU: the properties that the literature proves, and the same bits at every width and thread count.

use gradwire::{BackendKind, Device, Dtype, Gradient, Matrix, PowerSgd, Seed};
use gradwire_tests::cases;
use gradwire_tests::hostile::devices;
use gradwire_tests::low_rank::{MODEL, alone, bits, compress_all, state, step, together, with_values};
use gradwire_tests::oracle::powersgd::Dense;
use gradwire_tests::{Depth, is_ptx_machine};

/// Half the distance of binary32 numbers about 1.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// What rounding may add to |M - M^|, as a part of |M|.
///
/// An entry of a factor is a sum of at most `c` terms in binary32 (16 lanes of at most 128 along a row, at most 512
/// down a slab; then binary64), so a factor is off by at most c U |M| sqrt(r). P is off by that, Q by that again,
/// orthonormal columns and the r terms of an entry of L R^T by less: four times that is a bound on their sum.
fn rounding(n: usize, m: usize, r: usize) -> f64 {
    let c = m.div_ceil(16).min(128).max(n.min(512)) + 2;
    4.0 * c as f64 * U * (r as f64).sqrt()
}

const SHAPES: [(usize, usize); 8] = [(1, 2), (3, 5), (16, 16), (8, 33), (65, 47), (130, 1), (513, 20), (9, 2100)];

fn a_matrix_of_low_rank_comes_back(device: &Device) {
    for (n, m) in SHAPES.into_iter().filter(|(_, m)| *m > 1) {
        for r in [1, 2, 3, 5, 8, 12, 32].into_iter().filter(|r| *r <= n.min(m)) {
            let values: Vec<f64> = (0..r).map(|k| 1.0 / (1.0 + k as f64)).collect();
            let x = with_values(n, m, &values, 3);
            let dense = Dense::of(n, m, &x);
            let mut state = state(compress_all(r as u32).without_feedback(), n, m);
            // From a seeded factor Q, |M - M^| is that of P over the least singular value of V^T Q. For one of normal
            // entries that is below 1 / (10 sqrt(m r)) once in ten seeds, and this is one seed.
            let generic = 10.0 * ((m * r) as f64).sqrt();
            let lost = dense.minus(&Dense::of(n, m, &step(device, &mut state, &x))).norm() / dense.norm();
            assert!(lost <= rounding(n, m, r) * generic, "{n} x {m}, rank {r}: {lost}");
            // The second starts from the right directions.
            let lost = dense.minus(&Dense::of(n, m, &step(device, &mut state, &x))).norm() / dense.norm();
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

fn factors_are_orthonormal_or_zero_and_nothing_grows(device: &Device) {
    // Which input it is, kernels tell by columns that come to zero alone. So a device that runs passes has a third of
    // the inputs in each shape, in turn with the rank, but in a whole sweep.
    let whole = device.kind() == BackendKind::Cpu || Depth::of_tests().sweeps();
    for (shape, (n, m)) in SHAPES.into_iter().filter(|(_, m)| *m > 1).enumerate() {
        for (rank, r) in [1, 2, 4, 7, 12, 32].into_iter().enumerate().filter(|(_, r)| *r <= n.min(m)) {
            let inputs = hard(n, m).into_iter().enumerate();
            for (_, (name, x)) in inputs.filter(|(input, _)| whole || (input + shape + rank) % 3 == 0) {
                let mut state = state(compress_all(r as u32).without_feedback(), n, m);
                for round in 0..3 {
                    let output = step(device, &mut state, &x);
                    let [left, _] = state.factors_of(0).expect("compressed");
                    let left = Dense::columns(n, &left);
                    let gram = left.t().times(&left);
                    let mut zeros = 0;
                    for a in 0..r {
                        zeros += usize::from(gram.at(a, a) == 0.0);
                        for b in 0..r {
                            let expected = if a == b && gram.at(a, a) != 0.0 { 1.0 } else { 0.0 };
                            // Entries rounded to binary32 are off by U each, so a product of two unit columns by 2 U.
                            // On the CPU the last sweep adds 2^-26; on CUDA it multiplies that by 1.55 at most.
                            // Together below 4 U. In WGSL an entry is rounded thrice, and what is taken off it twice
                            // more at most: 2 * 5 * 1.55.
                            let most = if device.kind() == BackendKind::Wgpu { 16.0 * U } else { 4.0 * U };
                            let off = (gram.at(a, b) - expected).abs();
                            assert!(off <= most, "{n} x {m}, rank {r}, {name}, step {round}: {off:e} at {a}, {b}");
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

fn a_step_is_the_oracles(device: &Device) {
    for (n, m, r) in [(40, 30, 3), (17, 70, 4), (600, 33, 2), (10, 4200, 5), (70, 90, 12), (200, 150, 32)] {
        let mut state = state(compress_all(r as u32), n, m);
        let first = cases::normal(n * m, 1);
        step(device, &mut state, &first);
        for seed in 2..5 {
            let gradient = cases::normal(n * m, seed);
            let [_, right] = state.factors_of(0).expect("compressed");
            let before = state.residual().expect("idle");
            let output = Dense::of(n, m, &step(device, &mut state, &gradient));
            let sum = Dense::new(n, m, |i, j| f64::from(gradient[i * m + j] + before[i * m + j]));
            let p = sum.times(&Dense::columns(m, &right).orthonormal()).orthonormal();
            let expected = p.times(&sum.t().times(&p).t());
            // The condition of P, times what rounding does to it. Entries of the gradient are normal, so its 5 largest
            // singular values are alike: that of M Q is at most sqrt(n m) / (sqrt(n) - sqrt(r)) / ..., and 10 is far
            // above.
            let off = expected.minus(&output).norm() / sum.norm();
            assert!(off <= 10.0 * rounding(n, m, r), "{n} x {m}, rank {r}: {off}");
            let left = Dense::of(n, m, &state.residual().expect("idle"));
            let rest = sum.minus(&output).minus(&left).norm() / sum.norm();
            assert!(rest <= 2.0 * U, "residual = M - M^ with one rounding: {rest}");
        }
    }
}

fn energy_never_falls_and_reaches_the_best(device: &Device) {
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
            // The gap closes by (0.8^2)^2 a step, or half as fast: 60 steps leave 0.8^120 of it, and 36 leave 0.8^72.
            let steps = if is_ptx_machine(device) && !Depth::of_tests().sweeps() { 36 } else { 60 };
            for step_of in 0..steps {
                let output = Dense::of(n, m, &step(device, &mut state, &x));
                // |P^T M|^2 = |M^|^2, since P is orthonormal.
                let energy = output.norm().powi(2);
                assert!(energy >= last - slack, "{n} x {m}, rank {r}, step {step_of}: {energy} after {last}");
                assert!(energy <= best + slack, "{n} x {m}, rank {r}: {energy} of {best}");
                last = energy;
            }
            assert!(last >= best - slack - 0.8f64.powi(steps * 5 / 3) * best, "{n} x {m}, rank {r}: {last} of {best}");
        }
    }
}

fn factors_are_linear_in_the_gradient(device: &Device) {
    let (n, m, r) = (48, 36, 4);
    let gradients: Vec<Vec<f32>> = (0..3).map(|w| cases::normal(n * m, 30 + w)).collect();
    let mean: Vec<f32> = (0..n * m).map(|i| gradients.iter().map(|g| g[i]).sum::<f32>() / 3.0).collect();
    for codec in [compress_all(r as u32), compress_all(r as u32).iterations(2), compress_all(r as u32).one_sided()] {
        let mut workers = vec![state(codec, n, m); 3];
        let output = Dense::of(n, m, &together(device, &mut workers, &gradients));
        let alone = Dense::of(n, m, &step(device, &mut state(codec, n, m), &mean));
        // As against the oracle: ten for the condition of P.
        let off = output.minus(&alone).norm() / alone.norm();
        assert!(off <= 10.0 * rounding(n, m, r), "{codec:?}: {off}");
    }
}

fn residuals_telescope(device: &Device) {
    let tensors = [Matrix::new(40, 20), Matrix::vector(33), Matrix::new(12, 64)];
    let elements = 40 * 20 + 33 + 12 * 64;
    for codec in [PowerSgd::rank(2), PowerSgd::rank(2).one_sided(), PowerSgd::rank(1).iterations(3)] {
        let mut states = vec![codec.state(&tensors, Seed::new(3)).expect("valid"); 2];
        assert_eq!([0, 1, 2, 3].map(|t| states[0].is_compressed(t)), [Some(true), Some(false), Some(true), None]);
        let (mut given, mut sent) = (vec![0.0f64; elements], vec![0.0f64; elements]);
        let steps = 20;
        for t in 0..steps {
            let gradients: Vec<Vec<f32>> = (0..2).map(|w| cases::normal(elements, 100 + 2 * t + w)).collect();
            let output = together(device, &mut states, &gradients);
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

/// Steps of a model: with normal entries, then with some that are not finite or overflow, then as before. All that is
/// computed, and the state.
fn model_run(device: &Device, codec: PowerSgd, dtype: Dtype, steps: u64) -> (Vec<u32>, Vec<u8>) {
    let elements = MODEL.iter().map(Matrix::elements).sum::<u64>() as usize;
    let mut state = codec.state(&MODEL, Seed::new(9)).expect("valid");
    let mut computed = Vec::new();
    for t in 0..steps {
        let mut x = cases::normal(elements, 60 + t);
        if t == 1 {
            // NaN of several bits beside infinities, so that it matters in which order two of them meet.
            let odd = [0x7fc0_0001, 0xffc0_0000, 0xff80_0001, 0x7f80_0000, 0xff80_0000].map(f32::from_bits);
            x.iter_mut().step_by(9973).zip(odd.iter().cycle()).for_each(|(v, odd)| *v = *odd);
            x[5..40].fill(f32::MAX);
        }
        let f16s: Vec<half::f16> = x.iter().map(|v| half::f16::from_f32(*v)).collect();
        let bf16s: Vec<half::bf16> = x.iter().map(|v| half::bf16::from_f32(*v)).collect();
        let gradient = match dtype {
            Dtype::F32 => Gradient::F32(&x),
            Dtype::F16 => Gradient::F16(&f16s),
            Dtype::Bf16 => Gradient::Bf16(&bf16s),
        };
        let mut output = vec![0.0; elements];
        let factors = |factor: &mut [f32]| {
            computed.extend(bits(factor));
            Ok::<_, gradwire::Error>(())
        };
        device.low_rank_step(&mut state, gradient, &mut output, factors).expect("valid");
        computed.extend(bits(&output));
    }
    let nans = computed.iter().filter(|bits| *bits & 0x7fff_ffff > 0x7f80_0000);
    assert!(steps < 2 || nans.clone().count() > 1000, "NaN came through");
    assert!(nans.into_iter().all(|bits| *bits == 0x7fc0_0000), "every NaN is the one NaN");
    (computed, state.to_bytes().expect("idle"))
}

#[test]
fn the_same_bits_at_every_width_and_thread_count() {
    for (codec, dtype) in [
        (PowerSgd::rank(5).min_compression(1.0), Dtype::F32),
        (PowerSgd::rank(4).one_sided(), Dtype::F16),
        (PowerSgd::rank(3).iterations(2), Dtype::Bf16),
        (PowerSgd::rank(12).min_compression(1.0), Dtype::F32),
        (PowerSgd::rank(32).min_compression(1.0).one_sided(), Dtype::F32),
    ] {
        let expected = model_run(&Device::cpu(), codec, dtype, 4);
        for device in devices() {
            assert!(model_run(&device, codec, dtype, 4) == expected, "{codec:?} on {device}");
        }
        for threads in [1, 2, 3, 8] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            let got = pool.install(|| model_run(&Device::cpu(), codec, dtype, 4));
            assert!(got == expected, "{codec:?} with {threads} threads");
        }
    }
}

fn halves_are_widened(device: &Device) {
    let (n, m) = (60, 50);
    let wide = cases::normal(n * m, 4);
    let f16s: Vec<half::f16> = wide.iter().map(|v| half::f16::from_f32(*v)).collect();
    let bf16s: Vec<half::bf16> = wide.iter().map(|v| half::bf16::from_f32(*v)).collect();
    let tensors = [Matrix::new(n as u64, m as u64 - 1), Matrix::vector(n as u64)];
    let fresh = || PowerSgd::rank(3).state(&tensors, Seed::new(7)).expect("valid");
    let run = |gradient: gradwire::Gradient<'_>| {
        let (mut state, mut output) = (fresh(), vec![0.0; n * m]);
        device.low_rank_step(&mut state, gradient, &mut output, alone).expect("valid");
        output
    };
    let widened: Vec<f32> = f16s.iter().map(|v| v.to_f32()).collect();
    assert_eq!(run((&f16s).into()), run((&widened).into()));
    let widened: Vec<f32> = bf16s.iter().map(|v| v.to_f32()).collect();
    assert_eq!(run((&bf16s).into()), run((&widened).into()));
}

gradwire_tests::on_every_device!(
    a_matrix_of_low_rank_comes_back,
    factors_are_orthonormal_or_zero_and_nothing_grows,
    a_step_is_the_oracles,
    energy_never_falls_and_reaches_the_best,
    factors_are_linear_in_the_gradient,
    residuals_telescope,
    halves_are_widened,
);
