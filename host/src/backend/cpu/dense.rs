//! Passes of an encode and of a decode, cut into tasks.

use gradwire_kernels::arith::pack::{UNIT, unit_bytes};
use gradwire_kernels::params::{DecodeParams, EncodeParams, SPAN, WHOLE, encode_flags};

use super::bucketed::{self, Body, Elements, EncodeTask};
use super::device::Cpu;
use super::filter::Sums;
use super::simd;
use super::tasks::{TASK, for_each};
use crate::gradient::Gradient;
use crate::plan::{Kernel, Params, Pass, Span};
use crate::sparse::Source;
use crate::threads;
use crate::wire::CodecId;

/// The words in front of the workspace that hold the final statistic.
const FINAL_WORDS: usize = 64;

/// What an encode pass works on.
pub(crate) struct EncodeMemory<'a> {
    pub(crate) input: Gradient<'a>,
    /// With feedback.
    pub(crate) residual: Option<Sums<'a>>,
    pub(crate) scalars: &'a mut [u8],
    pub(crate) codes: &'a mut [u8],
    pub(crate) workspace: &'a mut [u32],
    pub(crate) status: &'a mut [u32],
}

impl Cpu {
    /// Runs one pass of an encode.
    pub(crate) fn run_encode(&self, pass: &Pass, buffers: &mut EncodeMemory<'_>) {
        let Params::Encode(p) = &pass.params else { return };
        let b = &pass.bindings;
        let n = p.n as usize;
        let first = p.first_unit as usize * UNIT;
        let input = buffers.input.part(first, n);
        let (here, feedback) = (first..first + n, p.has(encode_flags::FEEDBACK));
        let residual = buffers.residual.as_mut().filter(|_| feedback).map(|residual| residual.part(here));
        let before = residual.as_ref().map(Sums::residual);
        match pass.kernel {
            Kernel::Clear => buffers.status.fill(0),
            Kernel::FiniteScan => Self::finite_scan(p, input, before, &mut buffers.status[0]),
            Kernel::Stats(codec) => {
                let partials = words(buffers.workspace, b.workspace);
                self.statistics(codec, p, input, before, partials);
            }
            Kernel::Combine(codec) => {
                let (last, partials) = buffers.workspace.split_at_mut(FINAL_WORDS);
                let partials = &partials[..(p.partials * codec.partial_words()) as usize];
                let Some((statistic, wire)) = simd::combine(codec, p, partials) else { return };
                last[..2].copy_from_slice(&statistic);
                for (slot, scalar) in buffers.scalars.chunks_exact_mut(4).zip(wire) {
                    slot.copy_from_slice(&scalar.to_le_bytes());
                }
            }
            Kernel::Encode(codec) => {
                if p.has(encode_flags::GUARDED) && buffers.status[0] != 0 {
                    return;
                }
                let statistic =
                    if p.bucket_log2 == WHOLE { [buffers.workspace[0], buffers.workspace[1]] } else { [0; 2] };
                let scalars = bytes(buffers.scalars, b.scalars);
                let codes = bytes(buffers.codes, b.codes);
                let all = EncodeTask { input, start: 0, len: n, residual, scalars, codes };
                self.encode_parts(codec, p, statistic, all);
            }
            // Their parameters are not an encode's.
            _ => {}
        }
    }

