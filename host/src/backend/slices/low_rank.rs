//! The steps of low-rank compression, of a state in the host's memory.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use super::passes;
use super::{Place, Runner};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::low_rank::LowRankState;

/// Adds the gradient to the residual, and writes the first factor.
pub(crate) async fn begin(
    on: Runner<'_>,
    state: &mut LowRankState,
    gradient: Gradient<'_>,
    factor: &mut [f32],
) -> Result<(), Error> {
    state.expect_begin(gradient, factor)?;
    let known = state.last;
    let (sent, plain) = factor.split_at_mut(state.table.factor_len(known.other()));
    match on.place() {
        Place::Cpu(cpu) => cpu.begin_step(state, known, gradient, sent)?,
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        Place::Gpu(limits) => passes::begin(on, state, &limits, known, gradient, sent).await?,
    }
    state.began(gradient, plain);
    Ok(())
}

/// Takes a factor that was all-reduced, and writes the next one.
pub(crate) async fn advance(
    on: Runner<'_>,
    state: &mut LowRankState,
    reduced: &[f32],
    factor: &mut [f32],
) -> Result<(), Error> {
    let known = state.expect_advance(reduced, factor)?;
    let (sent, plain) = factor.split_at_mut(state.table.factor_len(known.other()));
    match on.place() {
        Place::Cpu(cpu) => cpu.advance_step(state, known, reduced, sent)?,
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        Place::Gpu(limits) => passes::advance(on, state, &limits, known, reduced, sent).await?,
    }
    state.advanced(plain);
    Ok(())
}

/// Takes the last factor that was all-reduced, and writes what all workers together send.
pub(crate) async fn finish(
    on: Runner<'_>,
    state: &mut LowRankState,
    reduced: &[f32],
    output: &mut [f32],
) -> Result<(), Error> {
    let side = state.expect_finish(reduced, output)?;
    match on.place() {
        Place::Cpu(cpu) => cpu.finish_step(state, side, reduced, output)?,
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        Place::Gpu(limits) => passes::finish(on, state, &limits, side, reduced, output).await?,
    }
    state.finished(side, reduced, output);
    Ok(())
}
