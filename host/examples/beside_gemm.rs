//! How much a codec slows a matrix product on another stream, and how long it takes on a few multiprocessors:
//! `cargo run --release --features cudarc --example beside_gemm`. A line of JSON for each measurement.
//!
//! The product is cuBLAS's, in bf16, as a backward pass has it. Needs libcublas, in `LD_LIBRARY_PATH` or where the
//! loader finds it; green contexts need a driver for CUDA 12.4 or newer.

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, sys};
use gradwire::backend::cuda::{Cuda, DeviceSlice};
use gradwire::embed::{
    AdvanceLowRank, BeginLowRank, Encode, EncodeBuffers, FinishLowRank, LowRankBuffers, Select, SelectBuffers,
};
use gradwire::{Codec, CodecFamily, CodecId, Dtype, Matrix, PowerSgd, Qsgd, Seed, TopK};

type Failure = Box<dyn Error + Send + Sync>;

/// Rows, columns and depth of the product: about 0.7 ms on an H100.
const SIDE: usize = 8192;
const DEPTH: usize = 4096;
/// Products in a measurement.
const PRODUCTS: u32 = 200;
/// Steps that are queued before the host waits.
const AHEAD: u32 = 8;

fn main() -> Result<(), Failure> {
    let context = CudaContext::new(0)?;
    let (products, codecs) = (context.new_stream()?, context.new_stream()?);
    let gemm = Gemm::new(&products)?;
    gemm.run(20)?;
    let alone = gemm.run(PRODUCTS)?;
    println!("{{\"product\":\"bf16 {SIDE} x {SIDE} x {DEPTH}\",\"us\":{:.1}}}", 1e6 * alone);
    let cuda = Cuda::on(&codecs)?;
    cuda.warm_up(&[CodecId::Qsgd.into(), CodecFamily::TopK, CodecFamily::PowerSgd])?;
    let wait = || codecs.synchronize().map_err(Failure::from);
    let turn = Turn { context: &context, cuda: &cuda, wait: &wait };
    let urgent = urgent(&context)?;
    // SAFETY: the context and the stream live until the process ends.
    let first = unsafe { Cuda::from_raw(context.cu_ctx().cast(), urgent.cast()) }?;
    first.warm_up(&[CodecId::Qsgd.into(), CodecFamily::TopK, CodecFamily::PowerSgd])?;
    let urgent = urgent as usize;
    // SAFETY: as above.
    let wait_first = || unsafe { sys::cuStreamSynchronize(urgent as sys::CUstream) }.result().map_err(Failure::from);
    let ahead = Turn { context: &context, cuda: &first, wait: &wait_first };
    for (name, mut step) in [
        ("QSGD 4 bit / 512, encode of 2^26", encode(&codecs, 26)?),
        ("QSGD 4 bit / 512, encode of 2^22", encode(&codecs, 22)?),
        ("top-k 1 % of 2^26", select(&codecs, &cuda, 26)?),
        ("top-k 1 % of 2^22", select(&codecs, &cuda, 22)?),
        ("PowerSGD rank 4, 8192 x 8192", low_rank(&codecs, 4, 8192)?),
        ("PowerSGD rank 4, 2048 x 2048", low_rank(&codecs, 4, 2048)?),
        ("PowerSGD rank 32, 4096 x 4096", low_rank(&codecs, 32, 4096)?),
    ] {
        codecs.synchronize()?;
        for (turn, priority) in [(&turn, "as the product's"), (&ahead, "highest")] {
            for overlap in [true, false] {
                turn.cuda.overlap_launches(overlap);
                let by_itself = turn.time(step.as_mut(), || thread::sleep(Duration::from_millis(200)))?;
                let mut slowed = Ok(0.0);
                let beside = turn.time(step.as_mut(), || slowed = gemm.run(PRODUCTS))?;
                println!(
                    "{{\"step\":\"{name}\",\"priority\":\"{priority}\",\"overlap\":{overlap},\"alone_us\":{:.1},\"beside_us\":{:.1},\"product_us\":{:.1}}}",
                    1e6 * by_itself,
                    1e6 * beside,
                    1e6 * slowed?
                );
            }
        }
    }
    cuda.overlap_launches(true);
    for multiprocessors in [8, 16, 32] {
        if let Err(error) = thin(&context, multiprocessors, &gemm) {
            println!(
                "{{\"multiprocessors\":{multiprocessors},\"failed\":\"{}\"}}",
                error.to_string().replace('"', "'")
            );
        }
    }
    Ok(())
}

