//! Gradients that cudarc owns, as candle's and burn's are, compressed on cudarc's stream without a copy to the host:
//! `cargo run --release --features cudarc --example embed_cudarc`.

use std::error::Error;

use cudarc::driver::CudaContext;
use gradwire::backend::cuda::Cuda;
use gradwire::plan::Limits;
use gradwire::{Codec, DecodeMode, DecodePlan, Device, Dtype, Layout, ModelPlan, Qsgd, Seed};

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
    cuda.encode_views(
        &plan,
        &gradient.as_view(),
        Some(&mut residual.as_view_mut()),
        &mut body.as_view_mut(),
        None,
        seed,
    )?;
    cuda.decode_views(&DecodePlan::new(header, 1), DecodeMode::Add(0.5), &body.as_view(), &mut sum.as_view_mut())?;

    let payload = header.seal(&stream.clone_dtoh(&body)?)?;
    let mut expected_residual = vec![0.0; N];
    let expected = Device::cpu().encode_with_feedback(&codec, &x, &mut expected_residual, seed)?;
    assert_eq!(payload, expected, "the payload is the CPU's");
    assert_eq!(stream.clone_dtoh(&residual)?, expected_residual, "so is the residual");
    println!("{} bytes of gradient in {} bytes", 4 * N, payload.as_bytes().len());

    // A whole model in one launch.
    let layout = Layout::from_shapes([&[300, 300][..], &[300], &[N as u64 - 90_300]])?;
    let plan = ModelPlan::new(&Qsgd::bits(8), &layout, Dtype::F32, &Limits::NONE)?;
    let table = stream.clone_htod(&plan.table())?;
    let mut body = stream.alloc_zeros::<u8>(plan.body_bytes() as usize)?;
    // SAFETY: the table is this plan's.
    unsafe {
        let (table, x, body) = (table.as_view(), gradient.as_view(), &mut body.as_view_mut());
        cuda.encode_model_views(&plan, &table, &x, None, body, None, seed)?;
    }
    // SAFETY: as above.
    unsafe {
        let (table, body, sum) = (table.as_view(), body.as_view(), &mut sum.as_view_mut());
        cuda.decode_model_views(&plan, &table, DecodeMode::Write, 1, &body, sum)?;
    }
    let payloads = plan.seal(&stream.clone_dtoh(&body)?)?;
    assert_eq!(payloads, Device::cpu().encode_model(&plan, &x, &mut [], seed)?, "every payload is the CPU's");
    println!("{} tensors in {} launch", payloads.len(), plan.launches());
    Ok(())
}
