//! A part of the elements of each sign: equality with an oracle, what the selection promises, and every backend.

use gradwire::{
    BackendKind, Compressor, Device, Dtype, Error, Gradient, LazyResidual, NonFinite, OneBit, Policy, Qsgd, Recipe,
    Seed, Tensor, TopK,
};
use gradwire_tests::cases;
use gradwire_tests::oracle::sparse::{largest, part};
use gradwire_tests::{require, selections, sparse};

const PARTS: [f64; 6] = [1e-9, 0.001, 0.01, 0.3, 0.99, 1.0];

/// What has each sign: the indices above zero, and below. A NaN has the sign of its bit.
fn sides(x: &[f32]) -> [Vec<u32>; 2] {
    let of = |side: bool| {
        (0..x.len() as u32).filter(move |i| x[*i as usize] != 0.0 && x[*i as usize].is_sign_negative() == side)
    };
    [of(false).collect(), of(true).collect()]
}

/// The indices that are kept: of each sign, sorted alone.
fn kept(x: &[f32], rho: f64) -> Vec<u32> {
    let mut all = Vec::new();
    for side in sides(x) {
        let values: Vec<f32> = side.iter().map(|i| x[*i as usize]).collect();
        all.extend(largest(&values, part(rho, side.len())).into_iter().map(|at| side[at as usize]));
    }
    all.sort_unstable();
    all
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn square(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|v| v * v).sum()
}

/// Entries, values and residual are the oracle's; of each sign as many are kept as were asked for, none smaller than
/// one that is not, and |x - C(x)|^2 <= (1 - part) |x|^2, in f64, whose rounding over n terms is below n 2^-52.
fn against_oracle(device: &Device, x: &[f32], label: &str) {
    let residual = cases::normal(x.len(), 61);
    let sums = sparse::sums(x, &residual);
    for rho in PARTS {
        let label = format!("{label}, n = {}, {rho}", x.len());
        let codec = TopK::per_sign(rho);
        let sent = device.encode_sparse(&codec, x, Seed::new(1)).expect(&label);
        assert!(sent.indices() == kept(x, rho), "{label}: entries");
        let decoded = device.decode_sparse(&sent).expect(&label);
        let mut dense = vec![0.0; x.len()];
        sent.indices().iter().for_each(|i| dense[*i as usize] = sparse::canonical(x[*i as usize]));
        assert!(bits(&decoded) == bits(&dense), "{label}: values");
        for side in sides(x) {
            let (ours, others): (Vec<u32>, _) = side.iter().partition(|i| sent.indices().binary_search(i).is_ok());
            assert_eq!(ours.len(), part(rho, side.len()), "{label}: of one sign");
            let size = |i: &u32| if x[*i as usize].is_nan() { f64::INFINITY } else { f64::from(x[*i as usize].abs()) };
            let least = ours.iter().map(size).fold(f64::INFINITY, f64::min);
            assert!(others.iter().all(|i: &u32| size(i) <= least), "{label}: a larger one is not kept");
        }
        if x.iter().all(|v| v.is_finite()) {
            let all = square(x.iter().map(|v| f64::from(*v)));
            let lost = square(x.iter().zip(&decoded).map(|(x, c)| f64::from(*x) - f64::from(*c)));
            assert!(lost <= (1.0 - rho) * all + all * x.len() as f64 * f64::EPSILON, "{label}: {lost} of {all}");
        }
        let mut left = residual.clone();
        let sent = device.encode_sparse_with_feedback(&codec, x, &mut left, Seed::new(1)).expect(&label);
        assert!(sent.indices() == kept(&sums, rho), "{label}: entries with feedback");
        let expected = sparse::left(sums.clone(), &residual, sent.indices());
        assert!(bits(&left) == bits(&expected), "{label}: residual");
    }
}

#[test]
fn every_input_has_the_oracles_entries() {
    sparse::with_every_input(against_oracle);
}

#[test]
fn every_vector_width_has_the_oracles_entries() {
    sparse::at_every_width(&[0, 6, 10, 12, 14], against_oracle);
}

#[test]
fn halves_have_the_entries_of_their_values() {
    let device = Device::cpu();
    let halves: Vec<half::f16> = cases::normal(30_011, 7).iter().map(|v| half::f16::from_f32(*v)).collect();
    let wide: Vec<f32> = halves.iter().map(|v| v.to_f32()).collect();
    let sent = device.encode_sparse(&TopK::per_sign(0.01), Gradient::F16(&halves), Seed::new(1)).expect("valid");
    assert_eq!(sent.indices(), kept(&wide, 0.01));
    assert_eq!(sent.header().dtype, Dtype::F16);
}