/// A stream whose blocks come before those of every other one.
fn urgent(context: &Arc<CudaContext>) -> Result<sys::CUstream, Failure> {
    context.bind_to_thread()?;
    let (mut least, mut greatest) = (0, 0);
    let mut stream = std::ptr::null_mut();
    // SAFETY: the context is current, and these are places for what the driver gives.
    unsafe {
        sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest).result()?;
        let kind = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        sys::cuStreamCreateWithPriority(&raw mut stream, kind, greatest).result()?;
    }
    Ok(stream)
}

/// Encodes on a green context of some multiprocessors, alone and beside the product.
fn thin(context: &Arc<CudaContext>, multiprocessors: u32, gemm: &Gemm) -> Result<(), Failure> {
    let green = Green::new(context, multiprocessors)?;
    // SAFETY: the green context and its stream live until the process ends.
    let cuda = unsafe { Cuda::from_raw(green.context.cast(), green.stream.cast()) }?;
    cuda.warm_up(&[CodecId::Qsgd.into()])?;
    let filled = context.new_stream()?;
    let mut step = encode(&filled, 26)?;
    filled.synchronize()?;
    let stream = green.stream as usize;
    // SAFETY: as above.
    let wait = || unsafe { sys::cuStreamSynchronize(stream as sys::CUstream) }.result().map_err(Failure::from);
    let turn = Turn { context, cuda: &cuda, wait: &wait };
    let alone = turn.time(step.as_mut(), || thread::sleep(Duration::from_millis(200)))?;
    let mut slowed = Ok(0.0);
    let beside = turn.time(step.as_mut(), || slowed = gemm.run(PRODUCTS))?;
    println!(
        "{{\"multiprocessors\":{},\"step\":\"QSGD 4 bit / 512, encode of 2^26\",\"alone_us\":{:.1},\"beside_us\":{:.1},\"product_us\":{:.1}}}",
        green.multiprocessors,
        1e6 * alone,
        1e6 * beside,
        1e6 * slowed?
    );
    Ok(())
}

/// Queues one step.
type Step = dyn FnMut(&Cuda) -> Result<(), Failure> + Send;

/// Where steps run, and how the host waits for them.
struct Turn<'a> {
    context: &'a Arc<CudaContext>,
    cuda: &'a Cuda,
    wait: &'a (dyn Fn() -> Result<(), Failure> + Sync),
}

impl Turn<'_> {
    /// Seconds for each step while `during` runs.
    fn time(&self, step: &mut Step, during: impl FnOnce()) -> Result<f64, Failure> {
        let (stop, done) = (AtomicBool::new(false), AtomicU32::new(0));
        (0..AHEAD).try_for_each(|_| step(self.cuda))?;
        (self.wait)()?;
        let start = Instant::now();
        thread::scope(|scope| {
            let worker = scope.spawn(|| -> Result<f64, Failure> {
                self.context.bind_to_thread()?;
                while !stop.load(Ordering::Relaxed) {
                    (0..AHEAD).try_for_each(|_| step(self.cuda))?;
                    (self.wait)()?;
                    done.fetch_add(AHEAD, Ordering::Relaxed);
                }
                Ok(start.elapsed().as_secs_f64())
            });
            during();
            stop.store(true, Ordering::Relaxed);
            let seconds = worker.join().map_err(|_| "the thread panicked")??;
            Ok(seconds / f64::from(done.load(Ordering::Relaxed).max(1)))
        })
    }
}

/// Values with heavy tails.
fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 * 0.37).sin() * (i % 997) as f32).powi(3)).collect()
}

/// The memory of a slice, for as long as it lives.
fn whole<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> DeviceSlice {
    let (address, _) = slice.device_ptr(stream);
    DeviceSlice::new(address, slice.num_bytes() as u64)
}

