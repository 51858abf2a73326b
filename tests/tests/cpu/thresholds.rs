//! Thresholds that are estimated: equality with an oracle, what their sources promise, gradients that no estimate fits.

use gradwire::{
    BackendKind, Compressor, Device, Dtype, Error, Estimate, Gradient, NonFinite, Policy, Qsgd, Recipe, Seed, Tensor,
    TopK,
};
use gradwire_tests::cases::{self, Random};
use gradwire_tests::oracle::threshold::{self, threshold};
use gradwire_tests::{require, selections, sparse};

const BOTH: [(Estimate, threshold::Estimate); 2] =
    [(Estimate::Gaussian, threshold::Estimate::Gaussian), (Estimate::Sidco, threshold::Estimate::Sidco)];
const PARTS: [f64; 6] = [1e-9, 0.001, 0.01, 0.1, 0.6, 1.0];

fn k_of(part: f64, n: usize) -> usize {
    gradwire_tests::oracle::sparse::part(part, n).max(1).min(n)
}

fn exponential(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| (-random.unit().ln()).copysign(random.unit() - 0.5) as f32).collect()
}

/// The payload and the residual are those of the oracle's threshold.
fn against_oracle(device: &Device, x: &[f32], label: &str) {
    let residual = cases::normal(x.len(), 61);
    let sums = sparse::sums(x, &residual);
    for (by, oracle) in BOTH {
        for part in PARTS {
            let label = format!("{label}, n = {}, {part} by {by:?}", x.len());
            let (codec, k) = (TopK::estimate(part, by), k_of(part, x.len()));
            let t = threshold(x, k, oracle);
            let [got, expected] = [&codec, &TopK::above(t)]
                .map(|codec| device.encode_sparse(codec, x, Seed::new(1)).unwrap_or_else(|e| panic!("{label}: {e}")));
            assert_eq!(got.indices().len(), expected.indices().len(), "{label}: threshold {t}");
            assert!(got == expected, "{label}: not what reaches {t}");
            let above = TopK::above(threshold(&sums, k, oracle));
            let (mut ours, mut theirs) = (residual.clone(), residual.clone());
            let got = device.encode_sparse_with_feedback(&codec, x, &mut ours, Seed::new(1)).expect(&label);
            let expected = device.encode_sparse_with_feedback(&above, x, &mut theirs, Seed::new(1)).expect(&label);
            assert!(got == expected, "{label}, with feedback: not what reaches {above:?}");
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(bits(&ours) == bits(&theirs), "{label}: residual");
        }
    }
}

#[test]
fn every_input_has_the_oracles_threshold() {
    sparse::with_every_input(against_oracle);
}

#[test]
fn every_vector_width_has_the_oracles_threshold() {
    sparse::at_every_width(&[0, 1, 6, 10, 14], against_oracle);
}

/// Halves are their values in f32, without feedback and with it.
#[test]
fn halves_have_the_threshold_of_their_values() {
    let device = Device::cpu();
    let x = exponential(30_011, 7);
    let halves: Vec<half::f16> = x.iter().map(|v| half::f16::from_f32(*v)).collect();
    let wide: Vec<f32> = halves.iter().map(|v| v.to_f32()).collect();
    for (by, _) in BOTH {
        let codec = TopK::estimate(0.01, by);
        let [a, b] = [Gradient::F16(&halves), Gradient::F32(&wide)]
            .map(|gradient| device.encode_sparse(&codec, gradient, Seed::new(1)).expect("valid"));
        assert_eq!(a.indices(), b.indices(), "{by:?}");
        assert_eq!(a.header().dtype, Dtype::F16);
    }
}

/// Exponential magnitudes, of which SIDCo's first stage is right: the number kept goes to k.
///
/// By Bernstein's inequality the mean of n magnitudes is off by more than e with probability 2 exp(-n e^2 / (2 (1 +
/// e))), which is 2e-13 for e = 0.0039 here. By Chernoff's the number that reaches a threshold which k do in the mean
/// is off by more than d k with probability 2 exp(-d^2 k / 3), 2e-13 for d = 0.0463. The mean moves the threshold by e
/// ln(1/rho), and what reaches it by a factor of exp(e ln(1/rho)).
#[test]
fn of_exponential_magnitudes_sidco_keeps_the_part() {
    let (n, part) = (1usize << 22, 0.01f64);
    let x = exponential(n, 11);
    let sent = Device::cpu().encode_sparse(&TopK::estimate(part, Estimate::Sidco), &x, Seed::new(1)).expect("valid");
    let (k, count) = (part * n as f64, sent.indices().len() as f64);
    let most = (0.0039 * -part.ln()).exp() * 1.0463;
    assert!(count <= k * most && count >= k / most, "{count} of {k}");
}

