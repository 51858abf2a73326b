//! The steps of PowerSGD.

use gradwire_kernels::arith::float::NAN_BITS;

use super::super::device::Cpu;
use super::super::powersgd::{Matrices, PassMemory};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::low_rank::LowRankState;
use crate::plan::Side;

impl Cpu {
    /// Makes the factor `known` of the state orthonormal as the step's own, forms gradient + residual, and writes the
    /// product as it is sent. Lengths and order were checked.
    ///
    /// # Errors
    /// [`Error::NotFinite`] under that policy, and [`Error::Backend`] if there is no memory: the state is as it was.
    pub(crate) fn begin_step(
        &self,
        state: &mut LowRankState,
        known: Side,
        gradient: Gradient<'_>,
        sent: &mut [f32],
    ) -> Result<(), Error> {
        if state.codec.is_guarded()
            && let Some(index) = self.low_rank_not_finite(&matrices(state, false), gradient)?
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
        self.begin_low_rank(&mut matrices(state, is_aside), gradient, &input, known, sent, &mut memory);
        state.scratch.0 = memory.scratch;
        *state.work.factors(known) = input;
        Ok(())
    }

    /// Takes the factor `known` that was all-reduced, makes it orthonormal, and writes the next product.
    ///
    /// # Errors
    /// As [`Cpu::begin_step`].
    pub(crate) fn advance_step(
        &self,
        state: &mut LowRankState,
        known: Side,
        reduced: &[f32],
        sent: &mut [f32],
    ) -> Result<(), Error> {
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

    /// Takes the last factor, and writes L R^T of each matrix.
    ///
    /// # Errors
    /// As [`Cpu::begin_step`].
    pub(crate) fn finish_step(
        &self,
        state: &mut LowRankState,
        last: Side,
        reduced: &[f32],
        output: &mut [f32],
    ) -> Result<(), Error> {
        let mut memory = PassMemory::of_expansion(&state.table)?;
        state.take_reduced(last, reduced);
        let (left, right) = (&state.work.left, &state.work.right);
        self.expand_low_rank(&state.table, left, right, &state.poisoned, output, &mut memory);
        Ok(())
    }

    /// The first element of gradient + residual that a step of this state would refuse, were its policy to.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for the scan.
    pub(crate) fn refused_by_low_rank(&self, state: &mut LowRankState, gradient: &[f32]) -> Result<Option<u64>, Error> {
        let gradient = Gradient::F32(gradient);
        let of_matrices = self.low_rank_not_finite(&matrices(state, false), gradient)?;
        let plain = state.plain_not_finite(gradient);
        Ok([of_matrices, plain].into_iter().flatten().min())
    }
}

/// The state's memory as the CPU takes it. `is_aside`: [`LowRankState::move_aside`] moved the residual.
fn matrices(state: &mut LowRankState, is_aside: bool) -> Matrices<'_> {
    Matrices {
        table: &state.table,
        sums: &mut state.sums,
        aside: is_aside.then_some(&state.before.0[..]),
        left: &state.left,
        right: &state.right,
        sent: &state.sent,
        feedback: state.codec.feedback(),
    }
}
