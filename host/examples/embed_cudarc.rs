//! Gradients that cudarc owns, as candle's and burn's are, compressed on cudarc's stream without a copy to the host:
//! `cargo run --release --features cudarc --example embed_cudarc`.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gradwire::backend::cuda::{Cuda, View};
use gradwire::embed::{
    AdvanceLowRank, BeginLowRank, Decode, DecodeBuffers, DecodeModel, Encode, EncodeBuffers, EncodeModel,
    FinishLowRank, LowRankBuffers, Scatter, ScatterBuffers, Select, SelectBuffers, Settle, SettleBuffers, WithTable,
};
use gradwire::plan::Limits;
use gradwire::{
    Codec, Collective, CollectiveError, Compressor, DecodeMode, DecodePlan, Device, Dtype, Layout, Matrix, ModelPlan,
    PowerSgd, Qsgd, Seed, TopK,
};

const N: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let cuda = Cuda::on(&stream)?;
    println!("{}", cuda.name());

    let x: Vec<f32> = (0..N).map(|i| (i as f32 * 0.37).sin()).collect();
    let (codec, seed) = (Qsgd::bits(4).contractive(), Seed::new(42).step(1));
    let plan = codec.plan(N, Dtype::F32)?.with_feedback()?;
    let header = *plan.header();

    // What a training loop has: the gradient, and beside it what feedback keeps. `x` stands in for a backward pass.
    let gradient = stream.clone_htod(&x)?;
    let mut residual = stream.alloc_zeros::<f32>(N)?;
    let mut sum = stream.alloc_zeros::<f32>(N)?;
    let mut body = stream.alloc_zeros::<u8>(header.body_bytes() as usize)?;
    let buffers = EncodeBuffers {
        gradient: View::read(&gradient),
        residual: Some(View::write(&mut residual)),
        body: View::write(&mut body),
        workspace: None,
    };
    cuda.queue_views(Encode { plan: &plan, seed }, buffers)?;
    let (decode, mode) = (DecodePlan::new(header, 1), DecodeMode::Add(0.5));
    let to = DecodeBuffers { bodies: View::read(&body), output: View::write(&mut sum) };
    cuda.queue_views(Decode { plan: &decode, mode }, to)?;

    // What cannot be is said before anything is queued: a piece that is written and lent to be read, floats of another
    // type.
    let to = |body| DecodeBuffers { bodies: View::read(&gradient), output: body };
    let error =
        cuda.queue_views(Decode { plan: &decode, mode }, to(View::read(&residual))).expect_err("lent to be read");
    assert!(matches!(error, gradwire::Error::Memory { what: "output", .. }), "{error}");
    let error = cuda.queue_views(Decode { plan: &decode, mode }, to(View::read(&body))).expect_err("bytes");
    assert!(matches!(error, gradwire::Error::Dtype { expected: "f32", found: "u8" }), "{error}");

    let payload = header.seal(&stream.clone_dtoh(&body)?)?;
    let mut expected_residual = vec![0.0; N];
    let expected = Device::cpu().encode_with_feedback(&codec, &x, &mut expected_residual, seed)?;
    assert_eq!(payload, expected, "the payload is the CPU's");
    assert_eq!(stream.clone_dtoh(&residual)?, expected_residual, "so is the residual");
    println!("{} bytes of gradient in {} bytes", 4 * N, payload.as_bytes().len());

    // A session keeps the stream that it was opened on, whatever else is dropped.
    let side = context.new_stream()?;
    let session = Cuda::on(&side)?.session(plan.sizes())?;
    assert_eq!(Arc::strong_count(&side), 2, "the session holds the other one");
    drop(session);
    assert_eq!(Arc::strong_count(&side), 1);

    // A whole model in one launch.
    let layout = Layout::from_shapes([&[300, 300][..], &[300], &[N as u64 - 90_300]])?;
    let plan = ModelPlan::new(&Qsgd::bits(8), &layout, Dtype::F32, &Limits::NONE)?;
    let table = stream.clone_htod(&plan.table())?;
    let mut body = stream.alloc_zeros::<u8>(plan.body_bytes() as usize)?;
    // SAFETY: the table is this plan's.
    unsafe {
        let (gradient, body) = (View::read(&gradient), View::write(&mut body));
        let buffers = EncodeBuffers { gradient, residual: None, body, workspace: None };
        let table = View::read(&table);
        cuda.queue_views_trusted(EncodeModel { plan: &plan, seed }, WithTable { table, buffers })?;
    }
    // SAFETY: as above.
    unsafe {
        let buffers = DecodeBuffers { bodies: View::read(&body), output: View::write(&mut sum) };
        let (table, mode) = (View::read(&table), DecodeMode::Write);
        cuda.queue_views_trusted(DecodeModel { plan: &plan, mode, payloads: 1 }, WithTable { table, buffers })?;
    }
    let payloads = plan.seal(&stream.clone_dtoh(&body)?)?;
    assert_eq!(payloads, Device::cpu().encode_model(&plan, &x, &mut [], seed)?, "every payload is the CPU's");
    println!("{} tensors in {} launch", payloads.len(), plan.launches());
    top_k(&cuda, &stream, &x)?;
    late(&cuda, &stream, &x)?;
    training(&cuda, &stream, &x)?;
    power_sgd(&cuda, &stream)
}