/// Elements of one sign or of none, ties, and what is not finite.
#[test]
fn one_sign_none_ties_and_what_is_not_finite() {
    let device = Device::cpu();
    let kept = |x: &[f32], rho| {
        let sent = device.encode_sparse(&TopK::per_sign(rho), x, Seed::new(1)).expect("valid");
        sent.indices().to_vec()
    };
    assert_eq!(kept(&[], 0.5), [0; 0]);
    assert_eq!(kept(&[0.0, -0.0, 0.0], 1.0), [0; 0], "zeros have no sign");
    assert_eq!(kept(&[3.0, 1.0, 2.0, 0.0], 0.5), [0, 2]);
    assert_eq!(kept(&[-0.0, -3.0, -1.0, -2.0], 0.5), [1, 3]);
    assert_eq!(kept(&[1e-45, -1e-45, 0.0], 0.01), [0, 1], "one of each sign at least");
    assert_eq!(kept(&[2.0, -2.0, 2.0, -2.0, 2.0, -2.0], 0.3), [0, 1], "of equal ones, the first");
    let odd = [1.0, f32::INFINITY, f32::NAN, -1.0, f32::NEG_INFINITY, f32::from_bits(0xffc0_0000)];
    assert_eq!(kept(&odd, 0.3), [2, 5], "NaN is largest, of either sign");
    assert_eq!(kept(&odd, 0.6), [1, 2, 4, 5]);
    let guarded = TopK::per_sign(0.3).non_finite(NonFinite::Error);
    let mut residual = [1.0; 6];
    let error = device.encode_sparse_with_feedback(&guarded, &odd, &mut residual, Seed::new(1)).expect_err("NaN");
    assert!(matches!(error, Error::NotFinite { index: 1 }) && residual == [1.0; 6], "{error:?}");
}

/// With two means after it, what is decoded is the mean of the entries that are kept of each sign. Of integers whose
/// sums are exact; numbers of entries are powers of two, so that the means are exact too.
#[test]
fn two_means_are_those_of_what_is_kept() {
    let device = Device::cpu();
    let x: Vec<f32> = (0..4096i32).map(|i| ((i * 1657) % 4096 - 2048) as f32 + 0.5).collect();
    let recipe: Recipe = "topk:0.25,persign+onebit:bucket=whole".parse().expect("a recipe");
    let codec = recipe.selection().expect("it selects");
    let sent = device.encode_sparse(&codec, &x, Seed::new(1)).expect("valid");
    let decoded = device.decode_sparse(&sent).expect("decodes");
    for (side, indices) in sides(&x).into_iter().enumerate() {
        let ours: Vec<u32> = indices.into_iter().filter(|i| sent.indices().binary_search(i).is_ok()).collect();
        assert_eq!(ours.len(), 512);
        let mean = ours.iter().map(|i| x[*i as usize]).sum::<f32>() / 512.0;
        assert_eq!(mean, [1792.0, -1792.0][side]);
        assert!(ours.iter().all(|i| decoded[*i as usize] == mean), "side {side}");
    }
    // |x - C(x)|^2 <= (1 - delta) |x|^2 with the recipe's delta: the part, over the entries of a side at the most.
    let delta = recipe.promise(x.len()).expect("valid").delta.expect("a contraction");
    for fill in sparse::FILLS {
        let x = (fill.1)(4096);
        if x.iter().any(|v| !v.is_finite()) {
            continue;
        }
        let sent = device.encode_sparse(&codec, &x, Seed::new(1)).expect("valid");
        let decoded = device.decode_sparse(&sent).expect("decodes");
        let all = square(x.iter().map(|v| f64::from(*v)));
        let lost = square(x.iter().zip(&decoded).map(|(x, c)| f64::from(*x) - f64::from(*c)));
        assert!(lost <= (1.0 - delta) * all * (1.0 + 1e-6), "{}: {lost} of {all}", fill.0);
    }
}

/// GRACE's `AdaqCompressor(.5)` on its vector: two of the four above zero, as their mean, and one of the two below.
#[test]
fn adaq_is_graces() {
    let recipe: Recipe = "grace:adaq".parse().expect("a method");
    assert_eq!(recipe, Recipe::from(TopK::per_sign(0.3)).quantize(OneBit::new().whole_tensor()).feedback());
    let codec = TopK::per_sign(0.5).then(OneBit::new().whole_tensor());
    let sent = Device::cpu().encode_sparse(&codec, &[0.0f32, -0.0, 1.0, -1.0, 0.5, -3.0, 2.0, 0.25], Seed::new(1));
    let decoded = Device::cpu().decode_sparse(&sent.expect("valid")).expect("decodes");
    assert_eq!(decoded, [0.0, 0.0, 1.5, 0.0, 0.0, -3.0, 1.5, 0.0]);
}

/// Steps of feedback on small integers, whose sums are exact: what was sent and what is left are all that came in. A
/// residual that may be late is up to date.
#[test]
fn feedback_loses_nothing() {
    let (device, codec, n) = (Device::cpu(), TopK::per_sign(0.02), 5000);
    let (mut sent, mut all) = (vec![0.0f32; n], vec![0.0f32; n]);
    let (mut residual, mut late) = (vec![0.0f32; n], LazyResidual::zeros(n));
    for step in 0..20 {
        let x: Vec<f32> = cases::normal(n, step).iter().map(|v| (v * 800.0).round()).collect();
        all.iter_mut().zip(&x).for_each(|(all, x)| *all += x);
        let payload = device.encode_sparse_with_feedback(&codec, &x, &mut residual, Seed::new(1)).expect("valid");
        let lazily = device.encode_sparse_lazily(&codec, &x, &mut late, Seed::new(1)).expect("valid");
        assert!(payload == lazily && !late.is_pending(), "step {step}");
        device.decode_sparse_add(&payload, 1.0, &mut sent).expect("decodes");
    }
    assert!((0..n).all(|i| sent[i] + residual[i] == all[i]));
}

