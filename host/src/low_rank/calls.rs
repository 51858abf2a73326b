//! The checks of a step's calls, and their state on the host, wherever the rest is computed.

use gradwire_kernels::arith::philox::Stream;
use gradwire_kernels::arith::powersgd::usable;

use super::LowRankState;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::Side;

impl LowRankState {
    pub(crate) fn expect_begin(&self, gradient: Gradient<'_>, factor: &[f32]) -> Result<(), Error> {
        self.expect_idle("begin_low_rank")?;
        Error::expect_len("gradient", "elements", gradient.len(), self.elements() as u64)?;
        Error::expect_len("factor", "entries", factor.len(), self.factor_len() as u64)
    }

    /// The element that is refused of tensors that are not compressed.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn refused_plain(&self, gradient: Gradient<'_>) -> Option<u64> {
        if self.codec.is_guarded() { self.plain_not_finite(gradient) } else { None }
    }

    pub(crate) fn began(&mut self, gradient: Gradient<'_>, plain: &mut [f32]) {
        self.form_plain(gradient);
        self.sent.fill(false);
        self.poisoned.fill(false);
        self.round = 1;
        self.write_plain(plain);
    }

    /// The side of the factor that was all-reduced.
    pub(crate) fn expect_advance(&self, reduced: &[f32], factor: &[f32]) -> Result<Side, Error> {
        if self.round == 0 || self.round == self.rounds() {
            return Err(Error::Order { asked: "advance_low_rank", expected: self.expected() });
        }
        self.check_reduced(reduced)?;
        Error::expect_len("factor", "entries", factor.len(), self.factor_len() as u64)?;
        Ok(self.side(self.round))
    }

    pub(crate) fn advanced(&mut self, plain: &mut [f32]) {
        self.round += 1;
        self.write_plain(plain);
    }

    /// As [`LowRankState::expect_advance`], of the last one.
    pub(crate) fn expect_finish(&self, reduced: &[f32], output: &[f32]) -> Result<Side, Error> {
        if self.round == 0 || self.round != self.rounds() {
            return Err(Error::Order { asked: "finish_low_rank", expected: self.expected() });
        }
        self.check_reduced(reduced)?;
        Error::expect_len("output", "elements", output.len(), self.elements() as u64)?;
        Ok(self.side(self.round))
    }

    pub(crate) fn finished(&mut self, side: Side, reduced: &[f32], output: &mut [f32]) {
        self.finish_plain(&reduced[self.table.factor_len(side)..], output);
        self.commit();
        (self.last, self.round, self.step) = (side, 0, self.step.wrapping_add(1));
    }

    /// Where each matrix's seeded columns come from in this step.
    pub(crate) fn streams(&self) -> Vec<Stream> {
        let first = self.stream();
        let stream = |(index, _)| Stream { tensor: first.tensor.wrapping_add(index as u32), ..first };
        self.table.compressed().map(stream).collect()
    }

    /// That of the first tensor.
    pub(crate) fn stream(&self) -> Stream {
        let [low, high] = self.seed.step_words();
        let step = (u64::from(high) << 32 | u64::from(low)).wrapping_add(self.step);
        Stream { key: self.seed.key(), tensor: self.seed.tensor_word(), step: [step as u32, (step >> 32) as u32] }
    }

    fn check_reduced(&self, reduced: &[f32]) -> Result<(), Error> {
        let side = self.side(self.round);
        let expected = self.sent_len(side, self.round);
        Error::expect_len("reduced factor", "entries", reduced.len(), expected as u64)?;
        if !self.codec.is_guarded() {
            return Ok(());
        }
        refuse_unusable(reduced, self.table.factor_len(side))
    }
}

/// Refuses a mean that cannot be used: its first entries are of factors.
pub(crate) fn refuse_unusable(reduced: &[f32], factors: usize) -> Result<(), Error> {
    let refused = |(i, v): &(usize, &f32)| if *i < factors { !usable(**v) } else { !v.is_finite() };
    match reduced.iter().enumerate().find(refused) {
        Some((index, _)) => Err(Error::NotFiniteFactor { index: index as u64 }),
        None => Ok(()),
    }
}