    /// Cuts a pass into tasks and hands them to the threads.
    fn encode_parts(&self, codec: CodecId, p: &EncodeParams, statistic: [u32; 2], all: EncodeTask<'_>) {
        let scalars_per_task =
            if p.bucket_log2 == WHOLE { 0 } else { (TASK >> p.bucket_log2) * codec.scalars(p.bits) * 4 };
        let mut tasks = Vec::with_capacity(all.len.div_ceil(TASK));
        let EncodeTask { input, start: _, len, mut residual, mut scalars, mut codes } = all;
        let mut start = 0;
        while start < len {
            let here = TASK.min(len - start);
            let (task_codes, rest) = codes.split_at_mut(here.div_ceil(UNIT) * unit_bytes(p.bits));
            codes = rest;
            let cut = scalars_per_task.min(scalars.len());
            let (task_scalars, rest) = scalars.split_at_mut(cut);
            scalars = rest;
            let (task_residual, rest) = residual.map(|all| all.split_at(here)).unzip();
            residual = rest;
            tasks.push(EncodeTask {
                input,
                start,
                len: here,
                residual: task_residual,
                scalars: task_scalars,
                codes: task_codes,
            });
            start += here;
        }
        for_each(tasks, |task| match codec {
            CodecId::Quantile => self.simd().quantile_encode(p, task),
            _ => self.simd().encode(codec, p, statistic, task),
        });
    }

    /// Writes the partial statistics of a tensor that is one bucket.
    pub(crate) fn statistics(
        &self,
        codec: CodecId,
        p: &EncodeParams,
        input: Gradient<'_>,
        residual: Option<&[f32]>,
        partials: &mut [u32],
    ) {
        let (n, span) = (p.n as usize, SPAN as usize);
        threads::chunks_exact_mut(partials, codec.partial_words() as usize).enumerate().for_each(|(index, out)| {
            let start = index * span;
            let len = span.min(n - start);
            self.simd().statistic(codec, p, Elements { input, start, len, residual }, out);
        });
    }

    /// The first element that is not finite.
    pub(crate) fn first_not_finite(source: Source<'_>) -> Option<u64> {
        let Source { gradient: input, residual } = source;
        let (n, span) = (source.len(), SPAN as usize);
        let found = threads::items(0..n.div_ceil(span)).find_map_first(|index| {
            let start = index * span;
            let found = bucketed::first_not_finite(Elements { input, start, len: span.min(n - start), residual })?;
            Some(start + found)
        });
        found.map(|index| index as u64)
    }

    fn finite_scan(p: &EncodeParams, input: Gradient<'_>, residual: Option<&[f32]>, status: &mut u32) {
        if let Some(index) = Self::first_not_finite(Source { gradient: input, residual }) {
            // The complement, so that the largest status names the smallest index.
            *status = (*status).max(!(p.first_unit * UNIT as u32 + index as u32));
        }
    }

    /// Runs one pass of a decode. Each body is a whole payload's; the pass says which part of it is decoded.
    pub(crate) fn run_decode(&self, pass: &Pass, bodies: &[Body<'_>], output: &mut [f32]) {
        let (Params::Decode(p), Kernel::Decode(codec)) = (&pass.params, pass.kernel) else { return };
        let first = (pass.bindings.output.offset / 4) as usize;
        let output = &mut output[first..first + p.n as usize];
        let task = |(index, out): (usize, &mut [f32])| match codec {
            CodecId::Quantile => self.simd().quantile_decode(p, bodies, first + index * TASK, out),
            _ => self.simd().decode(codec, p, bodies, first + index * TASK, out),
        };
        if output.len() <= TASK {
            task((0, output));
        } else {
            threads::chunks_mut(output, TASK).enumerate().for_each(task);
        }
    }
}

fn bytes(buffer: &mut [u8], span: Span) -> &mut [u8] {
    &mut buffer[span.offset as usize..(span.offset + span.bytes) as usize]
}

fn words(buffer: &mut [u32], span: Span) -> &mut [u32] {
    &mut buffer[span.offset as usize / 4..(span.offset + span.bytes) as usize / 4]
}

/// Parameters of a decode with the payload's own part of a larger buffer already chosen.
pub(crate) fn whole_bodies<'a>(p: &DecodeParams, scalars: &'a [u8], codes: &'a [u8]) -> Vec<Body<'a>> {
    let (scalar_stride, code_stride) = (p.scalar_stride as usize * 4, p.code_stride as usize * 4);
    (0..p.payloads as usize)
        .map(|k| Body { scalars: &scalars[k * scalar_stride..], codes: &codes[k * code_stride..] })
        .collect()
}
