//! What a backend does with many tensors.

use super::ModelPlan;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, NonFinite, Role, STATUS_BYTES, Sizes, refuse_not_finite};
use crate::seed::Seed;
use crate::session::Sessions;
use crate::view::PayloadView;
use crate::wire::Payload;

/// What a backend does with the tensors of a model, which lie in one flat buffer.
pub(crate) trait Models {
    /// Encodes each; gradient and residual are of the plan's length and type.
    fn encode_model(
        &self,
        plan: &ModelPlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Vec<Payload>, Error>;

    /// Decodes the payloads of workers, at least one of them, that were checked against the plan.
    fn decode_model(
        &self,
        plan: &ModelPlan,
        mode: DecodeMode,
        workers: &[Vec<PayloadView<'_>>],
        output: &mut [f32],
    ) -> Result<(), Error>;
}

/// All tensors in one launch set.
impl<T: Sessions> Models for T {
    fn encode_model(
        &self,
        plan: &ModelPlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Vec<Payload>, Error> {
        let passes = plan.encode_passes(seed);
        self.limits().check(&passes)?;
        let [scalar_bytes, code_bytes] = plan.part_bytes();
        let (mut scalars, mut codes) = (vec![0; scalar_bytes as usize], vec![0; code_bytes as usize]);
        if !passes.is_empty() {
            let mut session = self.session(Sizes([
                plan.gradient_bytes(),
                residual.len() as u64 * 4,
                scalar_bytes,
                code_bytes,
                plan.table_bytes(),
                STATUS_BYTES.max(plan.workspace_bytes()),
                0,
                0,
                0,
            ]))?;
            session.write(Role::Input, 0, gradient.as_bytes())?;
            session.write(Role::Residual, 0, bytemuck::cast_slice(residual))?;
            session.write(Role::Workspace, 0, &plan.table())?;
            // SAFETY: all passes of the plan, in order, in a session of their own whose workspace begins with its
            // table.
            unsafe { session.run_trusted(&passes)? };
            if plan.non_finite() == NonFinite::Error {
                let mut status = [0u32; STATUS_BYTES as usize / 4];
                session.read(Role::Status, 0, bytemuck::cast_slice_mut(&mut status))?;
                refuse_not_finite(status[0])?;
            }
            session.read(Role::Scalars, 0, &mut scalars)?;
            session.read(Role::Codes, 0, &mut codes)?;
            session.read(Role::Residual, 0, bytemuck::cast_slice_mut(residual))?;
        }
        Ok(plan.seal_parts(&scalars, &codes))
    }

    fn decode_model(
        &self,
        plan: &ModelPlan,
        mode: DecodeMode,
        workers: &[Vec<PayloadView<'_>>],
        output: &mut [f32],
    ) -> Result<(), Error> {
        let strides = plan.part_bytes().map(|bytes| bytes.next_multiple_of(256));
        let passes = plan.decode_passes(mode, workers.len() as u32, strides);
        self.limits().check(&passes)?;
        if passes.is_empty() {
            return Ok(());
        }
        let [scalars, codes] = strides.map(|stride| stride * workers.len() as u64);
        let bytes = output.len() as u64 * 4;
        let mut session = self.session(Sizes([0, 0, scalars, codes, plan.table_bytes(), 0, bytes, 0, 0]))?;
        for (worker, payloads) in workers.iter().enumerate() {
            let scalars: Vec<&[u8]> = payloads.iter().map(PayloadView::scalars).collect();
            let codes: Vec<&[u8]> = payloads.iter().map(PayloadView::codes).collect();
            session.write(Role::Scalars, worker as u64 * strides[0], &scalars.concat())?;
            session.write(Role::Codes, worker as u64 * strides[1], &codes.concat())?;
        }
        session.write(Role::Workspace, 0, &plan.table())?;
        // What lies between tensors comes back as it was.
        session.write(Role::Output, 0, bytemuck::cast_slice(output))?;
        // SAFETY: all passes of the plan, in order, in a session of their own whose workspace begins with its table.
        unsafe { session.run_trusted(&passes)? };
        session.read(Role::Output, 0, bytemuck::cast_slice_mut(output))
    }
}