/// Normal elements, of which GaussianK's first threshold is right: the number kept goes to k.
///
/// The variance of n elements is off by more than 0.0054 of itself with probability 2e-13 (Laurent and Massart 2000), and
/// the mean by more than 0.0038 with 2e-13: together they move a threshold of 2.58 by less than 0.011, and what reaches
/// it by a factor of less than exp(0.011 (t + 1/t)), t = 2.6. For the number that reaches it see above.
#[test]
fn of_normal_elements_gaussian_k_keeps_the_part() {
    let (n, part) = (1usize << 22, 0.01f64);
    let x = cases::normal(n, 12);
    let sent = Device::cpu().encode_sparse(&TopK::estimate(part, Estimate::Gaussian), &x, Seed::new(1)).expect("valid");
    let (k, count) = (part * n as f64, sent.indices().len() as f64);
    let most = (0.011f64 * 3.0).exp() * 1.0463;
    assert!(count <= k * most && count >= k / most, "{count} of {k}");
}

/// Whatever the elements: those that are not sent are smaller than those that are, the largest is sent, and so |x -
/// C(x)|^2 <= (1 - 1/n) |x|^2. Where the number kept is within the stated bounds for two parts far enough apart, the
/// larger part has no higher threshold.
#[test]
fn what_is_kept_is_what_reaches_a_threshold_that_falls_as_the_part_grows() {
    let device = Device::cpu();
    let n = 20_011;
    for fill in sparse::FILLS {
        let x = (fill.1)(n);
        let finite = x.iter().all(|v| v.is_finite());
        for ((by, _), [least, most]) in BOTH.into_iter().zip([[2.0 / 3.0, 4.0 / 3.0], [0.8, 1.2]]) {
            let mut last: Option<(f64, f32)> = None;
            for part in [0.001, 0.003, 0.01, 0.03, 0.1, 0.3] {
                let label = format!("{}, {part} by {by:?}", fill.0);
                let sent = device.encode_sparse(&TopK::estimate(part, by), &x, Seed::new(1)).expect(&label);
                let magnitude = |i: usize| x[i].abs();
                let is_kept = |i: usize| sent.indices().binary_search(&(i as u32)).is_ok();
                if !finite {
                    assert!((0..n).all(|i| is_kept(i) != x[i].is_finite() || sent.indices().len() == n), "{label}");
                    continue;
                }
                if x.iter().all(|v| *v == 0.0) {
                    assert!(sent.indices().is_empty(), "{label}");
                    continue;
                }
                let lowest = sent.indices().iter().map(|i| magnitude(*i as usize)).fold(f32::INFINITY, f32::min);
                let highest = (0..n).filter(|i| !is_kept(*i)).map(magnitude).fold(0.0, f32::max);
                assert!(!sent.indices().is_empty() && (highest < lowest || sent.indices().len() == n), "{label}");
                let k = k_of(part, n) as f64;
                if (least * k..=most * k).contains(&(sent.indices().len() as f64)) {
                    if let Some((before, threshold)) = last
                        && before * most <= least * k
                    {
                        assert!(lowest <= threshold, "{label}: {lowest} is above {threshold}");
                    }
                    last = Some((k, lowest));
                }
            }
        }
    }
}

/// A power of two changes no threshold but by itself.
#[test]
fn a_scale_changes_nothing() {
    let device = Device::cpu();
    for (x, name) in [(cases::normal(30_011, 3), "normal"), (exponential(30_011, 4), "exponential")] {
        for (by, _) in BOTH {
            let kept = |scale: f32| {
                let scaled: Vec<f32> = x.iter().map(|v| v * scale).collect();
                let sent = device.encode_sparse(&TopK::estimate(0.02, by), &scaled, Seed::new(1)).expect("valid");
                sent.indices().to_vec()
            };
            for exponent in [-60, -1, 40] {
                assert!(kept(2f32.powi(exponent)) == kept(1.0), "{name} by {by:?}, times 2^{exponent}");
            }
        }
    }
}

