//! What is done while a call fails: every operation, on tensors that are small enough for an interpreter.

use gradwire::{
    BackendKind, DecodeMode, Device, Dtype, Error, LazyResidual, LowRankState, Matrix, NonFinite, PowerSgd, Qsgd, Seed,
    TopK, Uniform,
};
use pollster::block_on;

use super::control::Control;
use super::exchanges::{exchange, saved};
use super::fixtures::{Answer, Failed, Opened, bytes, ready, values};

/// An operation: prepares, arms, does its one call.
pub(super) struct Operation {
    pub(super) name: &'static str,
    /// The one backend that has it; none for all.
    pub(super) only: Option<BackendKind>,
    pub(super) run: fn(&Opened, &Control) -> Answer,
    /// Which of its calls are failed at most, from the last one on: the large one would take hours.
    pub(super) last: u64,
}

const fn of(name: &'static str, run: fn(&Opened, &Control) -> Answer) -> Operation {
    Operation { name, only: None, run, last: u64::MAX }
}

const fn of_wgpu(name: &'static str, run: fn(&Opened, &Control) -> Answer) -> Operation {
    Operation { only: Some(BackendKind::Wgpu), ..of(name, run) }
}

const fn of_cpu(name: &'static str, run: fn(&Opened, &Control) -> Answer) -> Operation {
    Operation { only: Some(BackendKind::Cpu), ..of(name, run) }
}

/// More than wgpu hands back at a time: 64 MiB, and then some.
const LARGE: usize = (1 << 24) + 4096;

/// What came of a call that writes to `after`, which held `before`.
fn judge(result: Result<Vec<u8>, Error>, what: &'static str, before: &[f32], after: &[f32]) -> Answer {
    match result {
        Ok(mut payload) => {
            payload.extend(bytes(after));
            Ok(payload)
        }
        Err(error) => Err(Failed { error, changed: (bytes(before) != bytes(after)).then_some(what) }),
    }
}

fn encode_by(plan: Result<gradwire::EncodePlan, Error>, opened: &Opened, control: &Control, n: usize) -> Answer {
    let plan = ready(plan)?;
    let gradient = values(n, 1);
    let before = if plan.feedback() { values(n, 2) } else { Vec::new() };
    let mut residual = before.clone();
    let payload = control.call(|| opened.device.encode_plan(&plan, (&gradient).into(), &mut residual, Seed::new(3)));
    judge(payload.map(gradwire::Payload::into_bytes), "the residual", &before, &residual)
}

/// Into bytes of the caller's, which hold another payload before.
fn encode_into(opened: &Opened, control: &Control) -> Answer {
    let codec = Qsgd::bits(4);
    let before = ready(Device::cpu().encode(&codec, &values(opened.n(), 9), Seed::new(1)))?.into_bytes();
    let mut output = before.clone();
    match control.call(|| opened.device.encode_into(&codec, &values(opened.n(), 1), Seed::new(3), &mut output)) {
        Ok(()) => Ok(output),
        Err(error) => Err(Failed { error, changed: (output != before).then_some("the output") }),
    }
}

/// Into bytes of the caller's, of which there are none yet.
fn encode_into_nothing(opened: &Opened, control: &Control) -> Answer {
    let mut output = Vec::new();
    let gradient = values(opened.n(), 1);
    let result = control.call(|| opened.device.encode_into(&Qsgd::bits(4), &gradient, Seed::new(3), &mut output));
    match result {
        Ok(()) => Ok(output),
        Err(error) => Err(Failed { error, changed: (!output.is_empty()).then_some("the output") }),
    }
}

fn decode_anew(opened: &Opened, control: &Control) -> Answer {
    let payload = ready(Device::cpu().encode(&Qsgd::bits(4), &values(opened.n(), 1), Seed::new(1)))?;
    let decoded = control.call(|| opened.device.decode(&payload));
    decoded.map(|decoded| bytes(&decoded)).map_err(|error| Failed { error, changed: None })
}

