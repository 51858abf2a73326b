//! The quickstart in a browser. `cargo xtask web` builds it, serves `index.html` and opens a browser without a window.

use std::fmt::Write as _;

use gradwire::backend::wgpu::Wgpu;
use gradwire::{Codec, DecodeMode, Device, Dtype, Error, Payload, Qsgd, Seed, Uniform};
use wasm_bindgen::prelude::*;

/// Encodes and decodes on WebGPU.
///
/// The bytes come back as hexadecimal digits, so that another machine can compare them with its own.
#[wasm_bindgen]
pub async fn quickstart() -> Result<String, JsError> {
    let (workers, run, step, layer) = (2.0, 42, 1, 0);
    let gradient = gradient();
    let mut sum = vec![0.0f32; gradient.len()];

    let gpu = Wgpu::open_async().await?;
    let plan = Qsgd::bits(4).bucket(512).plan(gradient.len(), Dtype::F32)?;
    let seed = Seed::new(run).step(step).tensor(layer);

    let payload = gpu.encode_async(&plan, (&gradient).into(), &mut [], seed).await?;
    let received = Payload::from_bytes(payload.as_bytes()).map_err(Error::from)?;
    gpu.decode_async(&received, DecodeMode::Add(1.0 / workers), &mut sum).await?;

    let mut digits = String::new();
    payload.as_bytes().iter().try_for_each(|byte| write!(digits, "{byte:02x}"))?;
    Ok(digits)
}

/// Compares WebGPU with the CPU, whose code is in the module as well, and says what was compared.
#[wasm_bindgen]
pub async fn compare() -> Result<String, JsError> {
    let (gpu, cpu, seed) = (Wgpu::open_async().await?, Device::cpu(), Seed::new(7).step(3));
    let gradient = gradient();
    let mut said = format!("WebGPU: {}; {cpu}\n", gpu.name());
    let plans = [
        ("QSGD, 4 bits, buckets of 512", Qsgd::bits(4).bucket(512).plan(gradient.len(), Dtype::F32)?),
        ("QSGD, 8 bits, L2 norm of the tensor", Qsgd::bits(8).l2().whole_tensor().plan(gradient.len(), Dtype::F32)?),
        ("uniform, 1 bit, buckets of 64", Uniform::bits(1).bucket(64).plan(gradient.len(), Dtype::F32)?),
        ("QSGD, 8 bits, error feedback", Qsgd::bits(8).plan(gradient.len(), Dtype::F32)?.with_feedback()?),
    ];
    for (name, plan) in plans {
        let room = if plan.feedback() { gradient.len() } else { 0 };
        let (mut theirs, mut ours) = (vec![0.125; room], vec![0.125; room]);
        let expected = cpu.encode_plan(&plan, (&gradient).into(), &mut theirs, seed)?;
        let payload = gpu.encode_async(&plan, (&gradient).into(), &mut ours, seed).await?;
        same(name, "payloads", payload.as_bytes(), expected.as_bytes())?;
        same(name, "residuals", &bits(&ours), &bits(&theirs))?;
        let (mut theirs, mut ours) = (gradient.clone(), gradient.clone());
        cpu.decode_add(&expected, 0.5, &mut theirs)?;
        gpu.decode_async(&payload, DecodeMode::Add(0.5), &mut ours).await?;
        same(name, "sums", &bits(&ours), &bits(&theirs))?;
        writeln!(said, "{name}: {} bytes, the same", payload.as_bytes().len())?;
    }
    // What waits is refused with a word on what to do, and not with a browser that hangs.
    match Device::from_wgpu(gpu).encode(&Qsgd::bits(4), &gradient, seed) {
        Err(error @ Error::Backend { .. }) => writeln!(said, "a call that waits: {error}")?,
        other => return Err(JsError::new(&format!("a call that waits gave {other:?}"))),
    }
    Ok(said)
}

/// Numbers that every machine computes alike.
fn gradient() -> Vec<f32> {
    (0..10_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 - 0.5).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn same<T: PartialEq>(name: &str, what: &str, ours: &[T], theirs: &[T]) -> Result<(), JsError> {
    let differ = ours.iter().zip(theirs).filter(|(a, b)| a != b).count();
    if ours.len() == theirs.len() && differ == 0 {
        return Ok(());
    }
    Err(JsError::new(&format!("{name}: {differ} of {} differ between the {what}", ours.len())))
}
