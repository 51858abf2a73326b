//! Many tensors on any device, from slices to payloads and back.

use crate::codec::Codec;
use crate::device::Device;
use crate::embed::{DecodeBuffers, DecodeModel, EncodeBuffers, EncodeModel, HostSlice, WithTable};
use crate::error::{Error, expect_residual};
use crate::float_environment::FloatEnvironment;
use crate::gradient::{Dtype, Gradient};
use crate::kind::BackendKind;
use crate::model::{Layout, ModelPlan};
use crate::plan::{DecodeMode, EncodePlan, check_count};
use crate::seed::Seed;
use crate::view::{AsPayload, PayloadView};
use crate::wire::{HEADER_BYTES, Payload};
use crate::words::zeros;

impl Device {
    /// The plan for a model's tensors, within this device's limits.
    ///
    /// # Errors
    /// As [`ModelPlan::new`].
    pub fn model_plan(&self, codec: &(impl Codec + ?Sized), layout: &Layout, dtype: Dtype) -> Result<ModelPlan, Error> {
        let _environment = FloatEnvironment::standard();
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
    /// [`Error::Length`] or [`Error::Dtype`] for a gradient or residual that is not the plan's; [`Error::NotFinite`]
    /// under that policy, with the index in the flat gradient; [`Error::Backend`] if the device fails. The residual
    /// is as it was whenever this fails.
    pub fn encode_model<'g>(
        &self,
        plan: &ModelPlan,
        gradient: impl Into<Gradient<'g>>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Vec<Payload>, Error> {
        let _environment = FloatEnvironment::standard();
        let gradient = gradient.into();
        expect_gradient(plan, gradient)?;
        expect_residual(plan.feedback(), residual.len(), plan.layout().elements())?;
        self.encode_model_apart(plan, gradient, residual.into(), seed)
    }

    /// As [`Device::encode_model`], of a residual that is read and written where the plan has feedback.
    pub(crate) fn encode_model_apart(
        &self,
        plan: &ModelPlan,
        gradient: Gradient<'_>,
        residual: HostSlice<'_>,
        seed: Seed,
    ) -> Result<Vec<Payload>, Error> {
        let mut payloads = Vec::with_capacity(plan.tensors().len());
        for tensor in plan.tensors() {
            payloads.push(zeros(tensor.payload_bytes() as u64, "a payload")?);
        }
        let bodies = payloads.iter_mut().map(|bytes| &mut bytes[HEADER_BYTES..]).collect();
        self.encode_bodies(plan, gradient, residual, seed, bodies)?;
        let seal = |(tensor, bytes): (&EncodePlan, Vec<u8>)| Payload::seal(*tensor.header(), bytes);
        Ok(plan.tensors().iter().zip(payloads).map(seal).collect())
    }

    /// As [`Device::encode_model_apart`], with the payload of each tensor in memory of its length, which may hold
    /// anything if this fails.
    pub(crate) fn encode_model_into(
        &self,
        plan: &ModelPlan,
        gradient: Gradient<'_>,
        residual: HostSlice<'_>,
        seed: Seed,
        mut payloads: Vec<&mut [u8]>,
    ) -> Result<(), Error> {
        let bodies = payloads.iter_mut().map(|payload| &mut payload[HEADER_BYTES..]).collect();
        self.encode_bodies(plan, gradient, residual, seed, bodies)?;
        for (tensor, payload) in plan.tensors().iter().zip(payloads) {
            let (head, body) = payload.split_at_mut(HEADER_BYTES);
            head.copy_from_slice(&tensor.header().write(body));
        }
        Ok(())
    }