#[test]
fn where_it_does_not_go_is_a_typed_error() {
    let (device, codec) = (Device::cpu(), TopK::per_sign(0.01));
    for part in [0.0, -0.1, 1.1, f64::NAN] {
        let error = device.encode_sparse(&TopK::per_sign(part), &[1.0f32, 2.0], Seed::new(1)).expect_err("no part");
        assert!(matches!(error, Error::Keep { what: "a part of the entries of each sign", .. }), "{error}");
    }
    let error = codec.selection(1000, Dtype::F32, false, &gradwire::plan::Limits::NONE).expect_err("as passes");
    assert!(matches!(error, Error::Keep { what: "a part of each sign as passes", .. }), "{error}");
    let sent = device.encode_sparse(&codec, &[1.0f32; 1000], Seed::new(1)).expect("valid");
    let error = device.merge_sparse(&codec, &sent, &sent, &mut [0.0; 1000], Seed::new(1)).expect_err("a merge");
    assert!(matches!(error, Error::Keep { what: "a part of each sign in a merge", .. }), "{error}");
}

/// Through a compressor with warm-up: each step's payload is the codec's own, of all tensors of the recipe together.
#[test]
fn a_compressor_selects_of_all_tensors_of_a_recipe() {
    let model = [Tensor::new("a", [100, 30]), Tensor::new("b", [500])];
    let recipe: Recipe = "topk:0.02,persign,warmup=4+ef".parse().expect("a recipe");
    assert_eq!((recipe.part_at(0), recipe.promise(3500).expect("valid").delta), (Some(0.25), Some(0.02)));
    let policy = Policy::new(recipe.clone()).expect("valid").small(0);
    let mut compressor = Compressor::with_policy(&policy, &model, 3).expect("valid");
    let mut group = gradwire_collectives::Threads::group(1).expect("one").remove(0);
    let (device, mut residual) = (Device::cpu(), vec![0.0f32; 3500]);
    for step in 0..8 {
        let mut x = cases::normal(3500, step);
        let codec = TopK::per_sign(recipe.part_at(step).expect("a part"));
        let sent = device.encode_sparse_with_feedback(&codec, &x, &mut residual, Seed::new(1)).expect("valid");
        compressor.exchange(&device, &mut group, &mut x).expect("alone");
        assert_eq!(x, device.decode_sparse(&sent).expect("decodes"), "step {step}");
    }
}

/// Payloads and residuals are the CPU's, on gradients that take each way of the search: a threshold that is right, ones
/// that too few reach until all are taken, and what is not finite.
fn as_on_the_cpu(device: &Device) {
    for (name, n) in [
        ("normal", 20_011),
        ("uniform", 9000),
        ("sixteen values", 9000),
        ("few huge, the rest tiny", 9000),
        ("zeros of both signs, and few others", 8193),
        ("some NaN", 8193),
        ("all zero", 100),
    ] {
        let (_, fill) = sparse::FILLS.into_iter().find(|(other, _)| *other == name).expect("a fill");
        for codec in [TopK::per_sign(0.01), TopK::per_sign(0.2).then(Qsgd::bits(8))] {
            selections::against_cpu(device, &codec, name, &fill(n)).expect("the same bytes");
        }
    }
    let mut x = cases::normal(9000, 9);
    (x[17], x[8500]) = (f32::NAN, f32::NEG_INFINITY);
    let guarded = TopK::per_sign(0.01).non_finite(NonFinite::Error);
    selections::against_cpu(device, &guarded, "refused", &x).expect("the same error");
}

#[test]
fn every_backend_has_the_cpus_bytes() {
    for device in require::devices().iter().filter(|device| device.kind() != BackendKind::Cpu) {
        as_on_the_cpu(device);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn without_a_wait_the_bytes_are_the_cpus() {
    use gradwire::backend::wgpu::Wgpu;
    use pollster::block_on;

    if require::open(BackendKind::Wgpu).is_err() {
        return;
    }
    let wgpu = block_on(Wgpu::open_async()).expect("it was opened a moment ago");
    let device = Device::cpu();
    for index in [0, 10, 14] {
        let x = (sparse::FILLS[index].1)(9000);
        let codec = TopK::per_sign(0.05).then(OneBit::new().whole_tensor());
        let (mut ours, mut theirs) = (x.clone(), x.clone());
        let expected = device.encode_sparse_with_feedback(&codec, &x, &mut theirs, Seed::new(1)).expect("valid");
        let sent = block_on(wgpu.encode_sparse_async(&codec, (&x).into(), Some(&mut ours), Seed::new(1)));
        assert!(sent.expect("valid") == expected && bits(&ours) == bits(&theirs), "{}", sparse::FILLS[index].0);
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
