//! PowerSGD in a browser, beside the CPU.

use std::fmt::Write as _;

use gradwire::backend::wgpu::Wgpu;
use gradwire::{Device, Error, LowRankState, Matrix, NonFinite, PowerSgd, Seed};
use wasm_bindgen::prelude::*;

/// A matrix with whole tiles and without, one that is too small to be sent as factors, and a vector.
const MODEL: [Matrix; 4] = [Matrix::new(300, 260), Matrix::new(40, 70), Matrix::new(2, 2), Matrix::vector(33)];

/// How far two backends may be apart that are given the same reduced factors, as a part of |M|: what the documentation
/// of [`PowerSgd`] says.
fn apart(rank: u32) -> f64 {
    4.0 * 514.0 / f64::from(1 << 24) * f64::from(rank).sqrt()
}

/// Three steps of several settings on WebGPU and on the CPU: factors, outputs and residuals are within the documented
/// distance. Says what was compared.
pub async fn compare(gpu: &Wgpu, cpu: &Device) -> Result<String, JsError> {
    let elements = MODEL.iter().map(Matrix::elements).sum::<u64>() as usize;
    let mut said = String::new();
    let codecs = [
        ("PowerSGD, rank 2", 2, PowerSgd::rank(2)),
        ("PowerSGD, rank 4, one-sided", 4, PowerSgd::rank(4).one_sided()),
        ("PowerSGD, rank 3, twice", 3, PowerSgd::rank(3).iterations(2)),
    ];
    for (name, rank, codec) in codecs {
        let mut theirs = codec.state(&MODEL, Seed::new(7))?;
        let mut farthest = 0.0f64;
        for t in 0..3 {
            // Each step from one state, so that what is compared is a step, and not what became of a difference.
            let mut ours = theirs.clone();
            farthest = farthest.max(step(gpu, &mut ours, cpu, &mut theirs, &gradient(elements, t)).await?);
        }
        if farthest > apart(rank) {
            return Err(JsError::new(&format!("{name}: {farthest:e} apart, and {:e} are allowed", apart(rank))));
        }
        writeln!(
            said,
            "{name}: {} bytes a step, {farthest:.1e} apart, within {:.1e}",
            theirs.step_bytes(),
            apart(rank)
        )?;
    }
    let mut state = PowerSgd::rank(2).non_finite(NonFinite::Error).state(&MODEL, Seed::new(7))?;
    let mut odd = gradient(elements, 9);
    odd[4321] = f32::NAN;
    let mut factor = vec![0.0; state.factor_len()];
    match gpu.begin_low_rank_async(&mut state, (&odd).into(), &mut factor).await {
        Err(Error::NotFinite { index: 4321 }) => writeln!(said, "PowerSGD: a NaN is refused")?,
        other => return Err(JsError::new(&format!("PowerSGD: a NaN gave {other:?}"))),
    }
    Ok(said)
}

/// A step on both, which take the CPU's factors for the mean. How far they are apart, as a part of |M|.
async fn step(
    gpu: &Wgpu,
    ours: &mut LowRankState,
    cpu: &Device,
    theirs: &mut LowRankState,
    gradient: &[f32],
) -> Result<f64, Error> {
    let sums: Vec<f32> = gradient.iter().zip(theirs.residual()?).map(|(g, e)| g + e).collect();
    let [mut found, mut mean] = [(); 2].map(|()| vec![0.0; theirs.factor_len()]);
    gpu.begin_low_rank_async(ours, gradient.into(), &mut found).await?;
    cpu.begin_low_rank(theirs, gradient, &mut mean)?;
    let mut farthest = distance(&found, &mean);
    while theirs.factor_len() > 0 {
        let mut next = vec![0.0; theirs.factor_len()];
        found = next.clone();
        gpu.advance_low_rank_async(ours, &mean, &mut found).await?;
        cpu.advance_low_rank(theirs, &mean, &mut next)?;
        farthest = farthest.max(distance(&found, &next));
        mean = next;
    }
    let [mut output, mut expected] = [(); 2].map(|()| vec![0.0; gradient.len()]);
    gpu.finish_low_rank_async(ours, &mean, &mut output).await?;
    cpu.finish_low_rank(theirs, &mean, &mut expected)?;
    let rest = distance(&ours.residual()?, &theirs.residual()?);
    Ok(farthest.max(distance(&output, &expected)).max(rest) / norm(&sums))
}

/// Numbers that every machine computes alike, others in each step.
fn gradient(elements: usize, step: u32) -> Vec<f32> {
    let number = |i: u32| ((i + 1 + 7919 * step).wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 - 0.5;
    (0..elements as u32).map(number).collect()
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

fn distance(ours: &[f32], theirs: &[f32]) -> f64 {
    let apart: Vec<f32> = ours.iter().zip(theirs).map(|(a, b)| a - b).collect();
    let distance = norm(&apart);
    // A maximum would pass over it.
    if distance.is_nan() { f64::INFINITY } else { distance }
}
