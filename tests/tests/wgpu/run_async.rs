//! Encoding and decoding without a wait, as a browser needs it, on whatever adapter this machine has. In a browser
//! itself it is `cargo xtask web` that runs it.

use gradwire::backend::wgpu::{HostSlice, Wgpu};
use gradwire::embed::{
    AdvanceLowRank, BeginLowRank, Encode, EncodeBuffers, EncodeModel, FinishLowRank, LowRankBuffers, Scatter,
    ScatterBuffers, Select, SelectBuffers, Settle, SettleBuffers, WithTable,
};
use gradwire::wgpu;
use gradwire::{
    BackendKind, Codec, DecodeMode, Device, Dtype, Entropy, Error, Gradient, Layout, LowRankState, Matrix, ModelPlan,
    NonFinite, PowerSgd, Qsgd, Seed, TopK, Uniform,
};
use gradwire_tests::cases::Quantizer;
use gradwire_tests::low_rank::alone;
use gradwire_tests::resident::{MODEL, codecs};
use gradwire_tests::{require, selections};
use pollster::block_on;

fn open() -> Option<Wgpu> {
    // Whether an adapter has to be there is decided, and its absence reported, in one place.
    if let Err(error) = require::open(BackendKind::Wgpu) {
        eprintln!("not tested: {error}");
        return None;
    }
    Some(block_on(Wgpu::open_async()).expect("it was opened a moment ago"))
}

/// A device of its own, of the default limits.
fn own() -> (wgpu::Device, wgpu::Queue) {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let adapter = adapters.into_iter().next().expect("an adapter was there a moment ago");
    let device = block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()));
    device.expect("the default limits are had by every adapter")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn gradient(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect()
}

