//! Encoding and decoding without a wait, as a browser needs it, on whatever adapter this machine has. In a browser itself
//! it is `cargo xtask web` that runs it.
#![cfg(feature = "wgpu")]

use gradwire::backend::wgpu::Wgpu;
use gradwire::{BackendKind, Codec, DecodeMode, Device, Dtype, Error, Gradient, NonFinite, Qsgd, Seed, Uniform};
use gradwire_tests::cases::AnyCodec;
use gradwire_tests::require;
use pollster::block_on;

fn open() -> Option<Wgpu> {
    // Whether an adapter has to be there is decided, and its absence reported, in one place.
    if let Err(error) = require::open(BackendKind::Wgpu) {
        eprintln!("not tested: {error}");
        return None;
    }
    Some(block_on(Wgpu::open_async()).expect("it was opened a moment ago"))
}

fn gradient(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect()
}

#[test]
fn bytes_residuals_and_values_are_the_cpus() {
    let Some(wgpu) = open() else { return };
    let (cpu, seed) = (Device::cpu(), Seed::new(3).step(9).tensor(1));
    let codecs: [AnyCodec; 4] = [
        AnyCodec::Qsgd(Qsgd::bits(4).bucket(512)),
        AnyCodec::Qsgd(Qsgd::bits(8).non_finite(NonFinite::Error)),
        AnyCodec::Uniform(Uniform::bits(1).bucket(64)),
        AnyCodec::Uniform(Uniform::bits(8).whole_tensor()),
    ];
    // Without elements, with a half word at the end, with several workgroups.
    for (codec, n) in codecs.iter().flat_map(|codec| [0, 1, 33, 100_003].map(|n| (codec, n))) {
        let x = gradient(n);
        let halves: Vec<half::f16> = x.iter().map(|&v| half::f16::from_f32(v)).collect();
        for gradient in [Gradient::from(&x), Gradient::from(&halves)] {
            let plan = codec.plan(n, gradient.dtype()).expect("the settings are sound");
            let expected = cpu.encode_plan(&plan, gradient, &mut [], seed).expect("the CPU encodes");
            let payload = block_on(wgpu.encode_async(&plan, gradient, &mut [], seed)).expect("the device encodes");
            assert!(payload == expected, "{codec:?} of {n} {}", gradient.dtype().name());

            let (mut added, mut sum) = (x.clone(), x.clone());
            cpu.decode_add(&expected, 0.25, &mut added).expect("the CPU decodes");
            block_on(wgpu.decode_async(&payload, DecodeMode::Add(0.25), &mut sum)).expect("the device decodes");
            assert!(sum.iter().map(|v| v.to_bits()).eq(added.iter().map(|v| v.to_bits())), "{codec:?} of {n}");
            block_on(wgpu.decode_async(&payload, DecodeMode::Write, &mut sum)).expect("the device decodes");
            let written = cpu.decode(&expected).expect("the CPU decodes");
            assert!(sum.iter().map(|v| v.to_bits()).eq(written.iter().map(|v| v.to_bits())), "{codec:?} of {n}");
        }
    }
}

#[test]
fn feedback_leaves_the_cpus_residual() {
    let Some(wgpu) = open() else { return };
    let (cpu, x) = (Device::cpu(), gradient(5000));
    let plan = Qsgd::bits(8).plan(x.len(), Dtype::F32).and_then(|plan| plan.with_feedback()).expect("8 bits contract");
    let (mut expected, mut residual) = (vec![0.0; 5000], vec![0.0; 5000]);
    for step in 0..3 {
        let seed = Seed::new(4).step(step);
        let theirs = cpu.encode_plan(&plan, (&x).into(), &mut expected, seed).expect("the CPU encodes");
        let ours = block_on(wgpu.encode_async(&plan, (&x).into(), &mut residual, seed)).expect("the device encodes");
        assert!(ours == theirs && residual == expected, "step {step}");
    }
    assert!(residual.iter().any(|&r| r != 0.0), "nothing was left, so nothing was tested");
}

#[test]
fn what_is_wrong_is_a_typed_error() {
    let Some(wgpu) = open() else { return };
    let mut x = gradient(5000);
    let plan = Qsgd::bits(8).non_finite(NonFinite::Error).plan(5000, Dtype::F32).expect("the settings are sound");
    let encode = |x: &[f32], residual: &mut [f32]| block_on(wgpu.encode_async(&plan, x.into(), residual, Seed::new(1)));
    assert!(matches!(
        encode(&x[1..], &mut []),
        Err(Error::Length { what: "gradient", found: 4999, expected: 5000, .. })
    ));
    assert!(matches!(encode(&x, &mut [0.0]), Err(Error::Length { what: "residual", found: 1, expected: 0, .. })));
    let payload = encode(&x, &mut []).expect("the gradient is finite");
    let short = block_on(wgpu.decode_async(&payload, DecodeMode::Write, &mut [0.0; 4]));
    assert!(matches!(short, Err(Error::Length { what: "output", found: 4, expected: 5000, .. })));
    x[4321] = f32::INFINITY;
    assert!(matches!(encode(&x, &mut []), Err(Error::NotFinite { index: 4321 })));
}

#[test]
fn futures_may_go_from_thread_to_thread() {
    fn sent<T: Send>(_: &T) {}
    let Some(wgpu) = open() else { return };
    let x = gradient(10);
    let plan = Qsgd::bits(4).plan(10, Dtype::F32).expect("the settings are sound");
    let (mut none, mut output) = ([], [0.0; 10]);
    let encode = wgpu.encode_async(&plan, (&x).into(), &mut none, Seed::new(1));
    sent(&encode);
    let payload = block_on(encode).expect("the device encodes");
    let decode = wgpu.decode_async(&payload, DecodeMode::Write, &mut output);
    sent(&decode);
    block_on(decode).expect("the device decodes");
}