fn plan(codec: &impl gradwire::Codec, n: usize) -> Result<gradwire::EncodePlan, Error> {
    codec.plan(n, Dtype::F32)?.with_feedback()
}

fn decode_by(opened: &Opened, control: &Control, mode: DecodeMode, workers: u64) -> Answer {
    let worker = |w: u64| Device::cpu().encode(&Qsgd::bits(4), &values(opened.n(), w as u32), Seed::new(w));
    let payloads = ready((0..workers).map(worker).collect::<Result<Vec<_>, _>>())?;
    let before = values(opened.n(), 7);
    let mut output = before.clone();
    let result = control.call(|| match mode {
        DecodeMode::Write => opened.device.decode_into(&payloads[0], &mut output),
        DecodeMode::Add(weight) => opened.device.decode_add(&payloads[0], weight, &mut output),
        DecodeMode::Sum(weight) => opened.device.decode_sum(&payloads, weight, &mut output),
    });
    judge(result.map(|()| Vec::new()), "the output", &before, &output)
}

fn encode_model(opened: &Opened, control: &Control, codec: &impl gradwire::Codec) -> Answer {
    let layout = ready(opened.layout())?;
    let n = layout.elements() as usize;
    let plan = ready(opened.device.model_plan(codec, &layout, Dtype::F32).and_then(|plan| plan.with_feedback()))?;
    let before = values(n, 2);
    let mut residual = before.clone();
    let payloads = control.call(|| opened.device.encode_model(&plan, &values(n, 1), &mut residual, Seed::new(3)));
    let joined = payloads.map(|payloads| payloads.into_iter().flat_map(gradwire::Payload::into_bytes).collect());
    judge(joined, "the residual", &before, &residual)
}

fn decode_model(opened: &Opened, control: &Control) -> Answer {
    let layout = ready(opened.layout())?;
    let n = layout.elements() as usize;
    let codec = Qsgd::bits(4);
    let cpu = Device::cpu();
    let worker = |w: u64| {
        let plan = cpu.model_plan(&codec, &layout, Dtype::F32)?;
        cpu.encode_model(&plan, &values(n, w as u32), &mut [], Seed::new(w))
    };
    let (one, two) = (ready(worker(1))?, ready(worker(2))?);
    let plan = ready(opened.device.model_plan(&codec, &layout, Dtype::F32))?;
    let before = values(n, 7);
    let mut output = before.clone();
    let result = control.call(|| opened.device.decode_model(&plan, DecodeMode::Add(0.5), &[&one, &two], &mut output));
    judge(result.map(|()| Vec::new()), "the output", &before, &output)
}

fn encode_sparse(opened: &Opened, control: &Control, codec: &TopK, n: usize) -> Answer {
    let before = values(n, 2);
    let mut residual = before.clone();
    let result =
        control.call(|| opened.device.encode_sparse_with_feedback(codec, &values(n, 1), &mut residual, Seed::new(3)));
    judge(result.map(gradwire::SparsePayload::into_bytes), "the residual", &before, &residual)
}

fn encode_sparse_alone(opened: &Opened, control: &Control) -> Answer {
    let sent = control.call(|| opened.device.encode_sparse(&TopK::above(0.9), &values(opened.n(), 1), Seed::new(3)));
    judge(sent.map(gradwire::SparsePayload::into_bytes), "", &[], &[])
}

/// The second step of two, in which what the first one sent is taken off. One segment, longer than what has its zeros
/// at once.
fn encode_lazily(opened: &Opened, control: &Control) -> Answer {
    let n = opened.long();
    let mut residual = LazyResidual::zeros(n);
    let codec = TopK::count(opened.entries(40));
    ready(opened.device.encode_sparse_lazily(&codec, &values(n, 1), &mut residual, Seed::new(1)))?;
    let before = residual.clone().into_values();
    let result =
        control.call(|| opened.device.encode_sparse_lazily(&codec, &values(n, 2), &mut residual, Seed::new(2)));
    judge(result.map(gradwire::SparsePayload::into_bytes), "the residual", &before, &residual.into_values())
}