#[test]
fn bytes_residuals_and_values_are_the_cpus() {
    let Some(wgpu) = open() else { return };
    let (cpu, seed) = (Device::cpu(), Seed::new(3).step(9).tensor(1));
    let codecs: [Quantizer; 6] = [
        Quantizer::Qsgd(Qsgd::bits(4).bucket(512)),
        Quantizer::Qsgd(Qsgd::bits(4).bucket(512).elias()),
        Quantizer::Qsgd(Qsgd::bits(16).whole_tensor().elias()),
        Quantizer::Qsgd(Qsgd::bits(8).non_finite(NonFinite::Error)),
        Quantizer::Uniform(Uniform::bits(1).bucket(64)),
        Quantizer::Uniform(Uniform::bits(8).whole_tensor()),
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
    for codec in [Qsgd::bits(8), Qsgd::bits(8).elias()] {
        let plan = codec.plan(x.len(), Dtype::F32).and_then(|plan| plan.with_feedback()).expect("8 bits contract");
        let (mut expected, mut residual) = (vec![0.0; 5000], vec![0.0; 5000]);
        for step in 0..3 {
            let seed = Seed::new(4).step(step);
            let theirs = cpu.encode_plan(&plan, (&x).into(), &mut expected, seed).expect("the CPU encodes");
            let ours = block_on(wgpu.encode_async(&plan, (&x).into(), &mut residual, seed));
            assert!(ours.expect("the device encodes") == theirs && residual == expected, "step {step}");
        }
        assert!(residual.iter().any(|&r| r != 0.0), "nothing was left, so nothing was tested");
    }
}

#[test]
fn values_of_entries_are_packed_and_unpacked_as_the_cpu_does() {
    let Some(wgpu) = open() else { return };
    let (cpu, x, seed) = (Device::cpu(), gradient(20_011), Seed::new(6));
    let codec = TopK::count(1500).then(Qsgd::bits(4).bucket(32).l2().elias());
    let (mut ours, mut theirs) = (x.clone(), x.clone());
    let expected = cpu.encode_sparse_with_feedback(&codec, &x, &mut theirs, seed).expect("the CPU encodes");
    let sent = block_on(wgpu.encode_sparse_async(&codec, (&x).into(), Some(&mut ours), seed));
    assert!(sent.expect("the device encodes") == expected && bits(&ours) == bits(&theirs));
    cpu.decode_sparse_add(&expected, 0.5, &mut theirs).expect("the CPU decodes");
    block_on(wgpu.decode_sparse_async(&expected, Some(0.5), &mut ours)).expect("the device decodes");
    assert_eq!(bits(&ours), bits(&theirs));
    let fixed = cpu.encode(&Qsgd::bits(4).bucket(512).l2(), &x, seed).expect("the CPU encodes");
    let packed = cpu.pack(&fixed, Entropy::Sparse).expect("the CPU packs");
    assert!(block_on(wgpu.pack_async(&fixed, Entropy::Sparse)).expect("the device packs") == packed);
    let back = cpu.unpack(&packed).expect("the CPU unpacks");
    assert!(block_on(wgpu.unpack_async(&packed)).expect("the device unpacks") == back);
    let fixed = cpu.encode(&Uniform::bits(4), &x, seed).expect("the CPU encodes");
    assert!(matches!(block_on(wgpu.pack_async(&fixed, Entropy::Elias)), Err(Error::NotPacked { .. })));
    assert!(block_on(wgpu.unpack_async(&fixed)).expect("as it is") == fixed);
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
    assert!(matches!(encode(&x, &mut [0.0]), Err(Error::NoFeedback { found: 1 })));
    let payload = encode(&x, &mut []).expect("the gradient is finite");
    let short = block_on(wgpu.decode_async(&payload, DecodeMode::Write, &mut [0.0; 4]));
    assert!(matches!(short, Err(Error::Length { what: "output", found: 4, expected: 5000, .. })));
    x[4321] = f32::INFINITY;
    assert!(matches!(encode(&x, &mut []), Err(Error::NotFinite { index: 4321 })));
}

#[test]
fn selections_of_every_setting_are_the_cpus() {
    let Some(wgpu) = open() else { return };
    let (cpu, seed) = (Device::cpu(), Seed::new(5).step(2));
    for n in [0, 1, 33, 20_011] {
        let x = gradient(n);
        let halves: Vec<half::f16> = x.iter().map(|&v| half::f16::from_f32(v)).collect();
        for (label, codec) in selections::settings(n as u64) {
            for gradient in [Gradient::from(&x), Gradient::from(&halves)] {
                let label = format!("{label} of {n} {}", gradient.dtype().name());
                let expected = cpu.encode_sparse(&codec, gradient, seed);
                let sent = block_on(wgpu.encode_sparse_async(&codec, gradient, None, seed));
                let (sent, expected) = match (sent, expected) {
                    (Ok(sent), Ok(expected)) => (sent, expected),
                    (Err(ours), Err(theirs)) if ours.to_string() == theirs.to_string() => continue,
                    (ours, theirs) => panic!("{label}: {ours:?}, expected {theirs:?}"),
                };
                assert!(sent == expected, "{label}");
                let (mut ours, mut theirs) = (x.clone(), x.clone());
                block_on(wgpu.decode_sparse_async(&sent, Some(-0.3), &mut ours)).expect("the device scatters");
                cpu.decode_sparse_add(&expected, -0.3, &mut theirs).expect("the CPU scatters");
                assert_eq!(bits(&ours), bits(&theirs), "{label}: added");
                block_on(wgpu.decode_sparse_async(&sent, None, &mut ours)).expect("the device scatters");
                cpu.decode_sparse_into(&expected, &mut theirs).expect("the CPU scatters");
                assert_eq!(bits(&ours), bits(&theirs), "{label}: written");
            }
            // Two steps of feedback.
            let (mut ours, mut theirs) = (vec![0.25; n], vec![0.25; n]);
            for step in 0..2 {
                let seed = seed.step(step);
                let expected = cpu.encode_sparse_with_feedback(&codec, &x, &mut theirs, seed);
                let sent = block_on(wgpu.encode_sparse_async(&codec, (&x).into(), Some(&mut ours), seed));
                match (sent, expected) {
                    (Ok(sent), Ok(expected)) => assert!(sent == expected, "{label} of {n}, step {step}"),
                    (Err(ours), Err(theirs)) if ours.to_string() == theirs.to_string() => {}
                    (ours, theirs) => panic!("{label} of {n}, step {step}: {ours:?}, expected {theirs:?}"),
                }
                assert_eq!(bits(&ours), bits(&theirs), "{label} of {n}, step {step}: residual");
            }
        }
    }
}

#[test]
fn what_is_wrong_with_a_selection_is_a_typed_error() {
    let Some(wgpu) = open() else { return };
    let (mut x, seed, codec) = (gradient(5000), Seed::new(1), TopK::fraction(0.1).non_finite(NonFinite::Error));
    let select = |codec: &TopK, x: &[f32], residual: Option<&mut [f32]>| {
        block_on(wgpu.encode_sparse_async(codec, x.into(), residual, seed))
    };
    assert!(matches!(select(&TopK::count(5001), &x, None), Err(Error::TooFew { asked: 5001, found: 5000 })));
    let short = select(&codec, &x, Some(&mut [0.0; 7]));
    assert!(matches!(short, Err(Error::Length { what: "residual", found: 7, expected: 5000, .. })));
    let sent = select(&codec, &x, None).expect("the gradient is finite");
    let short = block_on(wgpu.decode_sparse_async(&sent, None, &mut [0.0; 4]));
    assert!(matches!(short, Err(Error::Length { what: "output", found: 4, expected: 5000, .. })));
    x[4321] = f32::INFINITY;
    let mut residual = vec![1.0; 5000];
    assert!(matches!(select(&codec, &x, Some(&mut residual)), Err(Error::NotFinite { index: 4321 })));
    assert!(residual.iter().all(|v| *v == 1.0));
    let two_bits = TopK::fraction(0.1).then(Qsgd::bits(2));
    assert!(matches!(select(&two_bits, &x, Some(&mut residual)), Err(Error::FeedbackDiverges { .. })));
}

/// Any work runs on the host's memory: a selection with a residual, whose workspace is handed over as its table alone,
/// and a model.
#[test]
fn work_on_the_hosts_memory_leaves_what_the_cpu_does() {
    let Some(wgpu) = open() else { return };
    let (cpu, n, codec) = (Device::cpu(), 20_011, TopK::fraction(0.02));
    let x = gradient(n);
    let selection = codec.selection(n, Dtype::F32, true, &wgpu.limits()).expect("the settings are sound");
    let (mut ours, mut theirs) = (vec![0.25f32; n], vec![0.25f32; n]);
    let expected = cpu.encode_sparse_with_feedback(&codec, &x, &mut theirs, Seed::new(1)).expect("the CPU selects");
    let entries = selection.entries() as usize;
    let (mut indices, mut values) = (vec![0u32; entries], vec![0.0f32; entries]);
    let table = selection.table();
    let buffers = SelectBuffers {
        gradient: Gradient::F32(&x).into(),
        residual: Some(HostSlice::from(&mut ours[..])),
        indices: HostSlice::Out(bytemuck::cast_slice_mut(&mut indices)),
        values: HostSlice::Out(bytemuck::cast_slice_mut(&mut values)),
        workspace: HostSlice::In(&table),
    };
    block_on(wgpu.run_async(Select(&selection), buffers)).expect("the device selects");
    assert_eq!(selection.seal(&indices, &values).expect("entries that rise"), expected);
    assert_eq!(bits(&ours), bits(&theirs));

    let layout = Layout::packed([12_000, 8_011]).expect("valid");
    let plan = ModelPlan::new(&Qsgd::bits(4), &layout, Dtype::F32, &wgpu.limits()).expect("valid");
    let (mut body, table) = (vec![0; plan.body_bytes() as usize], plan.table());
    let buffers = EncodeBuffers {
        gradient: Gradient::F32(&x).into(),
        residual: None,
        body: HostSlice::Out(&mut body),
        workspace: None,
    };
    let buffers = WithTable { table: HostSlice::In(&table), buffers };
    block_on(wgpu.run_async(EncodeModel { plan: &plan, seed: Seed::new(1) }, buffers)).expect("the device encodes");
    let expected = cpu.encode_model(&plan, &x, &mut [], Seed::new(1)).expect("the CPU encodes");
    assert_eq!(plan.seal(&body).expect("of that length"), expected);
}

/// Factors between the first and the last one have no passes if no tensor is compressed. The step goes on all the same.
#[test]
fn a_step_goes_on_over_work_that_has_no_passes() {
    let Some(wgpu) = open() else { return };
    let tensors = [Matrix::vector(9)];
    let (codec, seed) = (PowerSgd::rank(2).iterations(2), Seed::new(1));
    let mut steps = codec.resident(&tensors, Dtype::F32, seed).expect("valid");
    let x = gradient(9);
    let (mut memory, mut residual) = (steps.image(), vec![0.0f32; 9]);
    memory.resize(steps.state_bytes() as usize, 0);
    let (mut factors, mut output) = (vec![0u8; steps.factor_bytes() as usize], vec![0.0f32; 9]);
    for call in 0..5 {
        let buffers = LowRankBuffers {
            gradient: (call == 0).then(|| Gradient::F32(&x).into()),
            residual: HostSlice::from(&mut residual[..]),
            state: HostSlice::InOut(&mut memory),
            factors: if call == 0 { HostSlice::Out(&mut factors) } else { HostSlice::InOut(&mut factors) },
            output: (call == 4).then(|| HostSlice::Out(bytemuck::cast_slice_mut(&mut output))),
        };
        match call {
            0 => block_on(wgpu.run_async(BeginLowRank(&mut steps), buffers)).expect("it begins"),
            4 => block_on(wgpu.run_async(FinishLowRank(&mut steps), buffers)).expect("it ends"),
            _ => block_on(wgpu.run_async(AdvanceLowRank(&mut steps), buffers)).expect("it goes on"),
        }
    }
    assert_eq!(bits(&output), bits(&x), "one worker's mean is its own");
}

/// There are no passes, and so nothing has written the verdict that a workspace holds.
#[test]
fn a_guarded_gradient_of_no_elements_is_encoded() {
    let Some(wgpu) = open() else { return };
    let plan = Qsgd::bits(4).non_finite(NonFinite::Error).plan(0, Dtype::F32).expect("valid");
    let buffers = EncodeBuffers {
        gradient: HostSlice::In(&[]),
        residual: None,
        body: HostSlice::Out(&mut []),
        workspace: Some(HostSlice::Out(&mut [])),
    };
    block_on(wgpu.run_async(Encode { plan: &plan, seed: Seed::new(1) }, buffers)).expect("nothing is refused");
}

#[test]
fn host_memory_that_does_not_fit_the_work_is_a_typed_error() {
    let Some(wgpu) = open() else { return };
    let x = gradient(1000);
    let plan = Qsgd::bits(8).plan(1000, Dtype::F32).expect("the settings are sound");
    let bytes = plan.header().body_bytes() as usize;
    let encode = |gradient: HostSlice<'_>, body: HostSlice<'_>| {
        let buffers = EncodeBuffers { gradient, residual: None, body, workspace: None };
        block_on(wgpu.run_async(Encode { plan: &plan, seed: Seed::new(1) }, buffers))
    };
    let whole = || HostSlice::from(Gradient::F32(&x));
    let mut body = vec![7; bytes + 1];
    encode(whole(), HostSlice::Out(&mut body[..bytes])).expect("it fits");
    body.fill(7);
    let short = encode(HostSlice::from(Gradient::F32(&x[1..])), HostSlice::Out(&mut body[..bytes]));
    assert!(matches!(short, Err(Error::Length { what: "gradient", found: 3996, expected: 4000, .. })), "{short:?}");
    for wrong in [bytes - 1, bytes + 1] {
        let error = encode(whole(), HostSlice::Out(&mut body[..wrong]));
        assert!(matches!(error, Err(Error::Length { what: "body", found, .. }) if found == wrong as u64), "{error:?}");
    }
    let error = encode(whole(), HostSlice::In(&body));
    assert!(matches!(error, Err(Error::Memory { what: "body", .. })), "{error:?}");
    assert!(body.iter().all(|byte| *byte == 7), "nothing was written");
}

/// What a piece holds beforehand and what is left in it are told apart, so that no result is lost and nothing is read
/// that was not handed over.
#[test]
fn host_memory_is_handed_over_as_the_work_uses_it() {
    let Some(wgpu) = open() else { return };
    let mut x = gradient(1000);
    let plan = Qsgd::bits(8).plan(1000, Dtype::F32).expect("the settings are sound");
    let mut body = vec![0; plan.header().body_bytes() as usize];
    let refused = |what: &str, outcome: Result<(), Error>| {
        let is_refused = match &outcome {
            Err(Error::Memory { what: found, .. } | Error::Length { what: found, .. }) => *found == what,
            _ => false,
        };
        assert!(is_refused, "{what}: {outcome:?}");
    };
    let (gradient, body) = (HostSlice::Out(bytemuck::cast_slice_mut(&mut x)), HostSlice::Out(&mut body));
    let buffers = EncodeBuffers { gradient, residual: None, body, workspace: None };
    refused("gradient", block_on(wgpu.run_async(Encode { plan: &plan, seed: Seed::new(1) }, buffers)));
    assert_eq!(x, self::gradient(1000), "it is as it was");

    // Decoded over zeros, the output is scratch to the passes, and a result.
    let (indices, values) = ([0u8; 8], [0u8; 8]);
    let decode = Scatter { entries: 2, elements: 1000, weight: None };
    let mut output = vec![0u8; 4000];
    for wrong in [HostSlice::In(&[0; 4000]), HostSlice::Out(&mut output[..3996])] {
        let buffers =
            ScatterBuffers { indices: HostSlice::In(&indices), values: HostSlice::In(&values), output: wrong };
        refused("output", block_on(wgpu.run_async(decode, buffers)));
    }
    // A lazy selection keeps in its table what was sent.
    let selection = TopK::count(5).lazy_selection(20_000, Dtype::F32, &wgpu.limits()).expect("valid");
    assert!(selection.is_lazy());
    let (mut residual, table) = (vec![0.0f32; 20_000], selection.table());
    let mut kept = table.clone();
    for wrong in [HostSlice::In(&table), HostSlice::InOut(&mut kept[4..])] {
        let buffers = SettleBuffers { residual: HostSlice::from(&mut residual[..]), workspace: wrong };
        refused("workspace", block_on(wgpu.run_async(Settle(&selection), buffers)));
    }
}

/// Steps of PowerSGD whose memory is the host's: the bits of a state on this device, and a step that is not queued has
/// not begun.
#[test]
fn steps_of_power_sgd_on_the_hosts_memory() {
    let Some(wgpu) = open() else { return };
    let tensors = [Matrix::new(40, 60), Matrix::vector(9)];
    let (codec, seed) = (PowerSgd::rank(2), Seed::new(3));
    let mut steps = codec.resident(&tensors, Dtype::F32, seed).expect("valid");
    let mut host = codec.state(&tensors, seed).expect("valid");
    let device = Device::from_wgpu(wgpu.clone());
    let x = gradient(steps.elements());
    let mut memory = steps.image();
    memory.resize(steps.state_bytes() as usize, 0);
    let (mut residual, mut factors) = (vec![0.0f32; x.len()], vec![0u8; steps.factor_bytes() as usize]);
    let image = memory.clone();
    let buffers = LowRankBuffers {
        gradient: Some(Gradient::F32(&x).into()),
        residual: HostSlice::from(&mut residual[..]),
        state: HostSlice::In(&image),
        factors: HostSlice::Out(&mut factors),
        output: None,
    };
    let lost = block_on(wgpu.run_async(BeginLowRank(&mut steps), buffers));
    assert!(matches!(lost, Err(Error::Memory { what: "state", .. })), "{lost:?}");
    for _ in 0..2 {
        let (mut output, mut expected) = (vec![0.0f32; x.len()], vec![0.0f32; x.len()]);
        let buffers = LowRankBuffers {
            gradient: Some(Gradient::F32(&x).into()),
            residual: HostSlice::from(&mut residual[..]),
            state: HostSlice::InOut(&mut memory),
            factors: HostSlice::Out(&mut factors),
            output: None,
        };
        block_on(wgpu.run_async(BeginLowRank(&mut steps), buffers)).expect("it begins");
        let buffers = LowRankBuffers {
            gradient: None,
            residual: HostSlice::from(&mut residual[..]),
            state: HostSlice::InOut(&mut memory),
            factors: HostSlice::InOut(&mut factors),
            output: None,
        };
        block_on(wgpu.run_async(AdvanceLowRank(&mut steps), buffers)).expect("it goes on");
        let buffers = LowRankBuffers {
            gradient: None,
            residual: HostSlice::from(&mut residual[..]),
            state: HostSlice::InOut(&mut memory),
            factors: HostSlice::InOut(&mut factors),
            output: Some(HostSlice::Out(bytemuck::cast_slice_mut(&mut output))),
        };
        block_on(wgpu.run_async(FinishLowRank(&mut steps), buffers)).expect("it ends");
        device.low_rank_step(&mut host, &x, &mut expected, |_| Ok::<_, Error>(())).expect("a step of one worker");
        assert_eq!(bits(&output), bits(&expected));
    }
    // A future that is dropped before it was polled has done nothing.
    let before = memory.clone();
    drop(wgpu.run_async(
        BeginLowRank(&mut steps),
        LowRankBuffers {
            gradient: Some(Gradient::F32(&x).into()),
            residual: HostSlice::from(&mut residual[..]),
            state: HostSlice::InOut(&mut memory),
            factors: HostSlice::Out(&mut factors),
            output: None,
        },
    ));
    assert!(memory == before, "the state was written");
    let saved = steps.download(&memory[..steps.saved_bytes() as usize], &residual).expect("between two steps");
    let [found, expected] = [&saved, &host].map(|state| bits(&state.residual().expect("idle")));
    assert!(found == expected, "the residuals differ");
}

/// A device says of some things what it objects to only after the call that did them. Nothing goes by it: not what is
/// larger than a buffer may be, not what another device's buffers are mixed with, and not a device that was lost.
#[test]
fn what_the_device_objects_to_is_a_typed_error() {
    if open().is_none() {
        return;
    }
    let (device, queue) = own();
    device.on_uncaptured_error(std::sync::Arc::new(|error| panic!("it reached the caller: {error}")));
    let wgpu = Wgpu::on(&device, &queue).expect("the shaders need no more than the default limits");
    let most = device.limits().max_buffer_size;
    let large = vec![0.0f32; most as usize / 4 + 1];
    let plan = Qsgd::bits(2).plan(large.len(), Dtype::F32).expect("the settings are sound");
    let refused = block_on(wgpu.encode_async(&plan, (&large).into(), &mut [], Seed::new(1)));
    assert!(
        matches!(refused, Err(Error::Limit { limit: "max_buffer_size", found, .. }) if found == most),
        "{refused:?}"
    );
    let refused = block_on(wgpu.encode_sparse_async(&TopK::count(1), (&large).into(), None, Seed::new(1)));
    assert!(matches!(refused, Err(Error::Limit { found, .. }) if found == most), "{:?}", refused.err());

    let (other, _) = own();
    let room = |device: &wgpu::Device| {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 1 << 16,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        })
    };
    let plan = Qsgd::bits(4).plan(1000, Dtype::F32).expect("the settings are sound");
    let record = |gradient: &wgpu::Buffer| {
        let body = room(&device);
        block_on(wgpu.checked("recording", || {
            let mut encoder = device.create_command_encoder(&Default::default());
            let (gradient, body) = (gradient.slice(..), body.slice(..));
            let buffers = EncodeBuffers { gradient, residual: None, body, workspace: None };
            wgpu.record(Encode { plan: &plan, seed: Seed::new(1) }, &mut encoder, buffers)
        }))
    };
    record(&room(&device)).expect("all of it is this device's");
    let error = record(&room(&other)).expect_err("a buffer of another device");
    assert!(matches!(error, Error::Backend { backend: BackendKind::Wgpu, .. }), "{error:?}");
    // What was objected to is no one else's.
    let x = gradient(1000);
    block_on(wgpu.encode_async(&plan, (&x).into(), &mut [], Seed::new(1))).expect("the device is as it was");

    device.destroy();
    let lost = block_on(wgpu.encode_async(&plan, (&x).into(), &mut [], Seed::new(1)));
    assert!(matches!(lost, Err(Error::Backend { .. })), "{lost:?}");
    let lost = block_on(wgpu.encode_sparse_async(&TopK::count(1), (&x).into(), None, Seed::new(1)));
    assert!(matches!(lost, Err(Error::Backend { .. })), "{:?}", lost.err());
}