/// Constants fit neither estimate. GaussianK keeps all of them; SIDCo's last number of stages does.
#[test]
fn no_gradient_but_zeros_keeps_nothing() {
    let device = Device::cpu();
    for (by, _) in BOTH {
        for part in PARTS {
            let codec = TopK::estimate(part, by);
            let sent = |x: &[f32]| device.encode_sparse(&codec, x, Seed::new(1)).expect("valid").indices().to_vec();
            for n in [1, 2, 3, 1000, 9000] {
                for value in [1.0, -3e-45, f32::MAX, 0.1] {
                    assert_eq!(sent(&vec![value; n]).len(), n, "{value} {n} times, {part} by {by:?}");
                }
                if k_of(part, n) < n {
                    assert_eq!(sent(&vec![-0.0; n]), [0; 0], "{n} zeros, {part} by {by:?}");
                }
                let mut one = vec![0.0; n];
                one[n / 2] = -1e-30;
                if k_of(part, n) < n {
                    assert_eq!(sent(&one), [n as u32 / 2], "one of {n}, {part} by {by:?}");
                }
            }
            assert!(sent(&[]).is_empty());
        }
    }
}

/// Steps of feedback on small integers, whose sums are exact: what was sent and what is left are all that came in.
#[test]
fn feedback_loses_nothing() {
    let device = Device::cpu();
    for (by, _) in BOTH {
        let n = 5000;
        let (mut residual, mut sent, mut all) = (vec![0.0f32; n], vec![0.0f32; n], vec![0.0f32; n]);
        for step in 0..20 {
            let x: Vec<f32> = cases::normal(n, step).iter().map(|v| (v * 800.0).round()).collect();
            all.iter_mut().zip(&x).for_each(|(all, x)| *all += x);
            let codec = TopK::estimate(0.02, by);
            let payload = device.encode_sparse_with_feedback(&codec, &x, &mut residual, Seed::new(1)).expect("valid");
            assert!(!payload.indices().is_empty(), "{by:?}, step {step}");
            device.decode_sparse_add(&payload, 1.0, &mut sent).expect("decodes");
        }
        assert!((0..n).all(|i| sent[i] + residual[i] == all[i]), "{by:?}");
    }
}

#[test]
fn what_is_not_finite_is_sent_alone_or_refused() {
    let device = Device::cpu();
    let mut x = cases::normal(9000, 9);
    (x[17], x[8500]) = (f32::NAN, f32::NEG_INFINITY);
    for (by, _) in BOTH {
        let codec = TopK::estimate(0.01, by);
        assert_eq!(device.encode_sparse(&codec, &x, Seed::new(1)).expect("sent").indices(), [17, 8500]);
        let guarded = codec.non_finite(NonFinite::Error);
        let mut residual = cases::normal(9000, 10);
        let before = residual.clone();
        let error = device.encode_sparse_with_feedback(&guarded, &x, &mut residual, Seed::new(1)).expect_err("NaN");
        assert!(matches!(error, Error::NotFinite { index: 17 }), "{error:?}");
        assert_eq!(residual, before);
        // A residual that overflows with the gradient is not finite either.
        let mut residual = vec![f32::MAX; 4];
        let sent = device
            .encode_sparse_with_feedback(
                &TopK::estimate(0.3, by),
                &[f32::MAX, 0.0, 0.0, 1.0],
                &mut residual,
                Seed::new(1),
            )
            .expect("sent");
        assert_eq!(sent.indices(), [0]);
    }
}

#[test]
fn values_are_rounded_and_quantized_behind_an_estimate() {
    let device = Device::cpu();
    let x = exponential(30_000, 5);
    let codec = TopK::estimate(0.01, Estimate::Sidco);
    let exact = device.encode_sparse(&codec, &x, Seed::new(1)).expect("valid");
    for codec in [codec.clone().values(Dtype::Bf16), codec.then(Qsgd::bits(8))] {
        let mut residual = vec![0.0; x.len()];
        let sent = device.encode_sparse_with_feedback(&codec, &x, &mut residual, Seed::new(1)).expect("valid");
        assert_eq!(sent.indices(), exact.indices());
        let decoded = device.decode_sparse(&sent).expect("decodes");
        assert!((0..x.len()).all(|i| decoded[i] + residual[i] == x[i] || decoded[i] != 0.0));
    }
}

