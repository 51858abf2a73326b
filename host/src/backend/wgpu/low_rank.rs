//! The steps on WGPU without a wait, for where a thread may not wait: a browser's.

use crate::backend::wgpu::Wgpu;
use crate::embed::phase::{Answers, Phase, Stage, refusal};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::low_rank::LowRankState;

impl Wgpu {
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
        state.expect_begin(gradient, factor)?;
        let known = state.last;
        let mut input = state.factors(known).clone();
        let odd = state.refused_plain(gradient);
        let (sent, plain) = factor.split_at_mut(state.table.factor_len(known.other()));
        let answers = match state.begin_phase(gradient, known, &input, &self.limits())? {
            Some(phase) => self.phase(&phase, odd).await?,
            None => refusal(None, odd).map(|()| Vec::new())?,
        };
        state.start_work();
        state.end_begin(&answers, &mut input, sent);
        *state.work.factors(known) = input;
        state.began(gradient, plain);
        Ok(())
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
        let known = state.expect_advance(reduced, factor)?;
        let (sent, plain) = factor.split_at_mut(state.table.factor_len(known.other()));
        if let Some(phase) = state.advance_phase(reduced, known, &self.limits())? {
            let answers = self.phase(&phase, None).await?;
            state.end_advance(&answers, known, sent);
        }
        state.advanced(plain);
        Ok(())
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
        let side = state.expect_finish(reduced, output)?;
        if let Some(phase) = state.finish_phase(reduced, side, &self.limits())? {
            let answers = self.phase(&phase, None).await?;
            state.end_finish(&answers, side, output);
        }
        state.finished(side, reduced, output);
        Ok(())
    }

    /// Runs a phase; `odd` is an element that is refused beside those that the device looks at.
    async fn phase(&self, phase: &Phase<'_>, odd: Option<u64>) -> Result<Answers, Error> {
        let mut answers = Vec::with_capacity(phase.reads.len());
        let buffers = phase.buffers(&mut answers)?;
        self.run_async(Stage { phase, odd }, buffers).await?;
        Ok(answers)
    }
}