/// A group of one rank.
struct Alone;

impl Collective for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        1
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        *all = vec![mine.to_vec()];
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        *from = to.iter().map(|bytes| bytes.to_vec()).collect();
        Ok(())
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn exchange(&mut self, _: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        *theirs = mine.to_vec();
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }
}

/// A step of training, whose gradient, residual and momentum stay in cudarc's memory.
fn training(cuda: &Cuda, stream: &Arc<CudaStream>, x: &[f32]) -> Result<(), Box<dyn Error>> {
    let mut host = Compressor::new("topk:0.01+ef", [[N as u64 / 100, 100]], 42)?;
    let mut resident = host.resident(cuda)?;
    let mut gradient = stream.clone_htod(x)?;
    let mut expected = x.to_vec();
    resident.exchange_view(&mut Alone, &mut gradient)?;
    host.exchange(&Device::cpu(), &mut Alone, &mut expected)?;
    assert_eq!(stream.clone_dtoh(&gradient)?, expected, "the mean is the host's");
    assert_eq!(resident.download()?.state()?, host.state()?, "so is the state");
    let mut bytes = stream.alloc_zeros::<u8>(4 * N)?;
    let error = resident.exchange_view(&mut Alone, &mut bytes).expect_err("bytes");
    assert!(matches!(error, gradwire::Error::Dtype { expected: "f32", found: "u8" }), "{error}");
    println!("a step of training: {} bytes of {}", resident.last_bytes(), 4 * N);
    Ok(())
}

/// The largest entries, and the gradient that they are alone.
fn top_k(cuda: &Cuda, stream: &Arc<CudaStream>, x: &[f32]) -> Result<(), Box<dyn Error>> {
    let codec = TopK::fraction(0.01);
    let selection = codec.selection(N, Dtype::F32, false, &cuda.limits())?;
    let gradient = stream.clone_htod(x)?;
    let mut indices = stream.alloc_zeros::<u32>(selection.entries() as usize)?;
    let mut values = stream.alloc_zeros::<f32>(selection.entries() as usize)?;
    let mut output = stream.alloc_zeros::<f32>(N)?;
    let mut table = selection.table();
    table.resize(selection.workspace_bytes() as usize, 0);
    let mut workspace = stream.clone_htod(&table)?;
    // SAFETY: the workspace begins with the table; the indices are those that the selection leaves.
    unsafe {
        let buffers = SelectBuffers {
            gradient: View::read(&gradient),
            residual: None,
            indices: View::write(&mut indices),
            values: View::write(&mut values),
            workspace: View::write(&mut workspace),
        };
        cuda.queue_views_trusted(Select(&selection), buffers)?;
        let decode = Scatter { entries: selection.entries(), elements: N as u64, weight: None };
        let (indices, values, output) = (View::read(&indices), View::read(&values), View::write(&mut output));
        cuda.queue_views_trusted(decode, ScatterBuffers { indices, values, output })?;
    }
    let payload = selection.seal(&stream.clone_dtoh(&indices)?, &stream.clone_dtoh(&values)?)?;
    let expected = Device::cpu().encode_sparse(&codec, x, Seed::new(42))?;
    assert_eq!(payload.as_bytes(), expected.as_bytes(), "the kept entries are the CPU's");
    assert_eq!(stream.clone_dtoh(&output)?, Device::cpu().decode_sparse(&expected)?, "so is what they decode to");
    println!("{} of {N} entries kept", selection.entries());
    Ok(())
}

