//! Many tensors on any device, from slices to payloads and back.

use crate::codec::Codec;
use crate::device::Device;
use crate::error::{Error, expect_residual};
use crate::float_environment::FloatEnvironment;
use crate::gradient::{Dtype, Gradient};
use crate::model::{Layout, ModelPlan};
use crate::plan::{DecodeMode, check_count};
use crate::seed::Seed;
use crate::view::{AsPayload, PayloadView};
use crate::wire::Payload;

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
    /// under that policy, with the index in the flat gradient; [`Error::Backend`] where the device fails. The residual
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
        if gradient.dtype() != plan.dtype() {
            return Err(Error::Dtype { expected: plan.dtype().name(), found: gradient.dtype().name() });
        }
        let elements = plan.layout().elements();
        Error::expect_len("gradient", "elements", gradient.len(), elements)?;
        expect_residual(plan.feedback(), residual.len(), elements)?;
        self.engine().encode_model(plan, gradient, residual, seed)
    }

    /// Decodes a model's payloads, of one worker or of several, over or onto a flat output of the gradient's layout.
    ///
    /// Each entry of `workers` is a worker's payloads, one a tensor. The order of a sum is that of the slice, as in
    /// [`Device::decode_sum`]. [`DecodeMode::Write`] and [`DecodeMode::Add`] take the workers one after another. What
    /// lies between tensors is left as it was.
    ///
    /// # Errors
    /// [`Error::Length`] for an output of another length, or more or fewer payloads than tensors; [`Error::Other`] for
    /// a payload of another codec, setting or length; [`Error::Backend`] where the device fails.
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
        self.engine().decode_model(plan, mode, &views, output)
    }
}
