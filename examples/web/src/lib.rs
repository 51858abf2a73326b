//! The quickstart in a browser. `cargo xtask web` builds it, serves `index.html` and opens a browser without a window.

use std::fmt::Write as _;

use gradwire::backend::wgpu::Wgpu;
use gradwire::{
    Codec, DecodeMode, Device, Dtype, Error, NonFinite, Payload, Qsgd, Seed, Segment, SparsePayload, TopK, Uniform,
};
use wasm_bindgen::prelude::*;

mod low_rank;
mod objections;

/// Encodes and decodes on WebGPU.
///
/// The bytes come back as hexadecimal digits, so that another machine can compare them with its own.
#[wasm_bindgen]
pub async fn quickstart() -> Result<String, JsError> {
    let (workers, rank, run, step, layer) = (2.0, 0, 42, 1, 0);
    let gradient = gradient();
    let mut sum = vec![0.0f32; gradient.len()];

    let gpu = Wgpu::open_async().await?;
    let plan = Qsgd::bits(4).bucket(512).plan(gradient.len(), Dtype::F32)?;
    let seed = Seed::new(run).step(step).tensor(layer).worker(rank);

    let payload = gpu.encode_async(&plan, (&gradient).into(), &mut [], seed).await?;
    let received = Payload::from_bytes(payload.as_bytes()).map_err(Error::from)?;
    gpu.decode_async(&received, DecodeMode::Add(1.0 / workers), &mut sum).await?;

    digits(payload.as_bytes())
}

/// Keeps the largest entries of gradient + residual on WebGPU, and adds them up where they arrive. The bytes come back
/// as those of [`quickstart`].
#[wasm_bindgen]
pub async fn largest() -> Result<String, JsError> {
    let gradient = gradient();
    let (mut residual, mut sum) = (vec![0.125f32; gradient.len()], vec![0.0f32; gradient.len()]);
    let gpu = Wgpu::open_async().await?;
    let codec = TopK::fraction(0.01);
    let payload =
        gpu.encode_sparse_async(&codec, (&gradient).into(), Some(&mut residual), Seed::new(42).step(1)).await?;
    let received = SparsePayload::from_bytes(payload.as_bytes()).map_err(Error::from)?;
    gpu.decode_sparse_async(&received, Some(0.5), &mut sum).await?;
    digits(payload.as_bytes())
}

fn digits(bytes: &[u8]) -> Result<String, JsError> {
    let mut digits = String::new();
    bytes.iter().try_for_each(|byte| write!(digits, "{byte:02x}"))?;
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
    said.push_str(&compare_largest(&gpu, &cpu, &gradient).await?);
    said.push_str(&low_rank::compare(&gpu, &cpu).await?);
    said.push_str(&objections::provoked(&gpu, &gradient).await?);
    // What waits is refused with a word on what to do, and not with a browser that hangs.
    match Device::from_wgpu(gpu).encode(&Qsgd::bits(4), &gradient, seed) {
        Err(error @ Error::Backend { .. }) => writeln!(said, "a call that waits: {error}")?,
        other => return Err(JsError::new(&format!("a call that waits gave {other:?}"))),
    }
    Ok(said)
}

/// Compares selections and what they decode to.
async fn compare_largest(gpu: &Wgpu, cpu: &Device, gradient: &[f32]) -> Result<String, JsError> {
    let seed = Seed::new(7).step(3);
    let mut said = String::new();
    // One with a NaN and with ties at the last kept entry, one that misleads a sample.
    let mut odd: Vec<f32> = gradient.iter().map(|v| (v * 4.0).round()).collect();
    odd[4321] = f32::NAN;
    let mut late = vec![0.0f32; gradient.len()];
    late[9000..].copy_from_slice(&gradient[9000..]);
    let segment = |elements, k| Segment { elements, k };
    let codecs = [
        ("top-k, one in a hundred", TopK::fraction(0.01)),
        ("top-k, a third as f16", TopK::fraction(0.34).values(Dtype::F16)),
        ("top-k, one in fifty through QSGD", TopK::fraction(0.02).then(Qsgd::bits(8))),
        ("top-k, above a quarter", TopK::above(0.25)),
        ("top-k of blocks", TopK::blocks(100, 3)),
        ("top-k of segments", TopK::segments(&[segment(9000, 90), segment(7, 7), segment(993, 1)])),
    ];
    for (name, codec) in codecs {
        let mut bytes = 0;
        for x in [gradient, &odd, &late] {
            let expected = cpu.encode_sparse(&codec, x, seed)?;
            let payload = gpu.encode_sparse_async(&codec, x.into(), None, seed).await?;
            same(name, "payloads", payload.as_bytes(), expected.as_bytes())?;
            let (mut theirs, mut ours) = (gradient.to_vec(), gradient.to_vec());
            cpu.decode_sparse_add(&expected, 0.5, &mut theirs)?;
            gpu.decode_sparse_async(&payload, Some(0.5), &mut ours).await?;
            same(name, "sums", &bits(&ours), &bits(&theirs))?;
            gpu.decode_sparse_async(&payload, None, &mut ours).await?;
            same(name, "decoded gradients", &bits(&ours), &bits(&cpu.decode_sparse(&expected)?))?;
            let (mut theirs, mut ours) = (vec![0.125; x.len()], vec![0.125; x.len()]);
            let expected = cpu.encode_sparse_with_feedback(&codec, x, &mut theirs, seed)?;
            let payload = gpu.encode_sparse_async(&codec, x.into(), Some(&mut ours), seed).await?;
            same(name, "payloads with feedback", payload.as_bytes(), expected.as_bytes())?;
            same(name, "residuals", &bits(&ours), &bits(&theirs))?;
            bytes += payload.as_bytes().len();
        }
        writeln!(said, "{name}: {bytes} bytes of three gradients, the same")?;
    }
    let refusing = TopK::count(3).non_finite(NonFinite::Error);
    match gpu.encode_sparse_async(&refusing, (&odd).into(), None, seed).await {
        Err(Error::NotFinite { index: 4321 }) => writeln!(said, "top-k: a NaN is refused")?,
        other => return Err(JsError::new(&format!("a NaN gave {other:?}"))),
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
