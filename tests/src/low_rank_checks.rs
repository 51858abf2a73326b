//! PowerSGD on a device beside the CPU, as verdicts: the golden vectors, steps within the tolerance between backends,
//! and steps whose state stays on the device.

use gradwire::session::Role;
use gradwire::{BackendKind, Device, Dtype, Error, LowRankState, Matrix, PowerSgd, Seed};

use crate::cases;
use crate::conformance::{Outcome, differ};
use crate::low_rank::{alone, apart};
use crate::vectors::powersgd;

/// A small model of odd shapes, with matrices wider and taller than a tile of a rank above eight has columns.
pub const SMALL: [Matrix; 6] = [
    Matrix::new(65, 47),
    Matrix::vector(13),
    Matrix::new(130, 33),
    Matrix::new(9, 500),
    Matrix::new(31, 1),
    Matrix::new(32, 64),
];

/// Where nothing is rounded, the bits are the golden vectors'.
pub fn golden(device: &Device) -> Outcome {
    let mut steps = powersgd::committed()?;
    if device.kind() == BackendKind::Wgpu {
        // A shader sends NaN where others send an infinity: a sum cannot be trusted to have one, and neither can be
        // used.
        let infinite = |word: &str| matches!(word.split('*').next(), Some("7f800000" | "ff800000"));
        let all = steps.len();
        steps.retain(|step| !step.factors.iter().any(|factor| factor.split(' ').any(infinite)));
        if 2 * steps.len() <= all {
            return Err(format!("{} golden vectors of {all} are left for a device without infinities", steps.len()));
        }
    }
    powersgd::check(device, &steps)
}

/// The codecs that are compared, with their ranks: those without and with tensor cores, and of several columns in a
/// pass.
fn codecs() -> [(u32, PowerSgd); 3] {
    [(1, PowerSgd::rank(1)), (5, PowerSgd::rank(5).min_compression(1.0)), (12, PowerSgd::rank(12).min_compression(1.0))]
}

fn elements(tensors: &[Matrix]) -> usize {
    tensors.iter().map(Matrix::elements).sum::<u64>() as usize
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

/// How far two lists are apart.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f32>>())
}

fn said(e: Error) -> String {
    e.to_string()
}

/// A state that has been through two steps on the CPU.
fn warm(codec: PowerSgd, tensors: &[Matrix]) -> Result<LowRankState, Error> {
    let mut state = codec.state(tensors, Seed::new(9))?;
    let mut output = vec![0.0; elements(tensors)];
    for t in 0..2 {
        Device::cpu().low_rank_step(&mut state, &cases::normal(output.len(), 60 + t), &mut output, alone)?;
    }
    Ok(state)
}

/// Where each matrix's factor begins in what is sent, its entries, and its tensor.
fn parts(state: &LowRankState, tensors: &[Matrix], left: bool, rank: u32) -> Vec<(usize, usize, usize)> {
    let mut at = 0;
    let mut parts = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        if state.is_compressed(index) == Some(true) {
            let len = (if left { tensor.rows } else { tensor.columns }) as usize * rank as usize;
            parts.push((at, len, index));
            at += len;
        }
    }
    parts
}

/// Every factor, the output and the residual of a step are within [`apart`] of the CPU's.
pub fn near_the_cpu(device: &Device, tensors: &[Matrix]) -> Outcome {
    near_the_cpu_at(device, tensors, |_| true)
}

/// The same of some of the ranks 1, 5 and 12.
pub fn near_the_cpu_at(device: &Device, tensors: &[Matrix], chosen: impl Fn(u32) -> bool) -> Outcome {
    let mut compared = 0;
    for (rank, codec) in codecs().into_iter().filter(|(rank, _)| chosen(*rank)) {
        compared +=
            one_near_the_cpu(device, tensors, rank, codec).map_err(|e| format!("PowerSGD, rank {rank}: {e}"))?;
    }
    Ok(compared)
}

