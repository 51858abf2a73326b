//! What a backend does in a step of PowerSGD.

use gradwire_kernels::arith::float::NAN_BITS;

use super::LowRankState;
use super::run::{refusal, run_phase};
use crate::backend::cpu::Cpu;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::Side;
use crate::session::Sessions;

/// What a backend does with the compressed matrices in the calls of a step. Lengths and order were checked; the state
/// is as it was whenever one fails.
pub(crate) trait LowRank {
    /// Makes the factor `known` of the state orthonormal as the step's own, forms gradient + residual, and writes the
    /// product as it is sent.
    fn begin(
        &self,
        state: &mut LowRankState,
        known: Side,
        gradient: Gradient<'_>,
        sent: &mut [f32],
    ) -> Result<(), Error>;

    /// Takes the factor `known` that was all-reduced, makes it orthonormal, and writes the next product.
    fn advance(&self, state: &mut LowRankState, known: Side, reduced: &[f32], sent: &mut [f32]) -> Result<(), Error>;

    /// Takes the last factor, and writes L R^T of each matrix.
    fn finish(&self, state: &mut LowRankState, last: Side, reduced: &[f32], output: &mut [f32]) -> Result<(), Error>;
}

impl LowRank for Cpu {
    fn begin(
        &self,
        state: &mut LowRankState,
        known: Side,
        gradient: Gradient<'_>,
        sent: &mut [f32],
    ) -> Result<(), Error> {
        if state.codec.is_guarded()
            && let Some(index) = self.low_rank_not_finite(&state.matrices(false), gradient)
        {
            return Err(Error::NotFinite { index });
        }
        // The step has factors of its own until it is finished.
        state.start_work();
        let table = state.table.clone();
        let mut input = std::mem::take(state.work.factors(known));
        self.orthonormalise(&table, known, &mut input, Some(&state.streams()));
        let mut scratch = std::mem::take(&mut state.scratch);
        let is_aside = state.move_aside();
        self.begin_low_rank(&mut state.matrices(is_aside), gradient, &input, known, sent, &mut scratch.0);
        state.scratch = scratch;
        *state.work.factors(known) = input;
        Ok(())
    }

    fn advance(&self, state: &mut LowRankState, known: Side, reduced: &[f32], sent: &mut [f32]) -> Result<(), Error> {
        state.take_reduced(known, reduced);
        let table = state.table.clone();
        let mut input = std::mem::take(state.work.factors(known));
        self.orthonormalise(&table, known, &mut input, None);
        let mut scratch = std::mem::take(&mut state.scratch);
        self.multiply_low_rank(&table, &state.sums, &input, known, sent, &mut scratch.0);
        state.scratch = scratch;
        *state.work.factors(known) = input;
        for ((index, _), mine) in table.compressed().zip(table.split_mut(known.other(), sent)) {
            if state.poisoned[index] {
                mine.fill(f32::from_bits(NAN_BITS));
            }
        }
        Ok(())
    }

    fn finish(&self, state: &mut LowRankState, last: Side, reduced: &[f32], output: &mut [f32]) -> Result<(), Error> {
        state.take_reduced(last, reduced);
        self.expand_low_rank(&state.table, &state.work.left, &state.work.right, &state.poisoned, output);
        Ok(())
    }
}

impl<T: Sessions> LowRank for T {
    fn begin(
        &self,
        state: &mut LowRankState,
        known: Side,
        gradient: Gradient<'_>,
        sent: &mut [f32],
    ) -> Result<(), Error> {
        state.copy_aside();
        let odd = state.refused_plain(gradient);
        let mut input = state.factors(known).clone();
        let answers = match state.begin_phase(gradient, known, &input, &self.limits())? {
            Some(phase) => run_phase(self, &phase, odd)?,
            None => refusal(None, odd).map(|()| Vec::new())?,
        };
        // The step has factors of its own until it is finished.
        state.start_work();
        state.end_begin(&answers, &mut input, sent);
        *state.work.factors(known) = input;
        Ok(())
    }

    fn advance(&self, state: &mut LowRankState, known: Side, reduced: &[f32], sent: &mut [f32]) -> Result<(), Error> {
        if let Some(phase) = state.advance_phase(reduced, known, &self.limits())? {
            let answers = run_phase(self, &phase, None)?;
            state.end_advance(&answers, known, sent);
        }
        Ok(())
    }

    fn finish(&self, state: &mut LowRankState, last: Side, reduced: &[f32], output: &mut [f32]) -> Result<(), Error> {
        if let Some(phase) = state.finish_phase(reduced, last, &self.limits())? {
            let answers = run_phase(self, &phase, None)?;
            state.end_finish(&answers, last, output);
        }
        Ok(())
    }
}