    /// Encodes into the bodies of payloads, which are without headers.
    fn encode_bodies(
        &self,
        plan: &ModelPlan,
        gradient: Gradient<'_>,
        residual: HostSlice<'_>,
        seed: Seed,
        bodies: Vec<&mut [u8]>,
    ) -> Result<(), Error> {
        expect_gradient(plan, gradient)?;
        let cut = |(tensor, body): (&EncodePlan, _)| {
            let body: &mut [u8] = body;
            body.split_at_mut(tensor.header().scalar_bytes() as usize)
        };
        let (mut parts, mut codes): (Vec<_>, Vec<_>) = plan.tensors().iter().zip(bodies).map(cut).unzip();
        parts.append(&mut codes);
        let table = if self.kind() == BackendKind::Cpu { Vec::new() } else { plan.table() };
        let buffers = EncodeBuffers {
            gradient: gradient.into(),
            residual: Some(residual),
            body: HostSlice::parts_out(plan.body_ranges().map(|range| range.start).zip(parts).collect()),
            workspace: Some(HostSlice::Out(&mut [])),
        };
        let buffers = WithTable { table: HostSlice::parts(vec![(0, &table)]), buffers };
        // SAFETY: the table is the plan's own.
        unsafe { self.run_trusting(EncodeModel { plan, seed }, buffers) }
    }

    /// Decodes a model's payloads, of one worker or of several, over or onto a flat output of the gradient's layout.
    ///
    /// Each entry of `workers` is a worker's payloads, one a tensor. The order of a sum is that of the slice, as in
    /// [`Device::decode_sum`]. [`DecodeMode::Write`] and [`DecodeMode::Add`] take the workers one after another. What
    /// lies between tensors is left as it was.
    ///
    /// # Errors
    /// [`Error::Length`] for an output of another length, or more or fewer payloads than tensors; [`Error::Other`] for
    /// a payload of another codec, setting or length; [`Error::Backend`] if the device fails.
    pub fn decode_model(
        &self,
        plan: &ModelPlan,
        mode: DecodeMode,
        workers: &[&[impl AsPayload]],
        output: &mut [f32],
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        Error::expect_len("output", "elements", output.len(), plan.layout().elements())?;
        check_count(workers.len() as u64)?;
        workers.iter().try_for_each(|payloads| plan.check_payloads(payloads))?;
        if workers.is_empty() {
            // A sum of nothing.
            for span in plan.layout().spans().iter().filter(|_| matches!(mode, DecodeMode::Sum(_))) {
                output[span.offset as usize..span.end() as usize].fill(0.0);
            }
            return Ok(());
        }
        let mut views: Vec<Vec<PayloadView<'_>>> = Vec::with_capacity(workers.len());
        for payloads in workers {
            views.push(payloads.iter().map(AsPayload::as_payload).collect());
        }
        let unpacked = views.iter().map(|payloads| self.unpack_all(payloads)).collect::<Result<Vec<_>, _>>()?;
        for (view, own) in views.iter_mut().flatten().zip(unpacked.iter().flatten()) {
            if let Some(own) = own {
                *view = own.view();
            }
        }
        let (tensors, each) = (plan.tensors().len(), plan.body_bytes());
        let mut bodies = Vec::with_capacity(2 * tensors * workers.len());
        for (payloads, worker) in views.iter().zip(0..) {
            let parts = payloads.iter().map(PayloadView::scalars).chain(payloads.iter().map(PayloadView::codes));
            bodies.extend(plan.body_ranges().map(|range| worker * each + range.start).zip(parts));
        }
        let table = if self.kind() == BackendKind::Cpu { Vec::new() } else { plan.table() };
        let buffers = DecodeBuffers { bodies: HostSlice::parts(bodies), output: output.into() };
        let table = HostSlice::parts(vec![(0, &table)]);
        let work = DecodeModel { plan, mode, payloads: workers.len() as u32 };
        // SAFETY: the table is the plan's own.
        unsafe { self.run_trusting(work, WithTable { table, buffers }) }
    }
}

/// Checks a flat gradient against a plan.
fn expect_gradient(plan: &ModelPlan, gradient: Gradient<'_>) -> Result<(), Error> {
    if gradient.dtype() != plan.dtype() {
        return Err(Error::Dtype { expected: plan.dtype().name(), found: gradient.dtype().name() });
    }
    Error::expect_len("gradient", "elements", gradient.len(), plan.layout().elements())
}
