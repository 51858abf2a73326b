//! An encode, a selection, and a rank's whole step of each in a CUDA graph: recorded once, replayed, and equal to the
//! CPU's; and what a call costs the host with and without one:
//! `cargo run --release --features cudarc --example cuda_graph`.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr};
use gradwire::backend::cuda::{Cuda, DeviceSlice};
use gradwire::embed::{
    DecodeBuffers, DecodeModel, Encode, EncodeBuffers, EncodeModel, Scatter, ScatterBuffers, Select, SelectBuffers,
    WithTable,
};
use gradwire::{Codec, CodecFamily, CodecId, DecodeMode, Device, Dtype, Layout, Qsgd, Seed, TopK};

const N: usize = 1 << 22;
/// Fewer launches than the driver lets queue up, so that the host waits for nothing.
const TIMES: u32 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    println!("context: {:.1?}", start.elapsed());
    let start = Instant::now();
    // Compiles the kernels, which a capture must not. A folder named by `cuda.cache_in` would keep them for the next
    // process.
    let cuda = Cuda::on(&stream)?;
    cuda.warm_up(&[CodecId::Qsgd.into(), CodecFamily::TopK])?;
    println!("{}: kernels loaded in {:.2?}", cuda.name(), start.elapsed());
    for family in cuda.loaded() {
        println!("  {}: {:.2} s", family.name, family.seconds);
    }
    let x: Vec<f32> = (0..N).map(|i| (i as f32 * 0.37).sin() * (i % 997) as f32).collect();
    let gradient = stream.clone_htod(&x)?;

    let (codec, seed) = (Qsgd::bits(4), Seed::new(42));
    let plan = codec.plan(N, Dtype::F32)?;
    let body = stream.alloc_zeros::<u8>(plan.header().body_bytes() as usize)?;
    let buffers = EncodeBuffers {
        gradient: whole(&gradient, &stream),
        residual: None,
        body: whole(&body, &stream),
        workspace: None,
    };
    // SAFETY: the memory is there until the end, and one stream uses it.
    let encode = || unsafe { cuda.queue(Encode { plan: &plan, seed }, buffers) };
    let (graph, host) = record(&stream, "encode", encode)?;
    compare(&stream, "encode", &graph, host)?;
    let payload = plan.header().seal(&stream.clone_dtoh(&body)?)?;
    assert_eq!(payload, Device::cpu().encode(&codec, &x, seed)?, "the payload is the CPU's");

    let codec = TopK::fraction(0.01);
    let selection = codec.selection(N, Dtype::F32, false, &cuda.limits())?;
    let indices = stream.alloc_zeros::<u32>(selection.entries() as usize)?;
    let values = stream.alloc_zeros::<f32>(selection.entries() as usize)?;
    let mut table = selection.table();
    table.resize(selection.workspace_bytes() as usize, 0);
    let workspace = stream.clone_htod(&table)?;
    let buffers = SelectBuffers {
        gradient: whole(&gradient, &stream),
        residual: None,
        indices: whole(&indices, &stream),
        values: whole(&values, &stream),
        workspace: whole(&workspace, &stream),
    };
    // SAFETY: as above; the workspace begins with the table.
    let select = || unsafe { cuda.queue(Select(&selection), buffers) };
    let (graph, host) = record(&stream, "selection", select)?;
    compare(&stream, "selection", &graph, host)?;
    let payload = selection.seal(&stream.clone_dtoh(&indices)?, &stream.clone_dtoh(&values)?)?;
    let expected = Device::cpu().encode_sparse(&codec, &x, seed)?;
    assert_eq!(payload.as_bytes(), expected.as_bytes(), "the kept entries are the CPU's");
    quantized_step(&stream, &cuda, &gradient, &x)?;
    sparse_step(&stream, &cuda, &gradient, &x)?;
    println!("what the graphs left is the CPU's, byte for byte");
    Ok(())
}

/// A step of a model of three tensors, but for the network: the encode with error feedback, and the decode of what was
/// sent. Before each replay the host writes the number of the step into the plan's table.
fn quantized_step(
    stream: &Arc<CudaStream>,
    cuda: &Cuda,
    gradient: &CudaSlice<f32>,
    x: &[f32],
) -> Result<(), Box<dyn Error>> {
    let layout = Layout::packed([N as u64 - 70_001, 70_000, 1])?;
    let cpu = Device::cpu();
    let plan = cpu.model_plan(&Qsgd::bits(4).bucket(64), &layout, Dtype::F32)?.with_feedback()?;
    let seed = Seed::new(7);
    let mut residual = stream.alloc_zeros::<f32>(N)?;
    let body = stream.alloc_zeros::<u8>(plan.body_bytes() as usize)?;
    let mean = stream.alloc_zeros::<f32>(N)?;
    let mut table = stream.clone_htod(&plan.table())?;
    let place = whole(&table, stream);
    let encoded = WithTable {
        table: place,
        buffers: EncodeBuffers {
            gradient: whole(gradient, stream),
            residual: Some(whole(&residual, stream)),
            body: whole(&body, stream),
            workspace: None,
        },
    };
    let decoded = WithTable {
        table: place,
        buffers: DecodeBuffers { bodies: whole(&body, stream), output: whole(&mean, stream) },
    };
    // SAFETY: the memory is there until the end, and one stream uses it; the table is the plan's.
    let step = || unsafe {
        cuda.queue(EncodeModel { plan: &plan, seed }, encoded)?;
        cuda.queue(DecodeModel { plan: &plan, mode: DecodeMode::Write, payloads: 1 }, decoded)
    };
    let (graph, host) = record(stream, "step", step)?;
    compare(stream, "step of QSGD", &graph, host)?;
    // What the timings left is forgotten.
    stream.memset_zeros(&mut residual)?;
    let (mut expected, mut sent) = (vec![0.0; N], vec![0.0; N]);
    for number in 0..4u64 {
        stream.memcpy_htod(&number.to_le_bytes(), &mut table.slice_mut(0..8))?;
        graph.launch()?;
        let payloads = cpu.encode_model(&plan, x, &mut expected, seed.step(number))?;
        cpu.decode_model(&plan, DecodeMode::Write, &[&payloads], &mut sent)?;
        assert_eq!(plan.seal(&stream.clone_dtoh(&body)?)?, payloads, "step {number}: the payloads are the CPU's");
        assert!(equal(&stream.clone_dtoh(&mean)?, &sent), "step {number}: the mean is the CPU's");
        assert!(equal(&stream.clone_dtoh(&residual)?, &expected), "step {number}: the residual is the CPU's");
    }
    Ok(())
}