/// The calls of a step, with a wait and without, each on its own state; all that is written and kept is the same. The
/// mean of what is handed out is three quarters of it.
fn step(wgpu: &Wgpu, device: &Device, gradient: Gradient<'_>, [ours, theirs]: [&mut LowRankState; 2], label: &str) {
    let mut factors = [vec![f32::NAN; ours.factor_len()], vec![0.0; theirs.factor_len()]];
    let without = block_on(wgpu.begin_low_rank_async(ours, gradient, &mut factors[0]));
    let with = device.begin_low_rank(theirs, gradient, &mut factors[1]);
    assert_eq!(format!("{without:?}"), format!("{with:?}"), "{label}");
    if with.is_err() {
        assert!(ours == theirs, "{label}: the states differ after a refusal");
        return;
    }
    let mut call = 1;
    loop {
        let label = format!("{label}, call {call}");
        assert_eq!(bits(&factors[0]), bits(&factors[1]), "{label}: what is sent");
        let mean: Vec<f32> = factors[1].iter().map(|v| v * 0.75).collect();
        if ours.factor_len() == 0 {
            let mut outputs = [vec![f32::NAN; ours.elements()], vec![0.0; theirs.elements()]];
            let without = block_on(wgpu.finish_low_rank_async(ours, &mean, &mut outputs[0]));
            let with = device.finish_low_rank(theirs, &mean, &mut outputs[1]);
            assert_eq!(format!("{without:?}"), format!("{with:?}"), "{label}");
            if with.is_err() {
                ours.abandon();
                theirs.abandon();
                assert!(ours == theirs, "{label}: the states differ after a refusal");
                return;
            }
            assert_eq!(bits(&outputs[0]), bits(&outputs[1]), "{label}: output");
            assert!(ours == theirs, "{label}: the states differ");
            return;
        }
        factors = [vec![f32::NAN; ours.factor_len()], vec![0.0; theirs.factor_len()]];
        block_on(wgpu.advance_low_rank_async(ours, &mean, &mut factors[0])).expect("the device multiplies");
        device.advance_low_rank(theirs, &mean, &mut factors[1]).expect("the device multiplies");
        call += 1;
    }
}