fn settle(opened: &Opened, control: &Control) -> Answer {
    let n = opened.long();
    let mut residual = LazyResidual::zeros(n);
    ready(opened.device.encode_sparse_lazily(
        &TopK::count(opened.entries(40)),
        &values(n, 1),
        &mut residual,
        Seed::new(1),
    ))?;
    let before = residual.clone();
    match control.call(|| opened.device.settle(&mut residual)) {
        Ok(()) => Ok(bytes(&residual.into_values())),
        Err(error) => Err(Failed { error, changed: (before != residual).then_some("the residual") }),
    }
}

fn decode_sparse(opened: &Opened, control: &Control, weight: Option<f32>) -> Answer {
    let codec = TopK::count(opened.entries(50)).then(Qsgd::bits(4));
    let sent = ready(Device::cpu().encode_sparse(&codec, &values(opened.n(), 1), Seed::new(3)))?;
    let before = values(opened.n(), 7);
    let mut output = before.clone();
    let result = control.call(|| match weight {
        Some(weight) => opened.device.decode_sparse_add(&sent, weight, &mut output),
        None => opened.device.decode_sparse_into(&sent, &mut output),
    });
    judge(result.map(|()| Vec::new()), "the output", &before, &output)
}

fn decode_sparse_sum(opened: &Opened, control: &Control) -> Answer {
    let of = |salt: u32| {
        Device::cpu().encode_sparse(&TopK::count(opened.entries(50)), &values(opened.n(), salt), Seed::new(salt.into()))
    };
    let sent = [ready(of(1))?, ready(of(2))?];
    let before = values(opened.n(), 7);
    let mut output = before.clone();
    let result = control.call(|| opened.device.decode_sparse_sum(&sent, 0.5, &mut output));
    judge(result.map(|()| Vec::new()), "the output", &before, &output)
}

fn merge_sparse(opened: &Opened, control: &Control) -> Answer {
    let codec = TopK::count(opened.entries(30)).then(Uniform::bits(8));
    let of = |salt: u32| Device::cpu().encode_sparse(&codec, &values(opened.n(), salt), Seed::new(salt.into()));
    let (a, b) = (ready(of(1))?, ready(of(2))?);
    let before = values(opened.n(), 7);
    let mut residual = before.clone();
    let result = control.call(|| opened.device.merge_sparse(&codec, &a, &b, &mut residual, Seed::new(4)));
    judge(result.map(gradwire::SparsePayload::into_bytes), "the residual", &before, &residual)
}

/// A state that has done a step, for two matrices and a vector.
fn low_rank(opened: &Opened) -> Result<(LowRankState, Vec<f32>), Failed> {
    let tensors =
        [Matrix::of(&[24 * opened.times, 20]), Matrix::of(&[9, 16 * opened.times]), Matrix::vector(33 * opened.times)];
    let codec = PowerSgd::rank(2).non_finite(NonFinite::Error);
    let mut state = ready(codec.state(&tensors, Seed::new(5)))?;
    let n = state.elements();
    ready(opened.device.low_rank_step(&mut state, &values(n, 1), &mut vec![0.0; n], alone))?;
    Ok((state, values(n, 2)))
}

fn judge_state(result: Result<(), Error>, states: [&LowRankState; 2], numbers: [&[f32]; 2]) -> Answer {
    let [state_before, state_after] = states;
    let [before, after] = numbers;
    match result {
        Ok(()) => {
            let sides = (0..2).filter_map(|tensor| state_after.factors_of(tensor)).flatten();
            let mut all: Vec<u8> = sides.flat_map(|factor| bytes(&factor)).collect();
            // Of a step under way there is no residual to ask for.
            all.extend(state_after.residual().map(|residual| bytes(&residual)).unwrap_or_default());
            all.extend(bytes(after));
            Ok(all)
        }
        Err(error) if state_before != state_after => Err(Failed { error, changed: Some("the state") }),
        Err(error) => Err(Failed { error, changed: (bytes(before) != bytes(after)).then_some("the output") }),
    }
}

