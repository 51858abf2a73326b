//! The calls of the WGPU backend that do not wait, for where a thread may not wait: a browser's.

use super::{Runner, dense, entropy, low_rank, sparse};
use crate::backend::wgpu::Wgpu;
use crate::codec::topk::TopK;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::low_rank::LowRankState;
use crate::plan::{DecodeMode, EncodePlan};
use crate::seed::Seed;
use crate::sparse::payload::SparsePayload;
use crate::view::AsPayload;
use crate::wire::{Entropy, Payload};

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
        dense::encode(Runner::Waitless(self), plan, gradient, residual, seed).await
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
        dense::decode(Runner::Waitless(self), &[payload.as_payload()], mode, output).await
    }

    /// As [`Device::pack`](crate::Device::pack), bit for bit, without a wait in a browser. Elsewhere the returned
    /// future waits for the device when it is polled.
    ///
    /// ```no_run
    /// # async fn run(gradient: &[f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::{Codec, Dtype, Entropy, Qsgd, Seed};
    /// let gradwire = Wgpu::open_async().await?;
    /// let plan = Qsgd::bits(4).l2().plan(gradient.len(), Dtype::F32)?;
    /// let payload = gradwire.encode_async(&plan, gradient.into(), &mut [], Seed::new(42)).await?;
    /// let packed = gradwire.pack_async(&payload, Entropy::Elias).await?;
    /// assert_eq!(gradwire.unpack_async(&packed).await?.as_bytes().len(), payload.as_bytes().len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Device::pack`](crate::Device::pack).
    pub async fn pack_async(&self, payload: &(impl AsPayload + ?Sized), entropy: Entropy) -> Result<Payload, Error> {
        entropy::pack(Runner::Waitless(self), payload.as_payload(), entropy).await
    }

    /// As [`Device::unpack`](crate::Device::unpack), bit for bit, without a wait in a browser.
    ///
    /// # Errors
    /// As [`Device::unpack`](crate::Device::unpack).
    pub async fn unpack_async(&self, payload: &(impl AsPayload + ?Sized)) -> Result<Payload, Error> {
        entropy::unpack(Runner::Waitless(self), payload.as_payload()).await
    }

    /// Keeps the entries of largest magnitude, without a wait in a browser: what
    /// [`Device::encode_sparse`](crate::Device::encode_sparse) makes, or with a residual what
    /// [`Device::encode_sparse_with_feedback`](crate::Device::encode_sparse_with_feedback) makes and leaves, bit for
    /// bit. Elsewhere the returned future waits for the device when it is polled.
    ///
    /// ```no_run
    /// # async fn run(gradient: &[f32], residual: &mut [f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::{Seed, TopK};
    /// let gradwire = Wgpu::open_async().await?;
    /// let seed = Seed::new(42);
    /// let sent = gradwire.encode_sparse_async(&TopK::fraction(0.01), gradient.into(), Some(residual), seed).await?;
    /// let mut sum = vec![0.0; gradient.len()];
    /// gradwire.decode_sparse_async(&sent, Some(0.5), &mut sum).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Device::encode_sparse_with_feedback`](crate::Device::encode_sparse_with_feedback). The residual is as it
    /// was whenever this fails.
    pub async fn encode_sparse_async(
        &self,
        codec: &TopK,
        gradient: Gradient<'_>,
        residual: Option<&mut [f32]>,
        seed: Seed,
    ) -> Result<SparsePayload, Error> {
        match residual {
            Some(residual) => {
                sparse::encode_with_feedback(Runner::Waitless(self), codec, gradient, residual, seed).await
            }
            None => sparse::encode(Runner::Waitless(self), codec, gradient, seed).await,
        }
    }

    /// Decodes a sparse payload without a wait in a browser: over zeros, or with a weight onto what `output` holds.
    ///
    /// # Errors
    /// As [`Device::decode_sparse_into`](crate::Device::decode_sparse_into). The output is as it was whenever this
    /// fails.
    pub async fn decode_sparse_async(
        &self,
        payload: &SparsePayload,
        weight: Option<f32>,
        output: &mut [f32],
    ) -> Result<(), Error> {
        Error::expect_len("output", "elements", output.len(), payload.header().n)?;
        sparse::scatter(Runner::Waitless(self), payload, weight, output).await
    }

    /// Begins a step of PowerSGD without a wait in a browser: what
    /// [`Device::begin_low_rank`](crate::Device::begin_low_rank) makes and leaves on this device, bit for bit.
    /// Elsewhere the returned future waits for the device when it is polled. A step may go on with either's calls.
    ///
    /// ```no_run
    /// # async fn mean(factor: &mut [f32]) {}
    /// # async fn run(state: &mut gradwire::LowRankState, gradient: &[f32], output: &mut [f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// let gradwire = Wgpu::open_async().await?;
    /// let mut p = vec![0.0; state.factor_len()];
    /// gradwire.begin_low_rank_async(state, gradient.into(), &mut p).await?;
    /// mean(&mut p).await; // over all workers
    /// let mut q = vec![0.0; state.factor_len()];
    /// gradwire.advance_low_rank_async(state, &p, &mut q).await?;
    /// mean(&mut q).await;
    /// gradwire.finish_low_rank_async(state, &q, output).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Device::begin_low_rank`](crate::Device::begin_low_rank). The state is as it was whenever this fails, and
    /// where the future is dropped before it is done.
    pub async fn begin_low_rank_async(
        &self,
        state: &mut LowRankState,
        gradient: Gradient<'_>,
        factor: &mut [f32],
    ) -> Result<(), Error> {
        low_rank::begin(Runner::Waitless(self), state, gradient, factor).await
    }

    /// Takes a factor that was all-reduced and writes the next one, without a wait in a browser.
    ///
    /// # Errors
    /// As [`Device::advance_low_rank`](crate::Device::advance_low_rank). The state is as it was whenever this fails,
    /// and where the future is dropped before it is done.
    pub async fn advance_low_rank_async(
        &self,
        state: &mut LowRankState,
        reduced: &[f32],
        factor: &mut [f32],
    ) -> Result<(), Error> {
        low_rank::advance(Runner::Waitless(self), state, reduced, factor).await
    }

    /// Takes the last factor that was all-reduced and writes what all workers together send, without a wait in a
    /// browser.
    ///
    /// # Errors
    /// As [`Device::finish_low_rank`](crate::Device::finish_low_rank). The state is as it was whenever this fails, and
    /// where the future is dropped before it is done.
    pub async fn finish_low_rank_async(
        &self,
        state: &mut LowRankState,
        reduced: &[f32],
        output: &mut [f32],
    ) -> Result<(), Error> {
        low_rank::finish(Runner::Waitless(self), state, reduced, output).await
    }
}
