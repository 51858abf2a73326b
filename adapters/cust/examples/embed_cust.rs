//! Every codec through a context, a stream and buffers that cust owns, each against the CPU's bytes:
//! `cargo run --release --example embed_cust`, on a machine with CUDA and its toolkit.

use std::error::Error;

use cust::context::Context;
use cust::memory::DeviceBuffer;
use cust::stream::{Stream, StreamFlags};
use gradwire::embed::{
    AdvanceLowRank, BeginLowRank, Decode, DecodeBuffers, DecodeModel, Encode, EncodeBuffers, EncodeModel,
    FinishLowRank, LowRankBuffers, Scatter, ScatterBuffers, Select, SelectBuffers, Settle, SettleBuffers, WithTable,
};
use gradwire::plan::Limits;
use gradwire::{
    Codec, DecodeMode, DecodePlan, Device, Dtype, Layout, Matrix, ModelPlan, NonFinite, PowerSgd, Qsgd, Seed, TopK,
    Uniform,
};
use gradwire_cust::{OnStream, piece};

const N: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let context: Context = cust::quick_init()?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let gradwire = OnStream::new(&context, &stream)?;
    println!("{}", gradwire.name());
    single("QSGD, 4 bits, buckets of 512", &Qsgd::bits(4).contractive(), &gradwire, &stream)?;
    single("QSGD, whole tensor", &Qsgd::bits(8).whole_tensor().l2().contractive(), &gradwire, &stream)?;
    single("uniform, 8 bits", &Uniform::bits(8), &gradwire, &stream)?;
    model("a model of three tensors", &Qsgd::bits(8).non_finite(NonFinite::Error), &gradwire, &stream)?;
    sparse("top-k, 1 %", &TopK::fraction(0.01), &gradwire, &stream)?;
    low_rank("PowerSGD, rank 2", &PowerSgd::rank(2), &gradwire, &stream)?;
    Ok(())
}

fn gradient() -> Vec<f32> {
    (0..N).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i % 100) as f32)).collect()
}

/// Encode with feedback, then decode onto a sum, all on cust's stream.
fn single(name: &str, codec: &impl Codec, gradwire: &OnStream<'_>, stream: &Stream) -> Result<(), Box<dyn Error>> {
    let (x, seed, cpu) = (gradient(), Seed::new(42).step(1), Device::cpu());
    let plan = codec.plan(N, Dtype::F32)?.with_feedback()?;
    let h = *plan.header();
    let on_device = DeviceBuffer::from_slice(&x)?;
    let residual = DeviceBuffer::<f32>::zeroed(N)?;
    let sum = DeviceBuffer::<f32>::zeroed(N)?;
    let body = DeviceBuffer::<u8>::zeroed(h.body_bytes() as usize)?;
    let workspace = DeviceBuffer::<u8>::zeroed(plan.workspace_bytes().max(1) as usize)?;
    // SAFETY: the buffers live until the stream was waited for, and nothing else uses them.
    unsafe {
        let buffers = EncodeBuffers {
            gradient: piece(&on_device),
            residual: Some(piece(&residual)),
            body: piece(&body),
            workspace: Some(piece(&workspace)),
        };
        gradwire.queue(Encode { plan: &plan, seed }, buffers)?;
        let (decode, to) = (DecodePlan::new(h, 1), DecodeBuffers { bodies: piece(&body), output: piece(&sum) });
        gradwire.queue(Decode { plan: &decode, mode: DecodeMode::Add(0.5) }, to)?;
    }
    stream.synchronize()?;

    let (mut expected_residual, mut expected_sum) = (vec![0.0; N], vec![0.0; N]);
    let expected = cpu.encode_with_feedback(codec, &x, &mut expected_residual, seed)?;
    cpu.decode_add(&expected, 0.5, &mut expected_sum)?;
    assert_eq!(h.seal(&body.as_host_vec()?)?, expected, "{name}: the payload is the CPU's");
    assert_eq!(residual.as_host_vec()?, expected_residual, "{name}: so is the residual");
    assert_eq!(sum.as_host_vec()?, expected_sum, "{name}: so is the sum");
    println!("{name}: {} bytes for {}, as on the CPU", expected.as_bytes().len(), 4 * N);
    Ok(())
}

/// Three tensors in one launch each way.
fn model(name: &str, codec: &impl Codec, gradwire: &OnStream<'_>, stream: &Stream) -> Result<(), Box<dyn Error>> {
    let (x, seed, cpu) = (gradient(), Seed::new(42).step(2), Device::cpu());
    let layout = Layout::from_shapes([&[300, 300][..], &[300], &[N as u64 - 90_300]])?;
    let plan = ModelPlan::new(codec, &layout, Dtype::F32, &Limits::NONE)?;
    let on_device = DeviceBuffer::from_slice(&x)?;
    let table = DeviceBuffer::from_slice(&plan.table())?;
    let mean = DeviceBuffer::<f32>::zeroed(N)?;
    let body = DeviceBuffer::<u8>::zeroed(plan.body_bytes() as usize)?;
    let workspace = DeviceBuffer::<u8>::zeroed(plan.workspace_bytes().max(1) as usize)?;
    // SAFETY: as above.
    unsafe {
        let (table, body) = (piece(&table), piece(&body));
        let workspace = Some(piece(&workspace));
        let buffers = EncodeBuffers { gradient: piece(&on_device), residual: None, body, workspace };
        gradwire.queue(EncodeModel { plan: &plan, seed }, WithTable { table, buffers })?;
        let buffers = DecodeBuffers { bodies: body, output: piece(&mean) };
        gradwire
            .queue(DecodeModel { plan: &plan, mode: DecodeMode::Write, payloads: 1 }, WithTable { table, buffers })?;
    }
    stream.synchronize()?;

    plan.tensors()[0].check_workspace(&workspace.as_host_vec()?)?;
    let expected = cpu.encode_model(&plan, &x, &mut [], seed)?;
    assert_eq!(plan.seal(&body.as_host_vec()?)?, expected, "{name}: the payloads are the CPU's");
    let mut decoded = vec![0.0; N];
    cpu.decode_model(&plan, DecodeMode::Write, &[&expected], &mut decoded)?;
    assert_eq!(mean.as_host_vec()?, decoded, "{name}: so is what they decode to");
    println!("{name}: {} payloads from one launch, as on the CPU", expected.len());
    Ok(())
}