fn encode(stream: &Arc<CudaStream>, log: u32) -> Result<Box<Step>, Failure> {
    let x = values(1 << log);
    let gradient = stream.clone_htod(&x)?;
    let plan = Qsgd::bits(4).plan(x.len(), Dtype::F32)?;
    let body = stream.alloc_zeros::<u8>(plan.header().body_bytes() as usize)?;
    let buffers = EncodeBuffers {
        gradient: whole(&gradient, stream),
        residual: None,
        body: whole(&body, stream),
        workspace: None,
    };
    Ok(Box::new(move |cuda| {
        let _keep = (&gradient, &body);
        // SAFETY: the memory lives as long as this closure, and one stream uses it.
        unsafe { cuda.queue(Encode { plan: &plan, seed: Seed::new(42) }, buffers) }?;
        Ok(())
    }))
}

fn select(stream: &Arc<CudaStream>, cuda: &Cuda, log: u32) -> Result<Box<Step>, Failure> {
    let x = values(1 << log);
    let gradient = stream.clone_htod(&x)?;
    let selection = TopK::fraction(0.01).selection(x.len(), Dtype::F32, false, &cuda.limits())?;
    let indices = stream.alloc_zeros::<u32>(selection.entries() as usize)?;
    let kept = stream.alloc_zeros::<f32>(selection.entries() as usize)?;
    let mut table = selection.table();
    table.resize(selection.workspace_bytes() as usize, 0);
    let workspace = stream.clone_htod(&table)?;
    let buffers = SelectBuffers {
        gradient: whole(&gradient, stream),
        residual: None,
        indices: whole(&indices, stream),
        values: whole(&kept, stream),
        workspace: whole(&workspace, stream),
    };
    Ok(Box::new(move |cuda| {
        let _keep = (&gradient, &indices, &kept, &workspace);
        // SAFETY: as above; the workspace begins with the table.
        unsafe { cuda.queue(Select(&selection), buffers) }?;
        Ok(())
    }))
}

fn low_rank(stream: &Arc<CudaStream>, rank: u32, side: u64) -> Result<Box<Step>, Failure> {
    let mut steps = PowerSgd::rank(rank).resident(&[Matrix::new(side, side)], Dtype::F32, Seed::new(42))?;
    let gradient = stream.clone_htod(&values((side * side) as usize))?;
    let residual = stream.alloc_zeros::<u8>(steps.residual_bytes() as usize)?;
    let mut image = steps.image();
    image.resize(steps.state_bytes() as usize, 0);
    let state = stream.clone_htod(&image)?;
    let factors = stream.alloc_zeros::<u8>(steps.factor_bytes() as usize)?;
    let output = stream.alloc_zeros::<u8>(steps.output_bytes() as usize)?;
    let buffers = LowRankBuffers {
        gradient: Some(whole(&gradient, stream)),
        residual: whole(&residual, stream),
        state: whole(&state, stream),
        factors: whole(&factors, stream),
        output: Some(whole(&output, stream)),
    };
    Ok(Box::new(move |cuda| {
        let _keep = (&gradient, &residual, &state, &factors, &output);
        // One worker's factors are their mean already. SAFETY: as above.
        unsafe {
            cuda.queue(BeginLowRank(&mut steps), LowRankBuffers { output: None, ..buffers })?;
            cuda.queue(AdvanceLowRank(&mut steps), LowRankBuffers { output: None, gradient: None, ..buffers })?;
            cuda.queue(FinishLowRank(&mut steps), LowRankBuffers { gradient: None, ..buffers })?;
        }
        Ok(())
    }))
}

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetStream = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
/// `cublasGemmEx`.
type GemmEx = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// A product in bf16.
struct Gemm {
    stream: Arc<CudaStream>,
    handle: usize,
    call: GemmEx,
    matrices: [CudaSlice<u16>; 3],
}

