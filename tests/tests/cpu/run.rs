//! Work on memory of the host's, run by the CPU: `Cpu::run`.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::embed::{
    Decode, DecodeBuffers, DecodeModel, Encode, EncodeBuffers, EncodeModel, HostSlice, Scatter, ScatterBuffers,
    WithTable, Work,
};
use gradwire::plan::Limits;
use gradwire::{
    Codec, DecodeMode, DecodePlan, Device, Dtype, EncodePlan, Error, Gradient, Layout, ModelPlan, NonFinite, Qsgd, Seed,
};

const N: usize = 70_001;
const SEED: Seed = Seed::new(42);

fn gradient() -> Vec<f32> {
    (0..N).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn plan() -> EncodePlan {
    let plan = Qsgd::bits(4).contractive().non_finite(NonFinite::Error).plan(N, Dtype::F32).expect("valid");
    plan.with_feedback().expect("contractive")
}

fn encode(cpu: &Cpu, plan: &EncodePlan, of: &[f32], residual: HostSlice<'_>, body: HostSlice<'_>) -> Result<(), Error> {
    let mut workspace = vec![0xff; plan.workspace_bytes() as usize];
    let buffers = EncodeBuffers {
        gradient: Gradient::F32(of).into(),
        residual: Some(residual),
        body,
        workspace: Some(HostSlice::Out(&mut workspace)),
    };
    cpu.run(Encode { plan, seed: SEED }, buffers)?;
    plan.check_workspace(&workspace)
}

#[test]
fn bodies_and_residuals_are_those_of_a_device_at_every_width() {
    let (plan, gradient) = (plan(), gradient());
    let mut expected_residual = vec![0.25f32; N];
    let expected = Device::cpu()
        .encode_plan(&plan, Gradient::F32(&gradient), &mut expected_residual, SEED)
        .expect("a device encodes");
    for simd in Simd::ALL.into_iter().filter(|simd| simd.available()) {
        let cpu = Cpu::with_simd(simd).expect("available");
        let (mut residual, mut body) = (vec![0.25f32; N], vec![7; plan.header().body_bytes() as usize]);
        encode(&cpu, &plan, &gradient, HostSlice::from(&mut residual[..]), HostSlice::Out(&mut body)).expect("encodes");
        assert_eq!(plan.header().seal(&body).expect("a body"), expected);
        assert!(residual.iter().zip(&expected_residual).all(|(a, b)| a.to_bits() == b.to_bits()));

        // Bodies of two payloads in one slice, and the sum of both.
        let bodies = [&body[..], &body].concat();
        let (decode, mut sum) = (DecodePlan::new(*plan.header(), 2), vec![7.0f32; N]);
        let buffers = DecodeBuffers {
            bodies: HostSlice::In(&bodies),
            output: HostSlice::Out(bytemuck::cast_slice_mut(&mut sum)),
        };
        cpu.run(Decode { plan: &decode, mode: DecodeMode::Sum(0.5) }, buffers).expect("decodes");
        let mut expected_sum = vec![0.0f32; N];
        Device::cpu().decode_sum(&[&expected, &expected], 0.5, &mut expected_sum).expect("a device decodes");
        assert!(sum.iter().zip(&expected_sum).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let (plan, cpu) = (plan(), Cpu::default());
    let (mut wrong, bytes) = (gradient(), plan.header().body_bytes() as usize);
    let mut body = vec![7; bytes];
    let mut room = vec![0u8; 4 * N + 8];
    // The residual begins one byte after an aligned place.
    let at = room.as_ptr().align_offset(4) + 1;
    let refused = encode(&cpu, &plan, &wrong, HostSlice::InOut(&mut room[at..at + 4 * N]), HostSlice::Out(&mut body));
    assert!(matches!(refused, Err(Error::Memory { what: "residual", .. })), "{refused:?}");

    let mut residual = vec![0.25f32; N];
    let with = |residual: HostSlice<'_>, body: HostSlice<'_>| encode(&cpu, &plan, &wrong, residual, body);
    let refused = with(HostSlice::Out(bytemuck::cast_slice_mut(&mut residual)), HostSlice::Out(&mut body));
    assert!(matches!(refused, Err(Error::Memory { what: "residual", .. })), "{refused:?}");
    let refused = with(HostSlice::from(&mut residual[..]), HostSlice::In(&[7; 9]));
    assert!(matches!(refused, Err(Error::Memory { what: "body", .. })), "{refused:?}");
    let refused = with(HostSlice::from(&mut residual[1..]), HostSlice::Out(&mut body));
    assert!(matches!(refused, Err(Error::Length { what: "residual", .. })), "{refused:?}");
    let refused = with(HostSlice::from(&mut residual[..]), HostSlice::Out(&mut body[1..]));
    assert!(matches!(refused, Err(Error::Length { what: "body", .. })), "{refused:?}");

    wrong[N - 2] = f32::NAN;
    let refused = encode(&cpu, &plan, &wrong, HostSlice::from(&mut residual[..]), HostSlice::Out(&mut body));
    assert!(matches!(refused, Err(Error::NotFinite { index }) if index == N as u64 - 2), "{refused:?}");
    assert!(body.iter().all(|byte| *byte == 7) && residual.iter().all(|value| *value == 0.25));
}

#[test]
fn an_index_that_is_no_elements_is_passed_over() {
    for (weight, expected) in [(None, [0.0, 0.0, 3.0, 0.0]), (Some(2.0), [7.0, 7.0, 13.0, 7.0])] {
        let mut output = [7.0f32; 4];
        let output_bytes = bytemuck::cast_slice_mut(&mut output);
        let buffers = ScatterBuffers {
            indices: HostSlice::In(bytemuck::cast_slice(&[2u32, 4, u32::MAX])),
            values: HostSlice::In(bytemuck::cast_slice(&[3.0f32, 5.0, 6.0])),
            output: if weight.is_some() { HostSlice::InOut(output_bytes) } else { HostSlice::Out(output_bytes) },
        };
        let work = Scatter { entries: 3, elements: 4, weight };
        assert_eq!(work.passes(&Limits::NONE).expect("planned").len(), if weight.is_some() { 1 } else { 2 });
        Cpu::default().run(work, buffers).expect("it runs");
        assert_eq!(output, expected);
    }
}

#[test]
fn a_models_table_adds_to_the_step_as_on_a_device() {
    let layout = Layout::from_shapes([&[300, 20][..], &[7], &[1, 513]]).expect("small");
    let plan = ModelPlan::new(&Qsgd::bits(4), &layout, Dtype::F32, &Limits::NONE).expect("valid");
    let gradient = &gradient()[..layout.elements() as usize];
    let mut table = plan.table();
    table[..8].copy_from_slice(&5u64.to_le_bytes());
    let expected = Device::cpu().encode_model(&plan, gradient, &mut [], SEED.step(7)).expect("a device encodes");
    let mut again = table.clone();
    for table in [HostSlice::In(&table), HostSlice::InOut(&mut again)] {
        let mut body = vec![0; plan.body_bytes() as usize];
        let buffers = EncodeBuffers {
            gradient: Gradient::F32(gradient).into(),
            residual: None,
            body: HostSlice::Out(&mut body),
            workspace: None,
        };
        let work = EncodeModel { plan: &plan, seed: SEED.step(2) };
        Cpu::default().run(work, WithTable { table, buffers }).expect("encodes");
        assert_eq!(plan.seal(&body).expect("a body"), expected);
    }

    // A model of empty tensors has bodies of no bytes, so that only the number of payloads can refuse them.
    let layout = Layout::from_shapes([&[0][..]; 2]).expect("empty");
    let plan = ModelPlan::new(&Qsgd::bits(4), &layout, Dtype::F32, &Limits::NONE).expect("valid");
    let table = plan.table();
    let work = DecodeModel { plan: &plan, mode: DecodeMode::Write, payloads: u32::MAX };
    let buffers = DecodeBuffers { bodies: HostSlice::In(&[]), output: HostSlice::InOut(&mut []) };
    let refused = Cpu::default().run(work, WithTable { table: HostSlice::In(&table), buffers });
    assert!(matches!(refused, Err(Error::Setting { .. })), "{refused:?}");
}

#[test]
fn work_without_payloads_and_lengths_of_no_gradient_are_refused() {
    let plan = plan();
    for mode in [DecodeMode::Write, DecodeMode::Add(1.0), DecodeMode::Sum(1.0)] {
        let (decode, mut output) = (DecodePlan::new(*plan.header(), 0), vec![7.0f32; N]);
        let buffers = DecodeBuffers { bodies: HostSlice::In(&[]), output: HostSlice::from(&mut output[..]) };
        let refused = Cpu::default().run(Decode { plan: &decode, mode }, buffers);
        assert!(matches!(refused, Err(Error::Setting { got: 0.0, .. })), "{refused:?}");
        assert!(output.iter().all(|value| *value == 7.0));
    }
    // Of the first two, four times as many bytes do not fit a u64.
    for (entries, elements) in [(1 << 62, 4), (1, 1 << 62), ((1 << 31) + 1, 4)] {
        let mut output = [7.0f32; 4];
        let buffers = ScatterBuffers {
            indices: HostSlice::In(&[]),
            values: HostSlice::In(&[]),
            output: HostSlice::from(&mut output[..]),
        };
        let work = Scatter { entries, elements, weight: Some(1.0) };
        assert!(matches!(work.passes(&Limits::NONE), Err(Error::TooLong { .. })));
        let refused = Cpu::default().run(work, buffers);
        assert!(matches!(refused, Err(Error::TooLong { got }) if got == entries.max(elements)), "{refused:?}");
    }
}
