//! The steps on WGPU without a wait, for where a thread may not wait: a browser's.

use crate::backend::wgpu::{SCRATCH, Wgpu};
use crate::embed::{Access, Piece};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::low_rank::LowRankState;
use crate::low_rank::run::{Answers, Phase, refusal};
use crate::plan::Role;
use crate::words::from_little_endian;

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
        let (status, copies) = self
            .contained("a step of PowerSGD", || {
                let room = |role: Role| self.room(phase.sizes.of(role), SCRATCH);
                let buffers = Role::ALL.into_iter().map(room).collect::<Result<Vec<_>, _>>()?;
                let buffer_of = |role: Role| &buffers[role as usize];
                let piece = |role: Role| {
                    let access = if role == Role::Input { Access::Read } else { Access::Scratch };
                    let (slice, needed) = (buffer_of(role).slice(..), phase.sizes.of(role));
                    Piece::new("buffer of a step", slice, needed, [Some((role, 0)), None]).accessed(access)
                };
                let pieces = Role::ALL.map(piece);
                for (role, at, bytes) in &phase.writes {
                    self.put_at(buffer_of(*role), *at, bytes);
                }
                let mut encoder = self.encoder();
                self.record_checked(&phase.scan, &mut encoder, &pieces)?;
                let looked = if phase.scan.is_empty() { 0 } else { 4 };
                let status = self.copied(&mut encoder, buffer_of(Role::Status), 0, looked)?;
                self.record_checked(&phase.passes, &mut encoder, &pieces)?;
                let mut copies = Vec::with_capacity(phase.reads.len());
                for (role, at, count) in &phase.reads {
                    copies.push(self.copied(&mut encoder, buffer_of(*role), *at, 4 * *count as u64)?);
                }
                self.submit(encoder);
                Ok((status, copies))
            })
            .await?;
        if !phase.scan.is_empty() {
            refusal(from_little_endian(&self.read(status).await?).first().copied(), odd)?;
        }
        let mut answers = Vec::with_capacity(copies.len());
        for copy in copies {
            answers.push(from_little_endian(&self.read(copy).await?));
        }
        Ok(answers)
    }
}
