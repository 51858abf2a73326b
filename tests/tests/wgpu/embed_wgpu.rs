//! Encoding and decoding recorded into a caller's encoder, on whatever adapter this machine has.

use gradwire::embed::{
    Decode, DecodeBuffers, DecodeRandom, DecodeRandomBuffers, Encode, EncodeBuffers, EncodeRandom, EncodeRandomBuffers,
    Scatter, ScatterBuffers, Select, SelectBuffers,
};
use gradwire::plan::Limits;
use gradwire::wgpu::{self, BufferUsages};
use gradwire::{
    Codec, DecodeMode, DecodePlan, Device, Dtype, Error, Layout, Matrix, ModelPlan, NonFinite, PowerSgd, Qsgd, RandomK,
    Seed, TopK, Uniform,
};
use gradwire_tests::caller::{Caller, EVERY};
use gradwire_tests::cases::{self, Quantizer};
use half::bf16;

/// A buffer that holds bytes from `at` on.
fn holding(caller: &Caller, bytes: &[u8], at: u64) -> wgpu::Buffer {
    let buffer = caller.room(at + bytes.len() as u64, EVERY);
    caller.queue.write_buffer(&buffer, at, bytes);
    buffer
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

#[test]
fn recorded_commands_leave_what_a_cpu_encodes_and_decodes() {
    let Some(caller) = Caller::open() else { return };
    let (n, cpu) = (300_000, Device::cpu());
    let (x, before) = (cases::normal(n, 5), cases::normal(n, 6));
    // Every part of 2^19 elements apart shows only above as many; a whole tensor takes three dispatches anyway.
    let codecs = [
        Quantizer::Qsgd(Qsgd::bits(8)),
        Quantizer::Qsgd(Qsgd::bits(8).l2().whole_tensor().contractive().non_finite(NonFinite::Error)),
        Quantizer::Uniform(Uniform::bits(6).bucket(64)),
    ];
    for codec in codecs {
        let plan = codec.plan(n, Dtype::F32).expect("a valid setting").with_feedback().expect("it contracts");
        let h = *plan.header();
        let mut residual = before.clone();
        let expected = cpu.encode_with_feedback(&codec, &x, &mut residual, cases::seed()).expect("the CPU encodes");

        // Residual and body are parts of one buffer, after each other; the gradient begins within another one.
        let gradient = holding(&caller, bytemuck::cast_slice(&x), 512);
        let state = (4 * n as u64).next_multiple_of(256);
        let shared = caller.room(state + h.body_bytes(), EVERY);
        caller.queue.write_buffer(&shared, 0, bytemuck::cast_slice(&before));
        let workspace = caller.room(plan.workspace_bytes(), EVERY);
        let buffers = EncodeBuffers {
            gradient: gradient.slice(512..),
            residual: Some(shared.slice(..state)),
            body: shared.slice(state..),
            workspace: Some(workspace.slice(..)),
        };
        let output = holding(&caller, bytemuck::cast_slice(&x), 0);
        // Decoded by the same commands, from where it was encoded: nothing is submitted in between.
        let mut encoder = caller.encoder();
        caller.gradwire.record(Encode { plan: &plan, seed: cases::seed() }, &mut encoder, buffers).expect("it records");
        let decode = DecodePlan::new(h, 1);
        let to = DecodeBuffers { bodies: shared.slice(state..), output: output.slice(..) };
        caller
            .gradwire
            .record(Decode { plan: &decode, mode: DecodeMode::Add(0.5) }, &mut encoder, to)
            .expect("it records");
        caller.queue.submit([encoder.finish()]);

        if plan.is_guarded() {
            plan.check_workspace(&caller.read(&workspace, 0..4)).expect("all is finite");
        }
        let body = caller.read(&shared, state..state + h.body_bytes());
        assert_eq!(h.seal(&body).expect("of that length"), expected, "{codec:?}");
        assert_eq!(words(&caller.read(&shared, 0..4 * n as u64)), words(bytemuck::cast_slice(&residual)), "{codec:?}");
        let mut sum = x.clone();
        cpu.decode_add(&expected, 0.5, &mut sum).expect("the CPU decodes");
        assert_eq!(words(&caller.read(&output, 0..4 * n as u64)), words(bytemuck::cast_slice(&sum)), "{codec:?}");
    }
}

#[test]
fn a_gradient_of_exactly_the_documented_bytes_is_enough() {
    let Some(caller) = Caller::open() else { return };
    let (device, codec) = (Device::cpu(), Qsgd::bits(4).bucket(64));
    for n in [1usize, 2, 255, 1001] {
        let (values, seed) = (cases::normal(n, 3), cases::seed());
        let halves: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
        let plan = codec.plan(n, Dtype::Bf16).expect("valid");
        assert_eq!(plan.gradient_bytes(), (2 * n as u64).next_multiple_of(4));
        let expected = device.encode(&codec, &halves, seed).expect("the CPU encodes");
        let usage = EVERY;
        // Not a byte more than the plan says, in a buffer and in a part of one.
        let descriptor =
            wgpu::BufferDescriptor { label: None, size: plan.gradient_bytes(), usage, mapped_at_creation: false };
        let gradient = caller.device.create_buffer(&descriptor);
        caller.write(&gradient, bytemuck::cast_slice(&halves));
        let within = caller.room(plan.gradient_bytes() + 512, EVERY);
        let mut bytes = vec![0xff; 256];
        bytes.extend_from_slice(bytemuck::cast_slice(&halves));
        bytes.resize(256 + plan.gradient_bytes() as usize, 0xff); // a NaN after the last element
        caller.write(&within, &bytes);
        let part = within.slice(256..256 + plan.gradient_bytes());
        let body = caller.room(plan.header().body_bytes(), EVERY);
        for gradient in [gradient.slice(..), part] {
            let buffers = EncodeBuffers { gradient, residual: None, body: body.slice(..), workspace: None };
            let mut encoder = caller.encoder();
            caller
                .gradwire
                .record(Encode { plan: &plan, seed }, &mut encoder, buffers)
                .expect("it is as long as it should be");
            caller.queue.submit([encoder.finish()]);
            let found = caller.read(&body, 0..plan.header().body_bytes());
            assert_eq!(plan.header().seal(&found).expect("of that length"), expected, "{n} elements");
        }
        let layout = Layout::packed([n as u64]).expect("valid");
        let model = ModelPlan::new(&codec, &layout, Dtype::Bf16, &caller.gradwire.limits()).expect("valid");
        assert_eq!(model.gradient_bytes(), plan.gradient_bytes());
        let steps = PowerSgd::rank(1).resident(&[Matrix::vector(n as u64)], Dtype::Bf16, seed).expect("valid");
        assert_eq!(steps.gradient_bytes(), plan.gradient_bytes());
    }
}

#[test]
fn a_tensor_beyond_the_limits_takes_several_dispatches() {
    let Some(caller) = Caller::open() else { return };
    // 2^19 elements a binding.
    let small = caller.gradwire.clone().with_limits(Limits { binding_bytes: 1 << 21, groups: 65535, ..Limits::NONE });
    let (n, cpu, codec) = ((1 << 20) + 1000, Device::cpu(), Qsgd::bits(4));
    let x = cases::normal(n, 9);
    let plan = codec.plan(n, Dtype::F32).expect("a valid setting");
    let h = *plan.header();
    let all = [0, 1].map(|w| cpu.encode(&codec, &x, Seed::new(w)).expect("the CPU encodes"));
    let gradient = holding(&caller, bytemuck::cast_slice(&x), 0);
    let body = caller.room(h.body_bytes(), EVERY);
    let buffers = EncodeBuffers { gradient: gradient.slice(..), residual: None, body: body.slice(..), workspace: None };
    let mut encoder = caller.encoder();
    small.record(Encode { plan: &plan, seed: Seed::new(1) }, &mut encoder, buffers).expect("it records");
    caller.queue.submit([encoder.finish()]);
    assert_eq!(h.seal(&caller.read(&body, 0..h.body_bytes())).expect("of that length"), all[1]);

    let decode = DecodePlan::new(h, 2);
    let mut bytes = vec![0; 2 * h.body_bytes() as usize];
    decode.write_bodies(&all, &mut bytes).expect("of one kind");
    let bodies = holding(&caller, &bytes, 0);
    let output = caller.room(4 * n as u64, EVERY);
    let to = DecodeBuffers { bodies: bodies.slice(..), output: output.slice(..) };
    let mut encoder = caller.encoder();
    small.record(Decode { plan: &decode, mode: DecodeMode::Sum(0.5) }, &mut encoder, to).expect("it records");
    caller.queue.submit([encoder.finish()]);
    let mut sum = vec![0.0; n];
    cpu.decode_sum(&all, 0.5, &mut sum).expect("the CPU decodes");
    assert_eq!(words(&caller.read(&output, 0..4 * n as u64)), words(bytemuck::cast_slice(&sum)));

    let none = caller.gradwire.clone().with_limits(Limits { binding_bytes: 1 << 16, groups: 65535, ..Limits::NONE });
    let mut encoder = caller.encoder();
    let error =
        none.record(Encode { plan: &plan, seed: Seed::new(1) }, &mut encoder, buffers).expect_err("no part fits");
    assert!(matches!(error, Error::Limit { .. }), "{error:?}");
}

#[test]
fn entries_selected_by_recorded_commands_are_those_of_a_cpu() {
    let Some(caller) = Caller::open() else { return };
    let (n, cpu, codec) = (100_000, Device::cpu(), TopK::fraction(0.02));
    let (x, before) = (cases::normal(n, 5), cases::normal(n, 6));
    let selection = codec.selection(n, Dtype::F32, true, &caller.gradwire.limits()).expect("valid");
    let mut residual = before.clone();
    let expected = cpu.encode_sparse_with_feedback(&codec, &x, &mut residual, Seed::new(1)).expect("the CPU selects");
    let bytes = 4 * selection.entries();
    let [gradient, state] = [&x, &before].map(|v| holding(&caller, bytemuck::cast_slice(v), 0));
    let [indices, values] = [(); 2].map(|()| caller.room(bytes, EVERY));
    let workspace = caller.room(selection.workspace_bytes(), EVERY);
    caller.queue.write_buffer(&workspace, 0, &selection.table());
    let output = caller.room(4 * n as u64, EVERY);
    let buffers = SelectBuffers {
        gradient: gradient.slice(..),
        residual: Some(state.slice(..)),
        indices: indices.slice(..),
        values: values.slice(..),
        workspace: workspace.slice(..),
    };
    let to = ScatterBuffers { indices: indices.slice(..), values: values.slice(..), output: output.slice(..) };
    let mut encoder = caller.encoder();
    caller.gradwire.record(Select(&selection), &mut encoder, buffers).expect("it records");
    caller
        .gradwire
        .record(Scatter { entries: selection.entries(), elements: n as u64, weight: None }, &mut encoder, to)
        .expect("it records");
    caller.queue.submit([encoder.finish()]);
    let found: Vec<f32> = bytemuck::pod_collect_to_vec(&caller.read(&values, 0..bytes));
    let payload = selection.seal(&words(&caller.read(&indices, 0..bytes)), &found).expect("entries that rise");
    assert_eq!(payload.as_bytes(), expected.as_bytes());
    assert_eq!(words(&caller.read(&state, 0..4 * n as u64)), words(bytemuck::cast_slice(&residual)));
    let decoded = cpu.decode_sparse(&expected).expect("the CPU decodes");
    assert_eq!(words(&caller.read(&output, 0..4 * n as u64)), words(bytemuck::cast_slice(&decoded)));
    let mut encoder = caller.encoder();
    let short = SelectBuffers { values: values.slice(..bytes - 4), ..buffers };
    let error = caller.gradwire.record(Select(&selection), &mut encoder, short).expect_err("short");
    assert!(matches!(error, Error::Length { what: "list of values", .. }), "{error:?}");
}

/// In dispatches of as many entries as a limit allows: taken from gradient and residual, added to an output, and
/// decoded over zeros.
#[test]
fn entries_drawn_by_recorded_commands_are_those_of_a_cpu() {
    let Some(caller) = Caller::open() else { return };
    let small = caller.gradwire.clone().with_limits(Limits { groups: 7, ..caller.gradwire.limits() });
    let (n, cpu, seed) = (10_000u64, Device::cpu(), Seed::new(1).step(5));
    let (mut clean, before) = (cases::normal(n as usize, 5), cases::normal(n as usize, 6));
    clean[5] = f32::from_bits(1);
    let mut odd = clean.clone();
    (odd[3], odd[4]) = (f32::NAN, f32::INFINITY);
    let codecs = [RandomK::fraction(0.05), RandomK::count(6000).unbiased()];
    for (codec, x) in codecs.into_iter().flat_map(|codec| [(codec, &clean), (codec, &odd)]) {
        let mut residual = before.clone();
        let expected = cpu.encode_random_with_feedback(&codec, x, &mut residual, seed).expect("the CPU takes them");
        let [gradient, state, output, over_zeros] =
            [x, &before, x, x].map(|values| holding(&caller, bytemuck::cast_slice(values), 0));
        let values = caller.room(4 * expected.len() as u64, EVERY);
        let buffers = EncodeRandomBuffers {
            gradient: gradient.slice(..),
            residual: Some(state.slice(..)),
            values: values.slice(..),
        };
        let mut encoder = caller.encoder();
        let work = EncodeRandom { codec, elements: n, feedback: true, seed };
        small.record(work, &mut encoder, buffers).expect("it records");
        for (weight, output) in [(Some(0.25), &output), (None, &over_zeros)] {
            let to = DecodeRandomBuffers { values: values.slice(..), output: output.slice(..) };
            small.record(DecodeRandom { codec, elements: n, weight, seed }, &mut encoder, to).expect("it records");
        }
        caller.queue.submit([encoder.finish()]);
        let same = |buffer, expected: &[f32]| {
            let found = words(&caller.read(buffer, 0..4 * expected.len() as u64));
            assert_eq!(found, words(bytemuck::cast_slice(expected)), "{codec:?}");
        };
        same(&values, &expected);
        // Of a step that is not finite the host leaves the residual, and what is recorded does not.
        if x == &clean {
            same(&state, &residual);
        }
        let mut sum = x.clone();
        cpu.decode_random_add(&codec, &expected, 0.25, &mut sum, seed).expect("the CPU adds them");
        same(&output, &sum);
        same(&over_zeros, &cpu.decode_random(&codec, &expected, n as usize, seed).expect("the CPU decodes"));
    }
}

#[test]
fn what_is_wrong_with_buffers_is_said_before_anything_is_recorded() {
    let Some(caller) = Caller::open() else { return };
    let plan = Qsgd::bits(8).whole_tensor().non_finite(NonFinite::Error).plan(1000, Dtype::F32).expect("valid");
    let plan = plan.with_feedback().expect("omega is below 1");
    let (body, work) = (plan.header().body_bytes(), plan.workspace_bytes());
    let [gradient, residual] = [(); 2].map(|()| caller.room(16_000, EVERY));
    let (bodies, workspace) = (caller.room(body, EVERY), caller.room(work, EVERY));
    let plain = caller.room(4000, BufferUsages::COPY_DST);
    let unclearable = caller.room(work, BufferUsages::STORAGE);
    let good = EncodeBuffers {
        gradient: gradient.slice(..4000),
        residual: Some(residual.slice(..4000)),
        body: bodies.slice(..),
        workspace: Some(workspace.slice(..)),
    };
    let mut encoder = caller.encoder();
    caller.gradwire.record(Encode { plan: &plan, seed: Seed::new(1) }, &mut encoder, good).expect("all is well");
    let large = caller.room(2 * body + 4096, EVERY);
    let cases: [(&str, EncodeBuffers<wgpu::BufferSlice<'_>>, &[&str]); 10] = [
        ("short", EncodeBuffers { gradient: gradient.slice(..3996), ..good }, &["gradient", "3996", "4000"]),
        ("short workspace", EncodeBuffers { workspace: Some(workspace.slice(..work - 4)), ..good }, &["workspace"]),
        ("no residual", EncodeBuffers { residual: None, ..good }, &["feedback", "no residual", "4000 bytes"]),
        ("no workspace", EncodeBuffers { workspace: None, ..good }, &["workspace"]),
        ("no STORAGE", EncodeBuffers { gradient: plain.slice(..), ..good }, &["gradient", "STORAGE", "COPY_DST"]),
        ("not to be cleared", EncodeBuffers { workspace: Some(unclearable.slice(..)), ..good }, &["COPY_DST"]),
        ("misaligned", EncodeBuffers { gradient: gradient.slice(4..4004), ..good }, &["gradient", "multiple of"]),
        ("read and written", EncodeBuffers { residual: Some(gradient.slice(4096..)), ..good }, &["one buffer with"]),
        (
            "overlapping",
            EncodeBuffers { residual: Some(large.slice(..4000)), body: large.slice(3840..), ..good },
            &["residual", "overlaps the body"],
        ),
        ("workspace shared", EncodeBuffers { workspace: Some(residual.slice(4096..)), ..good }, &["workspace"]),
    ];
    for (what, buffers, words) in cases {
        let mut encoder = caller.encoder();
        let error =
            caller.gradwire.record(Encode { plan: &plan, seed: Seed::new(1) }, &mut encoder, buffers).expect_err(what);
        assert!(
            matches!(error, Error::Length { .. } | Error::NoResidual { .. } | Error::Memory { .. }),
            "{what}: {error:?}"
        );
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{what}: {error}");
    }
    let decode = DecodePlan::new(*plan.header(), 1);
    let to = DecodeBuffers { bodies: large.slice(..body), output: large.slice(body.next_multiple_of(256)..) };
    let mut encoder = caller.encoder();
    let error = caller
        .gradwire
        .record(Decode { plan: &decode, mode: DecodeMode::Write }, &mut encoder, to)
        .expect_err("shared");
    assert!(matches!(error, Error::Memory { what: "output", .. }), "{error:?}");
}

#[test]
fn advice_names_what_the_default_limits_cost() {
    let Some(caller) = Caller::open() else { return };
    let advice = caller.gradwire.advice();
    assert!(advice.iter().any(|a| a.contains("max_storage_buffer_binding_size")), "{advice:?}");
}