fn low_rank_begin(opened: &Opened, control: &Control) -> Answer {
    let (mut state, gradient) = low_rank(opened)?;
    let (before, kept) = (state.clone(), values(state.factor_len(), 9));
    let mut factor = kept.clone();
    let result = control.call(|| opened.device.begin_low_rank(&mut state, &gradient, &mut factor));
    judge_state(result, [&before, &state], [&kept, &factor])
}

fn low_rank_advance(opened: &Opened, control: &Control) -> Answer {
    let (mut state, gradient) = low_rank(opened)?;
    let mut reduced = vec![0.0; state.factor_len()];
    ready(opened.device.begin_low_rank(&mut state, &gradient, &mut reduced))?;
    let (before, kept) = (state.clone(), values(state.factor_len(), 9));
    let mut factor = kept.clone();
    let result = control.call(|| opened.device.advance_low_rank(&mut state, &reduced, &mut factor));
    judge_state(result, [&before, &state], [&kept, &factor])
}

fn low_rank_finish(opened: &Opened, control: &Control) -> Answer {
    let (mut state, gradient) = low_rank(opened)?;
    let mut reduced = vec![0.0; state.factor_len()];
    ready(opened.device.begin_low_rank(&mut state, &gradient, &mut reduced))?;
    let mut last = vec![0.0; state.factor_len()];
    ready(opened.device.advance_low_rank(&mut state, &reduced, &mut last))?;
    let (before, kept) = (state.clone(), values(state.elements(), 9));
    let mut output = kept.clone();
    let result = control.call(|| opened.device.finish_low_rank(&mut state, &last, &mut output));
    judge_state(result, [&before, &state], [&kept, &output])
}

/// The all-reduce of a single worker.
fn alone(_: &mut [f32]) -> Result<(), Error> {
    Ok(())
}

fn low_rank_step(opened: &Opened, control: &Control) -> Answer {
    let (mut state, gradient) = low_rank(opened)?;
    let (before, kept) = (state.clone(), values(state.elements(), 9));
    let mut output = kept.clone();
    let result = control.call(|| opened.device.low_rank_step(&mut state, &gradient, &mut output, alone));
    judge_state(result, [&before, &state], [&kept, &output])
}

fn low_rank_step_in_place(opened: &Opened, control: &Control) -> Answer {
    let (mut state, gradient) = low_rank(opened)?;
    let before = state.clone();
    let mut buffer = gradient.clone();
    let result = control.call(|| opened.device.low_rank_step_in_place(&mut state, &mut buffer, alone));
    judge_state(result, [&before, &state], [&gradient, &buffer])
}

fn encode_async(opened: &Opened, control: &Control) -> Answer {
    let plan = ready(plan(&Qsgd::bits(4).contractive().non_finite(NonFinite::Error), opened.n()))?;
    let before = values(opened.n(), 2);
    let mut residual = before.clone();
    let wgpu = opened.wgpu()?;
    let payload = control
        .call(|| block_on(wgpu.encode_async(&plan, (&values(opened.n(), 1)).into(), &mut residual, Seed::new(3))));
    judge(payload.map(gradwire::Payload::into_bytes), "the residual", &before, &residual)
}

fn decode_async(opened: &Opened, control: &Control) -> Answer {
    let payload = ready(Device::cpu().encode(&Qsgd::bits(4), &values(opened.n(), 1), Seed::new(1)))?;
    let before = values(opened.n(), 7);
    let mut output = before.clone();
    let wgpu = opened.wgpu()?;
    let result = control.call(|| block_on(wgpu.decode_async(&payload, DecodeMode::Add(0.5), &mut output)));
    judge(result.map(|()| Vec::new()), "the output", &before, &output)
}

fn encode_sparse_async(opened: &Opened, control: &Control) -> Answer {
    let codec = TopK::count(opened.entries(30)).then(Uniform::bits(8));
    let before = values(opened.n(), 2);
    let mut residual = before.clone();
    let gradient = values(opened.n(), 1);
    let wgpu = opened.wgpu()?;
    let sent = control
        .call(|| block_on(wgpu.encode_sparse_async(&codec, (&gradient).into(), Some(&mut residual), Seed::new(3))));
    judge(sent.map(gradwire::SparsePayload::into_bytes), "the residual", &before, &residual)
}