/// The largest entries, and the gradient that they are alone. The residual is late, and settled before it is looked at.
fn sparse(name: &str, codec: &TopK, gradwire: &OnStream<'_>, stream: &Stream) -> Result<(), Box<dyn Error>> {
    let (x, cpu) = (gradient(), Device::cpu());
    let selection = codec.lazy_selection(N, Dtype::F32, &gradwire.limits())?;
    let entries = selection.entries() as usize;
    let on_device = DeviceBuffer::from_slice(&x)?;
    let residual = DeviceBuffer::<f32>::zeroed(N)?;
    let indices = DeviceBuffer::<u32>::zeroed(entries)?;
    let values = DeviceBuffer::<f32>::zeroed(entries)?;
    let output = DeviceBuffer::<f32>::zeroed(N)?;
    // The workspace begins with the table of segments, copied there once.
    let mut bytes = selection.table();
    bytes.resize(selection.workspace_bytes() as usize, 0);
    let workspace = DeviceBuffer::from_slice(&bytes)?;
    // SAFETY: as above; the indices are those that the selection leaves.
    unsafe {
        let (residual, workspace) = (piece(&residual), piece(&workspace));
        let (gradient, indices, values) = (piece(&on_device), piece(&indices), piece(&values));
        let buffers = SelectBuffers { gradient, residual: Some(residual), indices, values, workspace };
        gradwire.queue(Select(&selection), buffers)?;
        let decode = Scatter { entries: selection.entries(), elements: N as u64, weight: None };
        gradwire.queue(decode, ScatterBuffers { indices, values, output: piece(&output) })?;
        gradwire.queue(Settle(&selection), SettleBuffers { residual, workspace })?;
    }
    stream.synchronize()?;

    let mut expected_residual = vec![0.0; N];
    let expected = cpu.encode_sparse_with_feedback(codec, &x, &mut expected_residual, Seed::new(42))?;
    let payload = selection.seal(&indices.as_host_vec()?, &values.as_host_vec()?)?;
    assert_eq!(payload.as_bytes(), expected.as_bytes(), "{name}: the payload is the CPU's");
    assert_eq!(residual.as_host_vec()?, expected_residual, "{name}: so is the residual");
    assert_eq!(output.as_host_vec()?, cpu.decode_sparse(&expected)?, "{name}: so is what it decodes to");
    println!("{name}: {} bytes for {}, as on the CPU", payload.as_bytes().len(), 4 * N);
    Ok(())
}

/// A step of a single worker, on a gradient of rank 2 and a vector beside it: nothing of it is lost.
fn low_rank(name: &str, codec: &PowerSgd, gradwire: &OnStream<'_>, stream: &Stream) -> Result<(), Box<dyn Error>> {
    let (rows, columns) = (300, 300);
    let tensors = [Matrix::new(rows, columns), Matrix::vector(N as u64 - rows * columns)];
    let mut steps = codec.resident(&tensors, Dtype::F32, Seed::new(42))?;
    let entry = |i: u64, j: u64| (i as f32 * 0.1).sin() * j as f32 + (j as f32 * 0.2).cos();
    let x: Vec<f32> = (0..N as u64).map(|at| entry(at / columns, at % columns)).collect();
    let on_device = DeviceBuffer::from_slice(&x)?;
    let residual = DeviceBuffer::<f32>::zeroed(N)?;
    let factors = DeviceBuffer::<f32>::zeroed(steps.factor_bytes() as usize / 4)?;
    let output = DeviceBuffer::<f32>::zeroed(N)?;
    let mut bytes = steps.image();
    bytes.resize(steps.state_bytes() as usize, 0);
    let state = DeviceBuffer::from_slice(&bytes)?;
    // SAFETY: as above; the state begins with the image. Between the calls, `factors` would be all-reduced where it is.
    unsafe {
        let (residual, state, factors) = (piece(&residual), piece(&state), piece(&factors));
        let buffers = LowRankBuffers { gradient: None, residual, state, factors, output: None };
        let gradient = Some(piece(&on_device));
        gradwire.queue(BeginLowRank(&mut steps), LowRankBuffers { gradient, ..buffers })?;
        gradwire.queue(AdvanceLowRank(&mut steps), buffers)?;
        gradwire.queue(FinishLowRank(&mut steps), LowRankBuffers { output: Some(piece(&output)), ..buffers })?;
    }
    stream.synchronize()?;

    let saved = &state.as_host_vec()?[..steps.saved_bytes() as usize];
    let on_host = steps.download(saved, &residual.as_host_vec()?)?;
    let largest = x.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let off =
        |found: &[f32], expected: f32| found.iter().zip(&x).all(|(f, x)| (f - expected * x).abs() < 1e-4 * largest);
    assert!(off(&output.as_host_vec()?, 1.0), "{name}: the output is the gradient, within rounding");
    assert!(off(&on_host.residual()?, 0.0), "{name}: and the residual is nothing, within rounding");
    println!("{name}: {} bytes for {}", on_host.step_bytes(), 4 * N);
    Ok(())
}
