//! The phases of a low-rank step by passes.

use super::Runner;
use crate::embed::phase::{Answers, Phase, Stage, refusal};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::low_rank::LowRankState;
use crate::plan::{Limits, Side};
use crate::words::copied;

/// Runs a phase. `odd` is an element that is refused beside those that the device looks at.
async fn run_phase(on: Runner<'_>, phase: &Phase<'_>, odd: Option<u64>) -> Result<Answers, Error> {
    let mut answers = Vec::with_capacity(phase.reads.len());
    let buffers = phase.buffers(&mut answers)?;
    // SAFETY: a phase brings all that its passes read, table and factors.
    unsafe { on.run_passes(Stage { phase, odd }, buffers).await? };
    Ok(answers)
}

/// Makes the factor `known` of the state orthonormal as the step's own, forms gradient + residual, and writes the
/// product as it is sent. Lengths and order were checked; the state is as it was whenever this fails.
pub(super) async fn begin(
    on: Runner<'_>,
    state: &mut LowRankState,
    limits: &Limits,
    known: Side,
    gradient: Gradient<'_>,
    sent: &mut [f32],
) -> Result<(), Error> {
    state.reserve_work(gradient)?;
    state.copy_aside();
    let odd = state.refused_plain(gradient);
    let mut input = copied(state.factors(known), "a factor")?;
    let answers = match state.begin_phase(gradient, known, &input, limits)? {
        Some(phase) => run_phase(on, &phase, odd).await?,
        None => refusal(None, odd).map(|()| Vec::new())?,
    };
    // The step has factors of its own until it is finished.
    state.start_work();
    state.end_begin(&answers, &mut input, sent);
    *state.work.factors(known) = input;
    Ok(())
}

/// Takes the factor `known` that was all-reduced, makes it orthonormal, and writes the next product.
pub(super) async fn advance(
    on: Runner<'_>,
    state: &mut LowRankState,
    limits: &Limits,
    known: Side,
    reduced: &[f32],
    sent: &mut [f32],
) -> Result<(), Error> {
    if let Some(phase) = state.advance_phase(reduced, known, limits)? {
        let answers = run_phase(on, &phase, None).await?;
        state.end_advance(&answers, known, sent);
    }
    Ok(())
}

/// Takes the last factor, and writes L R^T of each matrix.
pub(super) async fn finish(
    on: Runner<'_>,
    state: &mut LowRankState,
    limits: &Limits,
    last: Side,
    reduced: &[f32],
    output: &mut [f32],
) -> Result<(), Error> {
    if let Some(phase) = state.finish_phase(reduced, last, limits)? {
        let answers = run_phase(on, &phase, None).await?;
        state.end_finish(&answers, last, output);
    }
    Ok(())
}