fn decode_sparse_async(opened: &Opened, control: &Control) -> Answer {
    let sent =
        ready(Device::cpu().encode_sparse(&TopK::count(opened.entries(50)), &values(opened.n(), 1), Seed::new(3)))?;
    let before = values(opened.n(), 7);
    let mut output = before.clone();
    let wgpu = opened.wgpu()?;
    let result = control.call(|| block_on(wgpu.decode_sparse_async(&sent, Some(0.5), &mut output)));
    judge(result.map(|()| Vec::new()), "the output", &before, &output)
}

fn low_rank_begin_async(opened: &Opened, control: &Control) -> Answer {
    let (mut state, gradient) = low_rank(opened)?;
    let (before, kept) = (state.clone(), values(state.factor_len(), 9));
    let mut factor = kept.clone();
    let wgpu = opened.wgpu()?;
    let result = control.call(|| block_on(wgpu.begin_low_rank_async(&mut state, (&gradient).into(), &mut factor)));
    judge_state(result, [&before, &state], [&kept, &factor])
}

fn low_rank_finish_async(opened: &Opened, control: &Control) -> Answer {
    let (mut state, gradient) = low_rank(opened)?;
    let mut reduced = vec![0.0; state.factor_len()];
    ready(opened.device.begin_low_rank(&mut state, &gradient, &mut reduced))?;
    let mut last = vec![0.0; state.factor_len()];
    ready(opened.device.advance_low_rank(&mut state, &reduced, &mut last))?;
    let (before, kept) = (state.clone(), values(state.elements(), 9));
    let mut output = kept.clone();
    let wgpu = opened.wgpu()?;
    let result = control.call(|| block_on(wgpu.finish_low_rank_async(&mut state, &last, &mut output)));
    judge_state(result, [&before, &state], [&kept, &output])
}

/// What is opened can be used: the caller has armed before it opened.
fn open(opened: &Opened, control: &Control) -> Answer {
    let before = values(opened.n(), 2);
    let mut residual = values(opened.n(), 2);
    let codec = Uniform::bits(8);
    let payload = opened.device.encode_with_feedback(&codec, &values(opened.n(), 1), &mut residual, Seed::new(3));
    control.over();
    judge(payload.map(gradwire::Payload::into_bytes), "the residual", &before, &residual)
}