fn one_near_the_cpu(device: &Device, tensors: &[Matrix], rank: u32, codec: PowerSgd) -> Outcome {
    let (cpu, n) = (Device::cpu(), elements(tensors));
    let mut theirs = warm(codec, tensors).map_err(said)?;
    let (mut mine, fresh) = (theirs.clone(), theirs.clone());
    let gradient = cases::normal(n, 70);
    let before = theirs.residual().map_err(said)?;
    let sums: Vec<f32> = gradient.iter().zip(&before).map(|(g, e)| g + e).collect();
    let starts: Vec<usize> = (0..tensors.len()).map(|t| elements(&tensors[..t])).collect();
    let of = |x: &[f32], t: usize| x[starts[t]..][..tensors[t].elements() as usize].to_vec();
    let within = |what: &str, t: usize, a: &[f32], b: &[f32]| {
        let (off, bound) = (distance(a, b), apart(rank) * norm(&of(&sums, t)));
        // What is not a number is not within anything.
        if off <= bound {
            Ok(())
        } else {
            Err(format!("{what} of tensor {t} is {off:.2e} from the CPU's, and {bound:.2e} is allowed"))
        }
    };
    let mut compared = 0;
    let mut factors = |what: &str, left: bool, a: &[f32], b: &[f32]| -> Result<(), String> {
        for (at, len, t) in parts(&fresh, tensors, left, rank) {
            within(what, t, &a[at..at + len], &b[at..at + len])?;
            compared += 1;
        }
        Ok(())
    };
    let room = |state: &LowRankState| vec![0.0; state.factor_len()];
    let (mut p, mut p_cpu) = (room(&mine), room(&theirs));
    device.begin_low_rank(&mut mine, &gradient, &mut p).map_err(said)?;
    cpu.begin_low_rank(&mut theirs, &gradient, &mut p_cpu).map_err(said)?;
    factors("P", true, &p, &p_cpu)?;
    // From here on both take the CPU's factors, so that one comparison does not stand on another.
    let (mut q, mut q_cpu) = (room(&mine), room(&theirs));
    device.advance_low_rank(&mut mine, &p_cpu, &mut q).map_err(said)?;
    cpu.advance_low_rank(&mut theirs, &p_cpu, &mut q_cpu).map_err(said)?;
    factors("Q", false, &q, &q_cpu)?;
    let (mut output, mut output_cpu) = (vec![0.0; n], vec![0.0; n]);
    device.finish_low_rank(&mut mine, &q_cpu, &mut output).map_err(said)?;
    cpu.finish_low_rank(&mut theirs, &q_cpu, &mut output_cpu).map_err(said)?;
    let (left, left_cpu) = (mine.residual().map_err(said)?, theirs.residual().map_err(said)?);
    for t in 0..tensors.len() {
        within("the output", t, &of(&output, t), &of(&output_cpu, t))?;
        within("the residual", t, &of(&left, t), &of(&left_cpu, t))?;
        compared += 2;
    }
    Ok(compared)
}

/// Steps whose state stays on the device have the bits of those whose state is in this machine's memory: the first are
/// what a report times. Nothing is compared on the CPU, whose sessions have no passes of PowerSGD.
pub fn resident(device: &Device, tensors: &[Matrix]) -> Outcome {
    let mut compared = 0;
    for (rank, codec) in codecs() {
        compared += one_resident(device, tensors, codec).map_err(|e| format!("PowerSGD, rank {rank}: {e}"))?;
    }
    Ok(compared)
}

fn one_resident(device: &Device, tensors: &[Matrix], codec: PowerSgd) -> Outcome {
    let (seed, n) = (Seed::new(9).step(3), elements(tensors));
    let steps = codec.resident(tensors, Dtype::F32, seed).map_err(said)?;
    let mut host = codec.state(tensors, seed).map_err(said)?;
    let mut session = device.session(steps.sizes()).map_err(said)?;
    session.write(Role::Workspace, 0, &steps.image()).map_err(said)?;
    session.write(Role::Residual, 0, bytemuck::cast_slice(&vec![0.0f32; n])).map_err(said)?;
    let passes = steps.passes_of_step(&device.limits()).map_err(said)?.concat();
    for t in 0..2 {
        let (gradient, mut expected) = (cases::normal(n, 90 + t), vec![0.0f32; n]);
        session.write(Role::Input, 0, bytemuck::cast_slice(&gradient)).map_err(said)?;
        // SAFETY: a whole step over the image that begins a state, or over what the step before left of it.
        unsafe { session.run_trusted(&passes) }.map_err(said)?;
        device.low_rank_step(&mut host, &gradient, &mut expected, alone).map_err(said)?;
        let mut output = vec![0.0f32; n];
        session.read(Role::Output, 0, bytemuck::cast_slice_mut(&mut output)).map_err(said)?;
        let label = format!("step {t} on the device");
        differ("output", &label, bytemuck::cast_slice(&output), bytemuck::cast_slice(&expected))?;
    }
    let (mut state, mut residual) = (vec![0; steps.saved_bytes() as usize], vec![0.0f32; n]);
    session.read(Role::Workspace, 0, &mut state).map_err(said)?;
    session.read(Role::Residual, 0, bytemuck::cast_slice_mut(&mut residual)).map_err(said)?;
    let state = steps.download(&state, &residual).map_err(said)?;
    // Not their bytes: those also say how it is known that a vector which was sent has left nothing.
    let label = "two steps on the device";
    let [mine, theirs] = [&state, &host].map(|state| state.residual().map_err(said));
    differ("residual", label, bytemuck::cast_slice(&mine?), bytemuck::cast_slice(&theirs?))?;
    for t in 0..tensors.len() {
        let [mine, theirs] = [&state, &host].map(|state| state.factors_of(t).unwrap_or_default().concat());
        differ("factors", label, bytemuck::cast_slice(&mine), bytemuck::cast_slice(&theirs))?;
        if state.outcome(t) != host.outcome(t) {
            return Err(format!("{label}: tensor {t} is {:?}, and not {:?}", state.outcome(t), host.outcome(t)));
        }
    }
    if state.steps() != host.steps() {
        return Err(format!("{label}: {} steps, and not {}", state.steps(), host.steps()));
    }
    Ok(3 + 2 * tensors.len() as u64)
}
