//! What the CPU does without passes, packing, top-k and PowerSGD: the calls of a user, timed.

use std::hint::black_box;
use std::time::Instant;

use gradwire::{Device, Dtype, Entropy, Error, LowRankState, PowerSgd, Seed, TopK};
use gradwire_tests::cases::Case;

use super::quality::{check_feedback, compare};
use super::source::Typed;
use crate::jobs::list::{Entry, Setting, matrix, sides};
use crate::jobs::timing::{Budget, sample};
use crate::jobs::{self, Feedback, Floor, Op, WEIGHT};

/// Seconds of an operation, and the bytes that it cannot do without.
pub(crate) struct Timed {
    pub(crate) op: Op,
    pub(crate) floor: u64,
    pub(crate) seconds: f64,
}

/// Seconds of one of several calls.
pub(super) fn seconds(budget: &mut Budget, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, String> {
    let timing = sample(budget.next(), 1, |repeats| {
        let start = Instant::now();
        (0..repeats).try_for_each(|_| call())?;
        Ok(start.elapsed().as_secs_f64())
    });
    timing.map(|timing| timing.median).map_err(text)
}

/// Times and checks every operation of an entry; of a quantizer there is none, as it has passes.
pub(super) fn measure(entry: &Entry, x: &[f32], dtype: Dtype, budget: &mut Budget) -> Result<Vec<Timed>, String> {
    match entry.setting {
        Setting::Buckets(_) => Ok(Vec::new()),
        Setting::Packed(case, entropy) => packed(entry, (&case, entropy), x, dtype, budget),
        Setting::TopK(part) => top_k(entry, part, x, dtype, budget),
        Setting::PowerSgd(rank) => power_sgd(rank, x, dtype, budget),
    }
}

pub(super) fn text(error: Error) -> String {
    error.to_string()
}

fn top_k(entry: &Entry, part: f64, x: &[f32], dtype: Dtype, budget: &mut Budget) -> Result<Vec<Timed>, String> {
    let (cpu, codec, seed) = (Device::cpu(), TopK::fraction(part), Seed::new(1));
    let typed = Typed::new(x, dtype);
    let gradient = typed.gradient();
    let payload = cpu.encode_sparse(&codec, gradient, seed).map_err(text)?;
    let floor = Floor::top_k(x.len(), dtype, payload.indices().len() as u64);
    let timed = |op, seconds| Timed { op, floor: floor.of(op), seconds };
    let encode = seconds(budget, || cpu.encode_sparse(&codec, gradient, seed).map(|p| drop(black_box(p))))?;
    let [mut out, mut residual] = [(); 2].map(|()| vec![0.0; x.len()]);
    let decode = seconds(budget, || cpu.decode_sparse_into(&payload, &mut out))?;
    compare(entry, x, &out)?;
    let add = seconds(budget, || cpu.decode_sparse_add(&payload, WEIGHT, &mut out))?;
    let sent = cpu.encode_sparse_with_feedback(&codec, gradient, &mut residual, seed).map_err(text)?;
    cpu.decode_sparse_into(&sent, &mut out).map_err(text)?;
    check_feedback(x, &out, &residual)?;
    let feedback = seconds(budget, || {
        cpu.encode_sparse_with_feedback(&codec, gradient, &mut residual, seed).map(|p| drop(black_box(p)))
    })?;
    let plain = Op::Feedback(Feedback::Plain);
    Ok(vec![timed(Op::Encode, encode), timed(Op::Decode, decode), timed(Op::DecodeAdd, add), timed(plain, feedback)])
}

/// The payload of a quantizer is packed by another call than its plan's, so that both are one operation here.
fn packed(
    entry: &Entry,
    (case, entropy): (&Case, Entropy),
    x: &[f32],
    dtype: Dtype,
    budget: &mut Budget,
) -> Result<Vec<Timed>, String> {
    let (cpu, seed, typed) = (Device::cpu(), Seed::new(1), Typed::new(x, dtype));
    let gradient = typed.gradient();
    let plan = jobs::packed::plan(case, entropy, x.len(), dtype).map_err(text)?;
    let floor = jobs::packed::floor(plan.header(), entropy, dtype);
    let payload = cpu.encode_plan(&plan, gradient, &mut [], seed).map_err(text)?;
    let encode = seconds(budget, || cpu.encode_plan(&plan, gradient, &mut [], seed).map(|p| drop(black_box(p))))?;
    let [mut out, mut residual] = [(); 2].map(|()| vec![0.0; x.len()]);
    let decode = seconds(budget, || cpu.decode_into(&payload, &mut out))?;
    compare(entry, x, &out)?;
    let add = seconds(budget, || cpu.decode_add(&payload, WEIGHT, &mut out))?;
    let timed = |op, seconds| Timed { op, floor: floor.of(op), seconds };
    let mut all = vec![timed(Op::Encode, encode), timed(Op::Decode, decode), timed(Op::DecodeAdd, add)];
    let Some((plan, form)) = jobs::feedback_plan(case, x.len(), dtype).map_err(text)? else { return Ok(all) };
    let plan = plan.packed(entropy).map_err(text)?;
    let sent = cpu.encode_plan(&plan, gradient, &mut residual, seed).map_err(text)?;
    cpu.decode_into(&sent, &mut out).map_err(text)?;
    check_feedback(x, &out, &residual)?;
    let feedback =
        seconds(budget, || cpu.encode_plan(&plan, gradient, &mut residual, seed).map(|p| drop(black_box(p))))?;
    all.push(timed(Op::Feedback(form), feedback));
    Ok(all)
}

fn power_sgd(rank: u32, x: &[f32], dtype: Dtype, budget: &mut Budget) -> Result<Vec<Timed>, String> {
    let (cpu, (rows, columns)) = (Device::cpu(), sides(x.len()));
    let x = &x[..(rows * columns) as usize];
    let typed = Typed::new(x, dtype);
    let mut state = PowerSgd::rank(rank).state(&[matrix(x.len())], Seed::new(1)).map_err(text)?;
    let mut output = vec![0.0; x.len()];
    let [mut p, mut q] = [rows, columns].map(|side| vec![0.0; (side * u64::from(rank)) as usize]);
    // Call by call, as a worker among others makes them.
    let mut step = |state: &mut LowRankState, output: &mut [f32]| {
        cpu.begin_low_rank(state, typed.gradient(), &mut p)?;
        cpu.advance_low_rank(state, &p, &mut q)?;
        cpu.finish_low_rank(state, &q, output)
    };
    step(&mut state, &mut output).map_err(text)?;
    check_feedback(x, &output, &state.residual().map_err(text)?)?;
    let seconds = seconds(budget, || step(&mut state, &mut output))?;
    Ok(vec![Timed { op: Op::Step, floor: Floor::new(x.len(), dtype).of(Op::Step), seconds }])
}