/// The operations, by name.
pub(super) const ALL: &[Operation] = &[
    of("open", open),
    of("encode", |o, c| encode_by(gradwire::Codec::plan(&Qsgd::bits(4), o.n(), Dtype::F32), o, c, o.n())),
    of("encode-feedback", |o, c| encode_by(plan(&Qsgd::bits(4).contractive(), o.n()), o, c, o.n())),
    of("encode-guarded", |o, c| encode_by(plan(&Uniform::bits(8).non_finite(NonFinite::Error), o.n()), o, c, o.n())),
    of("encode-whole", |o, c| encode_by(plan(&Uniform::bits(8).whole_tensor().contractive(), o.n()), o, c, o.n())),
    of("encode-into", encode_into),
    of("encode-into-nothing", encode_into_nothing),
    of("decode-anew", decode_anew),
    of("decode", |o, c| decode_by(o, c, DecodeMode::Write, 1)),
    of("decode-add", |o, c| decode_by(o, c, DecodeMode::Add(0.5), 1)),
    of("decode-sum", |o, c| decode_by(o, c, DecodeMode::Sum(0.5), 3)),
    of("encode-model", |o, c| encode_model(o, c, &Uniform::bits(8).non_finite(NonFinite::Error))),
    of("encode-model-whole", |o, c| encode_model(o, c, &Uniform::bits(8).whole_tensor().contractive())),
    of("decode-model", decode_model),
    of("encode-sparse", encode_sparse_alone),
    of("encode-sparse-feedback", |o, c| {
        encode_sparse(o, c, &TopK::count(o.entries(50)).non_finite(NonFinite::Error), o.n())
    }),
    of("encode-sparse-quantized", |o, c| encode_sparse(o, c, &TopK::blocks(256, 8).then(Uniform::bits(8)), o.n())),
    of("encode-sparse-lazily", encode_lazily),
    of("settle", settle),
    of("decode-sparse", |o, c| decode_sparse(o, c, None)),
    of("decode-sparse-add", |o, c| decode_sparse(o, c, Some(0.5))),
    of("decode-sparse-sum", decode_sparse_sum),
    of("merge-sparse", merge_sparse),
    of("low-rank-begin", low_rank_begin),
    of("low-rank-advance", low_rank_advance),
    of("low-rank-finish", low_rank_finish),
    of("low-rank-step", low_rank_step),
    of("low-rank-step-in-place", low_rank_step_in_place),
    of_cpu("exchange", |o, c| exchange(o, c, "none")),
    of_cpu("exchange-codes", |o, c| exchange(o, c, "qsgd:bits=4,bucket=64+ef")),
    of_cpu("exchange-two-phases", |o, c| exchange(o, c, "uniform:bits=8,bucket=64+ef+twophase")),
    of_cpu("exchange-elias", |o, c| exchange(o, c, "qsgd:bits=4,bucket=64+elias+ef")),
    of_cpu("exchange-difference", |o, c| exchange(o, c, "qsgd:bits=4,bucket=64+diana")),
    of_cpu("exchange-finite", |o, c| exchange(o, c, "natural:bits=8+ef+finite")),
    of_cpu("exchange-rotated", |o, c| exchange(o, c, "eden:bits=4")),
    of_cpu("exchange-votes", |o, c| exchange(o, c, "signum:momentum=0.9+vote")),
    of_cpu("exchange-quantile", |o, c| exchange(o, c, "quantile:levels=64+ef")),
    of_cpu("exchange-entries", |o, c| exchange(o, c, "topk:0.1+ef")),
    of_cpu("exchange-entries-momentum", |o, c| exchange(o, c, "topk:0.1+momentum=0.5")),
    of_cpu("exchange-entries-tree", |o, c| exchange(o, c, "topk:0.1+ef+gtopk")),
    of_cpu("exchange-entries-quantized", |o, c| exchange(o, c, "topk:0.1+qsgd:bits=4,bucket=64+ef")),
    of_cpu("exchange-estimates", |o, c| exchange(o, c, "topk:0.25+ef21")),
    of_cpu("exchange-coefficients", |o, c| exchange(o, c, "dct:tiles+topk:0.1+ef")),
    of_cpu("exchange-warm-up", |o, c| exchange(o, c, "grace:dgc")),
    of_cpu("exchange-drawn", |o, c| exchange(o, c, "randomk:0.3+ef")),
    of_cpu("exchange-factors", |o, c| exchange(o, c, "powersgd:rank=32")),
    of_cpu("exchange-factors-quantized", |o, c| exchange(o, c, "powersgd:rank=32+qsgd:bits=8,bucket=64")),
    of_cpu("exchange-parts", |o, c| exchange(o, c, "powersgd:rank=32, vectors topk:0.1+ef")),
    of_cpu("save-state", |o, c| saved(o, c, false)),
    of_cpu("restore-state", |o, c| saved(o, c, true)),
    of_wgpu("encode-async", encode_async),
    of_wgpu("decode-async", decode_async),
    of_wgpu("encode-sparse-async", encode_sparse_async),
    of_wgpu("decode-sparse-async", decode_sparse_async),
    of_wgpu("low-rank-begin-async", low_rank_begin_async),
    of_wgpu("low-rank-finish-async", low_rank_finish_async),
    // The residual comes back in two parts, and what fails is between them.
    Operation { last: 24, ..of_wgpu("encode-large", |o, c| encode_by(plan(&Uniform::bits(8), LARGE), o, c, LARGE)) },
];