#[test]
fn what_has_no_estimate_is_a_typed_error() {
    let device = Device::cpu();
    let x = [1.0f32, 2.0, 3.0];
    for part in [0.0, -0.1, 1.1, f64::NAN] {
        let error = device.encode_sparse(&TopK::estimate(part, Estimate::Sidco), &x, Seed::new(1));
        assert!(matches!(error, Err(Error::Keep { .. })), "{part}");
    }
    let codec = TopK::estimate(0.01, Estimate::Gaussian);
    let error = codec.selection(1000, Dtype::F32, false, &gradwire::plan::Limits::NONE).expect_err("as passes");
    assert!(matches!(error, Error::Keep { what: "an estimate as passes", .. }), "{error}");
    let sent = device.encode_sparse(&codec, &[1.0f32; 1000], Seed::new(1)).expect("valid");
    let error = device.merge_sparse(&codec, &sent, &sent, &mut [0.0; 1000], Seed::new(1)).expect_err("a merge");
    assert!(matches!(error, Error::Keep { what: "an estimate in a merge", .. }), "{error}");
}

/// Through a compressor with warm-up: each step's payload is the codec's own, of all tensors of the recipe together.
#[test]
fn a_compressor_estimates_of_all_tensors_of_a_recipe() {
    let model = [Tensor::new("a", [100, 30]), Tensor::new("b", [500])];
    for name in ["gaussian", "sidco"] {
        let recipe: Recipe = format!("topk:0.02,estimate={name},warmup=4+ef").parse().expect("a recipe");
        assert_eq!(recipe.part_at(0), Some(0.25));
        assert!(recipe.promise(3500).expect("valid").delta == Some(1.0 / 3500.0));
        let policy = Policy::new(recipe.clone()).expect("valid").small(0);
        let mut compressor = Compressor::with_policy(&policy, &model, 3).expect("valid");
        let mut group = gradwire_collectives::Threads::group(1).expect("one").remove(0);
        let mut residual = vec![0.0f32; 3500];
        for step in 0..8 {
            let mut x = exponential(3500, step);
            let part = recipe.part_at(step).expect("a part");
            let by = if name == "sidco" { Estimate::Sidco } else { Estimate::Gaussian };
            let sent = Device::cpu()
                .encode_sparse_with_feedback(&TopK::estimate(part, by), &x, &mut residual, Seed::new(1))
                .expect("valid");
            compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("alone");
            assert_eq!(x, Device::cpu().decode_sparse(&sent).expect("decodes"), "{name}, step {step}");
        }
    }
}

/// Payloads and residuals are the CPU's.
fn as_on_the_cpu(device: &Device) {
    for (name, n) in [("normal", 20_011), ("sixteen values", 9000), ("some NaN", 8193), ("all zero", 100)] {
        let (_, fill) = sparse::FILLS.into_iter().find(|(other, _)| *other == name).expect("a fill");
        for (by, _) in BOTH {
            for codec in [TopK::estimate(0.01, by), TopK::estimate(0.2, by).then(Qsgd::bits(8))] {
                selections::against_cpu(device, &codec, &format!("{name}, by {by:?}"), &fill(n))
                    .expect("the same bytes");
            }
        }
    }
}

#[test]
fn every_backend_has_the_cpus_bytes() {
    for device in require::devices().iter().filter(|device| device.kind() != BackendKind::Cpu) {
        as_on_the_cpu(device);
    }
}

#[cfg(feature = "cuda")]
#[test]
fn the_ptx_machine_has_the_cpus_bytes() {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;
    use gradwire_ptx_machine::Machine;

    for (compute, seed) in [((6, 0), 1), ((9, 0), 2)] {
        let cuda = Cuda::with_driver(Arc::new(Machine::new(compute, seed)), None).expect("an artifact that fits");
        as_on_the_cpu(&Device::from_cuda(cuda));
    }
}