impl Gemm {
    fn new(stream: &Arc<CudaStream>) -> Result<Self, Failure> {
        let names = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];
        // SAFETY: loading cuBLAS runs its initialisers alone.
        let library = names.iter().find_map(|name| unsafe { libloading::Library::new(*name) }.ok());
        let library = library.ok_or("libcublas was not found: name its folder in LD_LIBRARY_PATH")?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        let mut handle = std::ptr::null_mut();
        // SAFETY: these are the signatures of cublas_v2.h and cublas_api.h, and the stream outlives the handle.
        let call = unsafe {
            let create = library.get::<Create>(b"cublasCreate_v2\0")?;
            let set_stream = library.get::<SetStream>(b"cublasSetStream_v2\0")?;
            check("cublasCreate", create(&raw mut handle))?;
            check("cublasSetStream", set_stream(handle, stream.cu_stream().cast()))?;
            *library.get::<GemmEx>(b"cublasGemmEx\0")?
        };
        // A product of zeros takes less power than one of values.
        let noise =
            |n: usize| -> Vec<u16> { values(n).iter().map(|x| ((x.sin() * 4.0).to_bits() >> 16) as u16).collect() };
        let matrices = [
            stream.clone_htod(&noise(SIDE * DEPTH))?,
            stream.clone_htod(&noise(SIDE * DEPTH))?,
            stream.alloc_zeros::<u16>(SIDE * SIDE)?,
        ];
        Ok(Self { stream: stream.clone(), handle: handle as usize, call, matrices })
    }

    /// Seconds per product.
    fn run(&self, times: u32) -> Result<f64, Failure> {
        const BF16: c_int = 14;
        const BINARY32_SUMS: c_int = 68;
        self.stream.context().bind_to_thread()?;
        self.stream.synchronize()?;
        let (one, zero) = (1.0f32, 0.0f32);
        let [a, b, c] = self.matrices.each_ref().map(|matrix| matrix.device_ptr(&self.stream).0 as *mut c_void);
        let (side, depth) = (SIDE as c_int, DEPTH as c_int);
        let start = Instant::now();
        for _ in 0..times {
            // SAFETY: the matrices have these sizes, and live as long as the handle.
            let code = unsafe {
                (self.call)(
                    self.handle as *mut c_void,
                    1,
                    0,
                    side,
                    side,
                    depth,
                    (&raw const one).cast(),
                    a,
                    BF16,
                    depth,
                    b,
                    BF16,
                    depth,
                    (&raw const zero).cast(),
                    c,
                    BF16,
                    side,
                    BINARY32_SUMS,
                    -1,
                )
            };
            check("cublasGemmEx", code)?;
        }
        self.stream.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / f64::from(times))
    }
}

fn check(what: &str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(format!("{what} gave {code}").into()) }
}

/// Some of the device's multiprocessors.
struct Green {
    context: sys::CUcontext,
    stream: sys::CUstream,
    multiprocessors: u32,
}

impl Green {
    fn new(context: &Arc<CudaContext>, multiprocessors: u32) -> Result<Self, Failure> {
        let device = context.cu_device();
        // SAFETY: each call gets what the one before it made; the structs are plain data that the driver fills.
        unsafe {
            let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
            let mut all: sys::CUdevResource = std::mem::zeroed();
            sys::cuDeviceGetDevResource(device, &raw mut all, kind).result()?;
            let (mut part, mut rest): (sys::CUdevResource, sys::CUdevResource) =
                (std::mem::zeroed(), std::mem::zeroed());
            let mut groups = 1;
            sys::cuDevSmResourceSplitByCount(
                &raw mut part,
                &raw mut groups,
                &raw const all,
                &raw mut rest,
                0,
                multiprocessors,
            )
            .result()?;
            let mut description = std::mem::zeroed();
            sys::cuDevResourceGenerateDesc(&raw mut description, &raw mut part, 1).result()?;
            let mut green = std::mem::zeroed();
            const DEFAULT_STREAM: u32 = 1;
            sys::cuGreenCtxCreate(&raw mut green, description, device, DEFAULT_STREAM).result()?;
            let (mut own, mut stream) = (std::mem::zeroed(), std::mem::zeroed());
            sys::cuCtxFromGreenCtx(&raw mut own, green).result()?;
            const NON_BLOCKING: u32 = 1;
            sys::cuGreenCtxStreamCreate(&raw mut stream, green, NON_BLOCKING, 0).result()?;
            Ok(Self { context: own, stream, multiprocessors: part.__bindgen_anon_1.sm.smCount })
        }
    }
}