/// Steps of top-k with error feedback, whose residual is late: what was sent is taken off when the next step reads it,
/// and before a checkpoint.
fn late(cuda: &Cuda, stream: &Arc<CudaStream>, x: &[f32]) -> Result<(), Box<dyn Error>> {
    let codec = TopK::fraction(0.01);
    let selection = codec.lazy_selection(N, Dtype::F32, &cuda.limits())?;
    let gradient = stream.clone_htod(x)?;
    let mut residual = stream.alloc_zeros::<f32>(N)?;
    let mut indices = stream.alloc_zeros::<u32>(selection.entries() as usize)?;
    let mut values = stream.alloc_zeros::<f32>(selection.entries() as usize)?;
    let mut table = selection.table();
    table.resize(selection.workspace_bytes() as usize, 0);
    let mut workspace = stream.clone_htod(&table)?;
    let mut theirs = vec![0.0f32; N];
    for step in 0..3 {
        let buffers = SelectBuffers {
            gradient: View::read(&gradient),
            residual: Some(View::write(&mut residual)),
            indices: View::write(&mut indices),
            values: View::write(&mut values),
            workspace: View::write(&mut workspace),
        };
        // SAFETY: the workspace begins with the table, and is kept from step to step, as the residual is.
        unsafe { cuda.queue_views_trusted(Select(&selection), buffers)? };
        Device::cpu().encode_sparse_with_feedback(&codec, x, &mut theirs, Seed::new(42).step(step))?;
    }
    let buffers = SettleBuffers { residual: View::write(&mut residual), workspace: View::write(&mut workspace) };
    // SAFETY: as above.
    unsafe { cuda.queue_views_trusted(Settle(&selection), buffers)? };
    assert_eq!(stream.clone_dtoh(&residual)?, theirs, "what is left is what the CPU leaves");
    println!("three steps of a late residual, settled");
    Ok(())
}

/// A step of PowerSGD whose residual and factors stay on the device, on a gradient of rank 1.
fn power_sgd(cuda: &Cuda, stream: &Arc<CudaStream>) -> Result<(), Box<dyn Error>> {
    let (rows, columns) = (250, 400);
    let x: Vec<f32> = (0..N).map(|at| (at / columns) as f32 * (at % columns) as f32).collect();
    let mut steps = PowerSgd::rank(1).resident(&[Matrix::new(rows, columns as u64)], Dtype::F32, Seed::new(42))?;
    let mut image = steps.image();
    image.resize(steps.state_bytes() as usize, 0);
    let (gradient, mut state) = (stream.clone_htod(&x)?, stream.clone_htod(&image)?);
    let mut residual = stream.alloc_zeros::<f32>(N)?;
    let mut factors = stream.alloc_zeros::<f32>(steps.factor_bytes() as usize / 4)?;
    let mut output = stream.alloc_zeros::<f32>(N)?;
    // SAFETY: the residual is zeros, and the state begins with the image.
    unsafe {
        let gradient = Some(View::read(&gradient));
        let kept = lent(&mut residual, &mut state, &mut factors);
        cuda.queue_views_trusted(BeginLowRank(&mut steps), LowRankBuffers { gradient, ..kept })?;
        // With several workers, `factors` is all-reduced here, and again below.
        let kept = lent(&mut residual, &mut state, &mut factors);
        cuda.queue_views_trusted(AdvanceLowRank(&mut steps), kept)?;
        let output = Some(View::write(&mut output));
        let kept = lent(&mut residual, &mut state, &mut factors);
        cuda.queue_views_trusted(FinishLowRank(&mut steps), LowRankBuffers { output, ..kept })?;
    }
    let largest = x[N - 1];
    let close = |(x, y): (&f32, &f32)| (x - y).abs() < 1e-5 * largest;
    assert!(x.iter().zip(&stream.clone_dtoh(&output)?).all(close), "a matrix of rank 1 is its own approximation");
    println!("{rows} x {columns} in {} bytes", 4 * (rows as usize + columns));
    Ok(())
}

/// What every call of a step uses.
fn lent<'v>(
    residual: &'v mut CudaSlice<f32>,
    state: &'v mut CudaSlice<u8>,
    factors: &'v mut CudaSlice<f32>,
) -> LowRankBuffers<View<'v>> {
    let (residual, state, factors) = (View::write(residual), View::write(state), View::write(factors));
    LowRankBuffers { gradient: None, residual, state, factors, output: None }
}
