//! What a backend does in a step of PowerSGD.

use gradwire_kernels::arith::float::NAN_BITS;

use super::LowRankState;
use super::run::{refusal, run_phase};
use crate::backend::cpu::{Cpu, PassMemory};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::Side;
use crate::session::Sessions;
use crate::words::copied;

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
            && let Some(index) = self.low_rank_not_finite(&state.matrices(false), gradient)?
        {
            return Err(Error::NotFinite { index });
        }
        let table = state.table.clone();
        let mut memory = PassMemory::of_product(&table, known, true, std::mem::take(&mut state.scratch.0))?;
        state.reserve_work(gradient)?;
        // The step has factors of its own until it is finished.
        state.start_work();
        let mut input = std::mem::take(state.work.factors(known));
        self.orthonormalise(&table, known, &mut input, Some(&state.streams()));
        let is_aside = state.move_aside();
        self.begin_low_rank(&mut state.matrices(is_aside), gradient, &input, known, sent, &mut memory);
        state.scratch.0 = memory.scratch;
        *state.work.factors(known) = input;
        Ok(())
    }

    fn advance(&self, state: &mut LowRankState, known: Side, reduced: &[f32], sent: &mut [f32]) -> Result<(), Error> {
        let table = state.table.clone();
        let mut memory = PassMemory::of_product(&table, known, false, std::mem::take(&mut state.scratch.0))?;
        state.take_reduced(known, reduced);
        let mut input = std::mem::take(state.work.factors(known));
        self.orthonormalise(&table, known, &mut input, None);
        self.multiply_low_rank(&table, &state.sums, &input, known, sent, &mut memory);
        state.scratch.0 = memory.scratch;
        *state.work.factors(known) = input;
        for ((index, _), mine) in table.compressed().zip(table.split_mut(known.other(), sent)) {
            if state.poisoned[index] {
                mine.fill(f32::from_bits(NAN_BITS));
            }
        }
        Ok(())
    }

    fn finish(&self, state: &mut LowRankState, last: Side, reduced: &[f32], output: &mut [f32]) -> Result<(), Error> {
        let mut memory = PassMemory::of_expansion(&state.table)?;
        state.take_reduced(last, reduced);
        let (left, right) = (&state.work.left, &state.work.right);
        self.expand_low_rank(&state.table, left, right, &state.poisoned, output, &mut memory);
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
        state.reserve_work(gradient)?;
        state.copy_aside();
        let odd = state.refused_plain(gradient);
        let mut input = copied(state.factors(known), "a factor")?;
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
