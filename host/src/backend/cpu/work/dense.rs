//! A tensor that is encoded and decoded by a quantizer.

use super::super::bucketed::Body;
use super::super::dense::EncodeMemory;
use super::super::device::Cpu;
use super::super::filter::Sums;
use super::super::run::CpuWork;
use crate::embed::{Decode, Encode, HostMemory, Update};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, EncodePlan, Limits, Role, STATUS_BYTES, refuse_not_finite};
use crate::seed::Seed;
use crate::words::zeros;

impl CpuWork for Encode<'_> {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let (plan, h) = (self.plan, self.plan.header());
        let gradient = memory.gradient(h.dtype)?;
        let residual = memory.update(Role::Residual)?;
        let codes = h.codes_offset();
        let body = memory.write_ranges(Role::Scalars, [0..h.scalar_bytes(), codes..codes + h.code_bytes()])?;
        let status = memory.status(Role::Status).filter(|_| plan.is_guarded());
        if let Ok([scalars, codes]) = <[_; 2]>::try_from(body) {
            let mut workspace = zeros(plan.scratch_bytes().div_ceil(4) as u64, "a workspace")?;
            encode(cpu, plan, gradient, residual, [scalars, codes], &mut workspace, self.seed)?;
        }
        // Nothing was refused.
        status.into_iter().for_each(|status| *status = [0; 4]);
        Ok(())
    }
}

impl CpuWork for Decode<'_> {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let h = self.plan.header();
        let passes = self.plan.passes(self.mode, &Limits::NONE)?;
        let ranges = (0..u64::from(self.plan.payloads())).flat_map(|payload| {
            let [scalars, codes] = [0, h.codes_offset()].map(|at| payload * h.body_bytes() + at);
            [scalars..scalars + h.scalar_bytes(), codes..codes + h.code_bytes()]
        });
        let parts = memory.read_ranges(Role::Scalars, ranges)?;
        let bodies: Vec<_> = parts.chunks_exact(2).map(|body| Body { scalars: body[0], codes: body[1] }).collect();
        let output = memory.update(Role::Output)?.map_or(&mut [][..], Update::begun);
        if bodies.is_empty() && !matches!(self.mode, DecodeMode::Add(_)) {
            output.fill(0.0);
        }
        passes.iter().for_each(|pass| cpu.run_decode(pass, &bodies, output));
        Ok(())
    }
}

/// Encodes a tensor into scalars and codes. The residual is read once. The workspace has the plan's scratch bytes at
/// least.
///
/// # Errors
/// [`Error::NotFinite`] under that policy: nothing is written then.
pub(super) fn encode(
    cpu: &Cpu,
    plan: &EncodePlan,
    input: Gradient<'_>,
    residual: Option<Update<'_>>,
    [scalars, codes]: [&mut [u8]; 2],
    workspace: &mut [u32],
    seed: Seed,
) -> Result<(), Error> {
    let workspace = &mut workspace[..plan.scratch_bytes().div_ceil(4)];
    workspace.fill(0);
    let status = &mut [0; STATUS_BYTES as usize / 4][..];
    let residual = residual.map(sums);
    let mut buffers = EncodeMemory { input, residual, scalars, codes, workspace, status };
    for pass in &plan.passes(seed, &Limits::NONE)? {
        // The scan for non-finite elements comes first. If it finds one, nothing else is written.
        refuse_not_finite(buffers.status[0])?;
        cpu.run_encode(pass, &mut buffers);
    }
    refuse_not_finite(buffers.status[0])
}

/// A residual, and where its sums with the gradient go.
pub(super) fn sums(residual: Update<'_>) -> Sums<'_> {
    match residual.from {
        Some(from) => Sums::beside(from, residual.to),
        None => Sums::over(residual.to),
    }
}
