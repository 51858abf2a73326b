//! What a backend does in a step of PowerSGD.

use super::LowRankState;
use super::run::{refusal, run_phase};
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
