//! The tensors of a model, one after another: what a launch costs elsewhere, a call does not cost here.

use std::ops::Range;

use super::super::bucketed::Body;
use super::super::device::Cpu;
use super::super::run::CpuWork;
use super::dense::encode;
use crate::embed::{DecodeModel, EncodeModel, HostMemory, Update};
use crate::error::Error;
use crate::model::{ModelPlan, TensorSpan};
use crate::plan::{DecodePlan, EncodePlan, Limits, NonFinite, Role, check_count};
use crate::sparse::Source;
use crate::words::zeros;

impl CpuWork for EncodeModel<'_> {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let plan = self.plan;
        let gradient = memory.gradient(plan.dtype())?;
        // A graph's draws are of later steps than the seed's.
        let seed = self.seed.later(memory.number(Role::Workspace));
        let is_apart = memory.is_apart(Role::Scalars) && memory.is_apart(Role::Residual);
        let residuals = memory.update_ranges(Role::Residual, plan.layout().spans().iter().map(in_bytes))?;
        let mut parts = memory.write_ranges(Role::Scalars, body(plan, 0))?;
        let codes = parts.split_off(plan.tensors().len());
        let status = memory.status(Role::Status).filter(|_| plan.is_guarded());
        let part = |span: &TensorSpan| gradient.part(span.offset as usize, span.elements as usize);
        let mut residuals = residuals.map(Vec::into_iter);
        let mut tensors = Vec::with_capacity(parts.len());
        for (((span, plan), scalars), codes) in plan.layout().spans().iter().zip(plan.tensors()).zip(parts).zip(codes) {
            let residual = residuals.as_mut().and_then(Iterator::next);
            tensors.push((span, plan, residual, [scalars, codes]));
        }
        if plan.is_guarded() && !is_apart {
            // All tensors are scanned before anything of the caller's changes.
            for (span, _, residual, _) in &tensors {
                let residual = residual.as_ref().map(|own| own.from.unwrap_or(own.to));
                let found = Cpu::first_not_finite(Source { gradient: part(span), residual });
                found.map_or(Ok(()), |index| Err(Error::NotFinite { index: span.offset + index }))?;
            }
        }
        let most = plan.tensors().iter().map(EncodePlan::scratch_bytes).max().unwrap_or(0);
        let mut workspace = zeros(most.div_ceil(4) as u64, "a workspace")?;
        for (index, (span, tensor, residual, body)) in tensors.into_iter().enumerate() {
            let non_finite = if is_apart { tensor.non_finite } else { NonFinite::Propagate };
            let tensor = EncodePlan { non_finite, ..*tensor };
            let seed = seed.tensor(seed.tensor_word().wrapping_add(index as u32));
            encode(cpu, &tensor, part(span), residual, body, &mut workspace, seed).map_err(|error| match error {
                Error::NotFinite { index } => Error::NotFinite { index: span.offset + index },
                other => other,
            })?;
        }
        status.into_iter().for_each(|status| *status = [0; 4]);
        Ok(())
    }
}

impl CpuWork for DecodeModel<'_> {
    fn on_cpu<'h>(&self, cpu: &Cpu, mut memory: HostMemory<'h>) -> Result<(), Error> {
        let plan = self.plan;
        check_count(self.payloads.into())?;
        let ranges = (0..u64::from(self.payloads)).flat_map(|worker| body(plan, worker * plan.body_bytes()));
        let parts = memory.read_ranges(Role::Scalars, ranges)?;
        let output = memory.update(Role::Output)?.map_or(&mut [][..], Update::begun);
        let tensors = plan.tensors().len();
        for (index, (span, tensor)) in plan.layout().spans().iter().zip(plan.tensors()).enumerate() {
            let of_worker = |parts: &[&'h [u8]]| Body { scalars: parts[index], codes: parts[tensors + index] };
            let bodies: Vec<_> = parts.chunks_exact(2 * tensors).map(of_worker).collect();
            let passes = DecodePlan::new(*tensor.header(), self.payloads).passes(self.mode, &Limits::NONE)?;
            let own = &mut output[span.offset as usize..span.end() as usize];
            passes.iter().for_each(|pass| cpu.run_decode(pass, &bodies, own));
        }
        Ok(())
    }
}

/// A tensor's bytes in a flat buffer of f32.
fn in_bytes(span: &TensorSpan) -> Range<u64> {
    4 * span.offset..4 * span.end()
}

/// The scalars of every tensor, and then the codes of every tensor, in a body that begins at this byte.
fn body(plan: &ModelPlan, at: u64) -> impl Iterator<Item = Range<u64>> {
    plan.body_ranges().map(move |range| at + range.start..at + range.end)
}