/// A step of top-k, but for the network: the selection with error feedback, and what was kept over zeros.
fn sparse_step(
    stream: &Arc<CudaStream>,
    cuda: &Cuda,
    gradient: &CudaSlice<f32>,
    x: &[f32],
) -> Result<(), Box<dyn Error>> {
    let codec = TopK::fraction(0.01);
    let selection = codec.selection(N, Dtype::F32, true, &cuda.limits())?;
    let indices = stream.alloc_zeros::<u32>(selection.entries() as usize)?;
    let values = stream.alloc_zeros::<f32>(selection.entries() as usize)?;
    let mut residual = stream.alloc_zeros::<f32>(N)?;
    let mean = stream.alloc_zeros::<f32>(N)?;
    let mut table = selection.table();
    table.resize(selection.workspace_bytes() as usize, 0);
    let workspace = stream.clone_htod(&table)?;
    let selected = SelectBuffers {
        gradient: whole(gradient, stream),
        residual: Some(whole(&residual, stream)),
        indices: whole(&indices, stream),
        values: whole(&values, stream),
        workspace: whole(&workspace, stream),
    };
    let scattered = ScatterBuffers {
        indices: whole(&indices, stream),
        values: whole(&values, stream),
        output: whole(&mean, stream),
    };
    // SAFETY: as above; the workspace begins with the table.
    let step = || unsafe {
        cuda.queue(Select(&selection), selected)?;
        cuda.queue(Scatter { entries: selection.entries(), elements: N as u64, weight: None }, scattered)
    };
    let (graph, host) = record(stream, "step", step)?;
    compare(stream, "step of top-k", &graph, host)?;
    stream.memset_zeros(&mut residual)?;
    let (cpu, mut expected) = (Device::cpu(), vec![0.0f32; N]);
    for number in 0..4 {
        graph.launch()?;
        let sent = cpu.encode_sparse_with_feedback(&codec, x, &mut expected, Seed::new(0))?;
        let payload = selection.seal(&stream.clone_dtoh(&indices)?, &stream.clone_dtoh(&values)?)?;
        assert_eq!(payload.as_bytes(), sent.as_bytes(), "step {number}: the kept entries are the CPU's");
        assert!(equal(&stream.clone_dtoh(&mean)?, &cpu.decode_sparse(&sent)?), "step {number}: the mean is the CPU's");
        assert!(equal(&stream.clone_dtoh(&residual)?, &expected), "step {number}: the residual is the CPU's");
    }
    Ok(())
}

fn equal(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The memory of a slice, for as long as it lives.
fn whole<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> DeviceSlice {
    let (address, _) = slice.device_ptr(stream);
    DeviceSlice::new(address, slice.num_bytes() as u64)
}

/// Queues some work many times, then records it once. Gives the time for queueing it, a call, and until it was done.
fn record(
    stream: &Arc<CudaStream>,
    what: &str,
    work: impl Fn() -> Result<(), gradwire::Error>,
) -> Result<(CudaGraph, [Duration; 2]), Box<dyn Error>> {
    stream.synchronize()?;
    let start = Instant::now();
    for _ in 0..TIMES {
        work()?;
    }
    let queued = start.elapsed() / TIMES;
    stream.synchronize()?;
    let done = start.elapsed() / TIMES;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let recorded = work();
    // A capture has to be ended whatever came of it.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
    recorded?;
    let graph = graph.ok_or_else(|| format!("nothing of the {what} was recorded"))?;
    Ok((graph, [queued, done]))
}

/// Replays the graph, and says what it costs beside queueing the work.
fn compare(stream: &CudaStream, what: &str, graph: &CudaGraph, queued: [Duration; 2]) -> Result<(), Box<dyn Error>> {
    stream.synchronize()?;
    let start = Instant::now();
    for _ in 0..TIMES {
        graph.launch()?;
    }
    let launched = start.elapsed() / TIMES;
    stream.synchronize()?;
    let done = start.elapsed() / TIMES;
    println!(
        "{what}: {:.1?} of the host a call and {:.1?} until done; replayed {launched:.1?} and {done:.1?}",
        queued[0], queued[1]
    );
    Ok(())
}
