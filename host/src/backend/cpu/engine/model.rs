//! The tensors of a model.

use crate::backend::cpu::{Cpu, EncodeMemory};
use crate::dense::{self, Dense};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::model::{ModelPlan, Models, TensorSpan};
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, Limits, NonFinite, STATUS_BYTES};
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::wire::Payload;

/// One tensor after another: what a launch costs elsewhere, a call does not cost here.
impl Models for Cpu {
    fn encode_model(
        &self,
        plan: &ModelPlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Vec<Payload>, Error> {
        let spans = plan.layout().spans();
        let part = |span: &TensorSpan| gradient.part(span.offset as usize, span.elements as usize);
        let range = |span: &TensorSpan| span.offset as usize..span.end() as usize;
        if plan.is_guarded() {
            // All tensors are looked at before the first one's residual changes.
            for (span, tensor) in spans.iter().zip(plan.tensors()) {
                let own = if plan.feedback() { &mut residual[range(span)] } else { &mut [] };
                let mut status = [0; STATUS_BYTES as usize / 4];
                let mut buffers = EncodeMemory {
                    input: part(span),
                    residual: own,
                    next: &mut [],
                    scalars: &mut [],
                    codes: &mut [],
                    workspace: &mut [],
                    status: &mut status,
                };
                tensor.finite_scan(&Limits::NONE)?.iter().for_each(|pass| self.run_encode(pass, &mut buffers));
                if status[0] != 0 {
                    return Err(Error::NotFinite { index: span.offset + u64::from(!status[0]) });
                }
            }
        }
        let mut payloads = Vec::with_capacity(spans.len());
        for (index, (span, tensor)) in spans.iter().zip(plan.tensors()).enumerate() {
            let tensor = EncodePlan { non_finite: NonFinite::Propagate, ..*tensor };
            let own = if plan.feedback() { &mut residual[range(span)] } else { &mut [] };
            let seed = seed.tensor(seed.tensor_word().wrapping_add(index as u32));
            payloads.push(dense::encode(self, &tensor, part(span), own, seed)?);
        }
        Ok(payloads)
    }

    fn decode_model(
        &self,
        plan: &ModelPlan,
        mode: DecodeMode,
        workers: &[Vec<PayloadView<'_>>],
        output: &mut [f32],
    ) -> Result<(), Error> {
        for (index, span) in plan.layout().spans().iter().enumerate() {
            let own = &mut output[span.offset as usize..span.end() as usize];
            let payloads: Vec<_> = workers.iter().map(|payloads| payloads[index]).collect();
            let Some(first) = payloads.first() else { continue };
            self.decode(&DecodePlan::new(*first.header(), payloads.len() as u32), mode, &payloads, own)?;
        }
        Ok(())
    }
}