#[test]
fn steps_of_powersgd_are_those_that_wait() {
    let Some(wgpu) = open() else { return };
    let device = Device::from_wgpu(wgpu.clone());
    let n = MODEL.iter().map(gradwire::Matrix::elements).sum::<u64>() as usize;
    for (codec, _) in codecs() {
        let mut ours = codec.state(&MODEL, Seed::new(3)).expect("valid");
        let mut theirs = ours.clone();
        for t in 0..5 {
            let mut x = gradwire_tests::cases::normal(n, 60 + t);
            // A matrix, and then an element that goes alone.
            match t {
                2 => x[40] = f32::NAN,
                3 => x[5] = f32::INFINITY,
                _ => {}
            }
            let halves: Vec<half::bf16> = x.iter().map(|&v| half::bf16::from_f32(v)).collect();
            let gradient = if t == 1 { Gradient::from(&halves) } else { Gradient::from(&x) };
            step(&wgpu, &device, gradient, [&mut ours, &mut theirs], &format!("{codec:?}, step {t}"));
        }
        assert!(theirs.steps() >= 3, "{codec:?}: {} steps", theirs.steps());
    }
}

#[test]
fn steps_of_powersgd_go_on_with_either_and_refuse_what_is_wrong() {
    let Some(wgpu) = open() else { return };
    let device = Device::from_wgpu(wgpu.clone());
    let n = MODEL.iter().map(gradwire::Matrix::elements).sum::<u64>() as usize;
    let mut state = PowerSgd::rank(2).state(&MODEL, Seed::new(3)).expect("valid");
    let (x, mut output) = (gradwire_tests::cases::normal(n, 70), vec![0.0; n]);
    let before = state.clone();
    let mut p = vec![0.0; state.factor_len()];
    let early = block_on(wgpu.finish_low_rank_async(&mut state, &p, &mut output));
    assert!(matches!(early, Err(Error::Order { asked: "finish_low_rank", .. })), "{early:?}");
    let early = block_on(wgpu.advance_low_rank_async(&mut state, &p, &mut []));
    assert!(matches!(early, Err(Error::Order { asked: "advance_low_rank", .. })), "{early:?}");
    let short = block_on(wgpu.begin_low_rank_async(&mut state, (&x[1..]).into(), &mut p));
    assert!(matches!(short, Err(Error::Length { what: "gradient", .. })), "{short:?}");
    let narrow = wgpu.clone().with_limits(gradwire::plan::Limits {
        binding_bytes: 256,
        groups: 65_535,
        ..gradwire::plan::Limits::NONE
    });
    let limited = block_on(narrow.begin_low_rank_async(&mut state, (&x).into(), &mut p));
    assert!(matches!(limited, Err(Error::Limit { .. })), "{limited:?}");
    // A future that is never polled, and so dropped, has done nothing.
    drop(wgpu.begin_low_rank_async(&mut state, (&x).into(), &mut p));
    assert!(state == before, "something has changed");

    let mut expected = vec![0.0; n];
    let mut theirs = before;
    device.low_rank_step(&mut theirs, &x, &mut expected, alone).expect("valid");
    block_on(wgpu.begin_low_rank_async(&mut state, (&x).into(), &mut p)).expect("the device begins");
    let again = block_on(wgpu.begin_low_rank_async(&mut state, (&x).into(), &mut p));
    assert!(matches!(again, Err(Error::Order { asked: "begin_low_rank", .. })), "{again:?}");
    let mut q = vec![0.0; state.factor_len()];
    device.advance_low_rank(&mut state, &p, &mut q).expect("it goes on with a wait");
    block_on(wgpu.finish_low_rank_async(&mut state, &q, &mut output)).expect("and without one");
    assert_eq!(bits(&output), bits(&expected));
    assert!(state == theirs, "the states differ");
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
    let (codec, mut residual) = (TopK::count(2), [0.0; 10]);
    let encode = wgpu.encode_sparse_async(&codec, (&x).into(), Some(&mut residual), Seed::new(1));
    sent(&encode);
    let payload = block_on(encode).expect("the device selects");
    let decode = wgpu.decode_sparse_async(&payload, None, &mut output);
    sent(&decode);
    block_on(decode).expect("the device scatters");
    let mut state = PowerSgd::rank(1).state(&[gradwire::Matrix::new(2, 5)], Seed::new(1)).expect("valid");
    let mut factor = vec![0.0; state.factor_len()];
    let begin = wgpu.begin_low_rank_async(&mut state, (&x).into(), &mut factor);
    sent(&begin);
    block_on(begin).expect("the device multiplies");
}
