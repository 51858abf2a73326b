//! A tensor that is encoded and decoded by a quantizer.

use crate::backend::cpu::{Body, Cpu, EncodeMemory};
use crate::dense::Dense;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, Limits, STATUS_BYTES, refuse_not_finite};
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::words::zeros;

impl Dense for Cpu {
    fn in_place(&self) -> bool {
        true
    }

    /// The residual is read once.
    fn encode_apart(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        next: &mut [f32],
        body: &mut [u8],
        seed: Seed,
    ) -> Result<(), Error> {
        let (scalars, codes) = body.split_at_mut(plan.header().scalar_bytes() as usize);
        let mut workspace = zeros(plan.scratch_bytes().div_ceil(4) as u64, "a workspace")?;
        let mut status = [0; STATUS_BYTES as usize / 4];
        let (workspace, status) = (&mut workspace[..], &mut status[..]);
        let mut buffers = EncodeMemory { input: gradient, residual, next, scalars, codes, workspace, status };
        for pass in &plan.passes(seed, &Limits::NONE)? {
            // The look for what is not finite comes first. Where it finds something, nothing else is written.
            refuse_not_finite(buffers.status[0])?;
            self.run_encode(pass, &mut buffers);
        }
        refuse_not_finite(buffers.status[0])
    }

    fn decode(
        &self,
        plan: &DecodePlan,
        mode: DecodeMode,
        payloads: &[PayloadView<'_>],
        output: &mut [f32],
    ) -> Result<(), Error> {
        let bodies: Vec<_> = payloads.iter().map(|p| Body { scalars: p.scalars(), codes: p.codes() }).collect();
        plan.passes(mode, &Limits::NONE)?.iter().for_each(|pass| self.run_decode(pass, &bodies, output));
        Ok(())
    }
}
