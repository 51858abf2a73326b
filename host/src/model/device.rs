//! Many tensors on any device, from slices to payloads and back.

use super::{Layout, ModelPlan, TensorSpan};
use crate::backend::cpu::{Cpu, EncodeBuffers};
use crate::codec::Codec;
use crate::device::{Device, refuse_not_finite};
use crate::error::{Error, expect_residual};
use crate::gradient::{Dtype, Gradient};
use crate::plan::{DecodeMode, EncodePlan, NonFinite, Role, STATUS_BYTES, Sizes, check_count};
use crate::seed::Seed;
use crate::view::{AsPayload, PayloadView};
use crate::wire::Payload;

impl Device {
    /// The plan for a model's tensors, within this device's limits.
    ///
    /// # Errors
    /// As [`ModelPlan::new`].
    pub fn model_plan(&self, codec: &(impl Codec + ?Sized), layout: &Layout, dtype: Dtype) -> Result<ModelPlan, Error> {
        ModelPlan::new(codec, layout, dtype, &self.limits())
    }

    /// Compresses a model's tensors, which lie in one flat gradient, into a payload each: on a GPU in one launch set.
    ///
    /// The payload of tensor `i` is, to the bit, that of [`Device::encode`] with `seed.tensor(t + i)`, where `t` is the
    /// seed's own. `residual` is a flat buffer of the gradient's layout where the plan has feedback, and empty else.
    ///
    /// ```
    /// use gradwire::{Device, DecodeMode, Dtype, Layout, Qsgd, Seed};
    /// let device = Device::open()?;
    /// let layout = Layout::from_shapes([&[20, 30][..], &[30]])?;
    /// let plan = device.model_plan(&Qsgd::bits(8), &layout, Dtype::F32)?.with_feedback()?;
    /// let (gradient, mut residual, mut sum) = (vec![0.5f32; 630], vec![0.0; 630], vec![0.0; 630]);
    /// let payloads = device.encode_model(&plan, &gradient, &mut residual, Seed::new(1))?;
    /// assert_eq!(payloads.len(), 2);
    /// device.decode_model(&plan, DecodeMode::Add(0.5), &[&payloads], &mut sum)?;
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Dtype`] for a gradient or residual that is not the plan's; [`Error::NotFinite`] under
    /// that policy, with the index in the flat gradient; [`Error::Backend`] where the device fails. The residual is as it
    /// was whenever this fails.
    pub fn encode_model<'g>(
        &self,
        plan: &ModelPlan,
        gradient: impl Into<Gradient<'g>>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Vec<Payload>, Error> {
        let gradient = gradient.into();
        if gradient.dtype() != plan.dtype() {
            return Err(Error::Dtype { expected: plan.dtype().name(), found: gradient.dtype().name() });
        }
        let elements = plan.layout().elements();
        Error::expect_len("gradient", "elements", gradient.len(), elements)?;
        expect_residual(plan.feedback(), residual.len(), elements)?;
        if let Some(cpu) = self.as_cpu() {
            return self.encode_each(cpu, plan, gradient, residual, seed);
        }
        let passes = plan.encode_passes(seed);
        self.limits().check(&passes)?;
        let [scalar_bytes, code_bytes] = plan.part_bytes();
        let (mut scalars, mut codes) = (vec![0; scalar_bytes as usize], vec![0; code_bytes as usize]);
        if !passes.is_empty() {
            let input = plan.gradient_bytes();
            let table = plan.table_bytes();
            let mut session = self.session(Sizes([
                input,
                residual.len() as u64 * 4,
                scalar_bytes,
                code_bytes,
                table,
                STATUS_BYTES.max(plan.workspace_bytes()),
                0,
                0,
                0,
            ]))?;
            session.write(Role::Input, 0, gradient.as_bytes())?;
            session.write(Role::Residual, 0, bytemuck::cast_slice(residual))?;
            session.write(Role::Workspace, 0, &plan.table())?;
            // SAFETY: all passes of the plan, in order, in a session of their own whose workspace begins with its table.
            unsafe { session.run_trusted(&passes)? };
            if plan.non_finite() == NonFinite::Error {
                let mut status = [0u32; 2];
                session.read(Role::Status, 0, bytemuck::cast_slice_mut(&mut status))?;
                refuse_not_finite(status[0])?;
            }
            session.read(Role::Scalars, 0, &mut scalars)?;
            session.read(Role::Codes, 0, &mut codes)?;
            session.read(Role::Residual, 0, bytemuck::cast_slice_mut(residual))?;
        }
        Ok(plan.seal_parts(&scalars, &codes))
    }

    /// One tensor after another: what a launch costs elsewhere, a call does not cost here.
    fn encode_each(
        &self,
        cpu: &Cpu,
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
                let mut buffers = EncodeBuffers {
                    input: part(span),
                    residual: own,
                    scalars: &mut [],
                    codes: &mut [],
                    workspace: &mut [],
                    status: &mut status,
                };
                tensor.finite_scan(&self.limits())?.iter().for_each(|pass| cpu.encode(pass, &mut buffers));
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
            payloads.push(self.encode_plan(&tensor, part(span), own, seed)?);
        }
        Ok(payloads)
    }

    /// Decodes a model's payloads, of one worker or of several, over or onto a flat output of the gradient's layout.
    ///
    /// Each entry of `workers` is a worker's payloads, one a tensor. The order of a sum is that of the slice, as in
    /// [`Device::decode_sum`]. [`DecodeMode::Write`] and [`DecodeMode::Add`] take the workers one after another. What lies
    /// between tensors is left as it was.
    ///
    /// # Errors
    /// [`Error::Length`] for an output of another length, or more or fewer payloads than tensors; [`Error::Other`] for a
    /// payload of another codec, setting or length; [`Error::Backend`] where the device fails.
    pub fn decode_model(
        &self,
        plan: &ModelPlan,
        mode: DecodeMode,
        workers: &[&[impl AsPayload]],
        output: &mut [f32],
    ) -> Result<(), Error> {
        Error::expect_len("output", "elements", output.len(), plan.layout().elements())?;
        check_count(workers.len() as u64)?;
        workers.iter().try_for_each(|payloads| plan.check_payloads(payloads))?;
        if self.as_cpu().is_some() || workers.is_empty() {
            return self.decode_each(plan, mode, workers, output);
        }
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
            let parts: Vec<PayloadView<'_>> = payloads.iter().map(AsPayload::as_payload).collect();
            let scalars: Vec<&[u8]> = parts.iter().map(PayloadView::scalars).collect();
            let codes: Vec<&[u8]> = parts.iter().map(PayloadView::codes).collect();
            session.write(Role::Scalars, worker as u64 * strides[0], &scalars.concat())?;
            session.write(Role::Codes, worker as u64 * strides[1], &codes.concat())?;
        }
        session.write(Role::Workspace, 0, &plan.table())?;
        // What lies between tensors comes back as it was.
        session.write(Role::Output, 0, bytemuck::cast_slice(output))?;
        // SAFETY: as above.
        unsafe { session.run_trusted(&passes)? };
        session.read(Role::Output, 0, bytemuck::cast_slice_mut(output))
    }

    fn decode_each(
        &self,
        plan: &ModelPlan,
        mode: DecodeMode,
        workers: &[&[impl AsPayload]],
        output: &mut [f32],
    ) -> Result<(), Error> {
        for (index, span) in plan.layout().spans().iter().enumerate() {
            let own = &mut output[span.offset as usize..span.end() as usize];
            let payloads: Vec<_> = workers.iter().map(|payloads| payloads[index].as_payload()).collect();
            if payloads.is_empty() {
                if let DecodeMode::Sum(_) = mode {
                    own.fill(0.0);
                }
                continue;
            }
            self.decode_all(&payloads, mode, own)?;
        }
        Ok(())
    }
}
