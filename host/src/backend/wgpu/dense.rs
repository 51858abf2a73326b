//! A tensor that is encoded and decoded without a wait, for where a thread may not wait: a browser's.

use super::device::Wgpu;
use crate::embed::{Decode, DecodeBuffers, Encode, EncodeBuffers, HostSlice};
use crate::error::{Error, expect_residual};
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, check_input};
use crate::seed::Seed;
use crate::view::AsPayload;
use crate::wire::Payload;

impl Wgpu {
    /// As [`Device::encode_plan`](crate::Device::encode_plan), without a wait in a browser. Elsewhere the returned
    /// future waits for the device when it is polled.
    ///
    /// ```no_run
    /// # async fn run(gradient: &[f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::{Codec, DecodeMode, Dtype, Qsgd, Seed};
    /// let gradwire = Wgpu::open_async().await?;
    /// let plan = Qsgd::bits(4).plan(gradient.len(), Dtype::F32)?;
    /// let payload = gradwire.encode_async(&plan, gradient.into(), &mut [], Seed::new(42)).await?;
    /// let mut sum = vec![0.0; gradient.len()];
    /// gradwire.decode_async(&payload, DecodeMode::Add(0.5), &mut sum).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Device::encode_plan`](crate::Device::encode_plan). The residual is as it was whenever this fails.
    pub async fn encode_async(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Payload, Error> {
        if !plan.is_packed() {
            return self.encode_fixed(plan, gradient, residual, seed).await;
        }
        // The caller's residual changes once nothing can fail any more.
        let mut left = residual.to_vec();
        let fixed = self.encode_fixed(&plan.fixed(), gradient, &mut left, seed).await?;
        let packed = self.pack_async(&fixed, plan.entropy()).await?;
        residual.copy_from_slice(&left);
        Ok(packed)
    }

    async fn encode_fixed(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Payload, Error> {
        check_input(plan, gradient.dtype(), gradient.len())?;
        let header = *plan.header();
        expect_residual(plan.feedback(), residual.len(), header.n)?;
        if header.n == 0 {
            return header.seal(&vec![0; header.body_bytes() as usize]);
        }
        let mut body = vec![0; header.body_bytes() as usize];
        let buffers = EncodeBuffers {
            gradient: HostSlice::from(gradient),
            residual: Some(HostSlice::from(residual)),
            body: HostSlice::Out(&mut body),
            workspace: Some(HostSlice::Out(&mut [])),
        };
        self.run_async(Encode { plan, seed }, buffers).await?;
        header.seal(&body)
    }

    /// Decodes a payload over or onto `output`, without a wait in a browser, as [`Wgpu::encode_async`].
    ///
    /// # Errors
    /// As [`Device::decode_into`](crate::Device::decode_into). The output is as it was whenever this fails.
    pub async fn decode_async(
        &self,
        payload: &(impl AsPayload + ?Sized),
        mode: DecodeMode,
        output: &mut [f32],
    ) -> Result<(), Error> {
        let payload = payload.as_payload();
        Error::expect_len("output", "elements", output.len(), payload.header().n)?;
        if payload.header().n == 0 {
            return Ok(());
        }
        let unpacked = match payload.header().is_packed() {
            true => Some(self.unpack_async(&payload).await?),
            false => None,
        };
        let payload = unpacked.as_ref().map_or(payload, Payload::view);
        let header = *payload.header();
        let plan = DecodePlan::new(header, 1);
        let mut body = vec![0; header.body_bytes() as usize];
        payload.write_body(&mut body)?;
        let buffers = DecodeBuffers { bodies: HostSlice::In(&body), output: HostSlice::from(output) };
        self.run_async(Decode { plan: &plan, mode }, buffers).await
    }
}
