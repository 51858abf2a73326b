//! How a step's factors begin, are taken from what was all-reduced, and become the state's.

use gradwire_kernels::arith::powersgd::usable;

use super::LowRankState;
use super::factors::StepFactors;
use super::outcome::Outcome;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::Side;
use crate::words::no_memory;

/// Memory for a list of the step under way, which is empty between steps.
fn reserve<T>(list: &mut Vec<T>, entries: usize) -> Result<(), Error> {
    list.clear();
    list.try_reserve_exact(entries).map_err(|_| no_memory::<T>(entries as u64, "a step of PowerSGD"))
}

impl LowRankState {
    /// Allocates what [`LowRankState::start_work`] fills, and a list for elements that are not finite, of tensors that are
    /// not compressed.
    ///
    /// # Errors
    /// [`Error::Backend`] if it cannot be had.
    pub(crate) fn reserve_work(&mut self, gradient: Gradient<'_>) -> Result<(), Error> {
        let odd = self.plain_odd(gradient).count();
        let Self { work: StepFactors { left, right, odd: sent }, left: kept_left, right: kept_right, .. } = self;
        reserve(left, kept_left.len())?;
        reserve(right, kept_right.len())?;
        reserve(sent, odd)
    }

    /// Fills the step's factors: that of the side it starts from is the last step's, yet to be made orthonormal; that
    /// of the other is zeros.
    pub(crate) fn start_work(&mut self) {
        self.work.clear();
        for (side, kept) in [(Side::Left, &self.left), (Side::Right, &self.right)] {
            let factors = self.work.factors(side);
            if side == self.last {
                factors.extend_from_slice(kept);
            } else {
                factors.resize(kept.len(), 0.0);
            }
        }
    }

    /// Takes the factors of a side from what was all-reduced. One with an entry that cannot be used poisons its matrix.
    pub(crate) fn take_reduced(&mut self, side: Side, reduced: &[f32]) {
        let Self { table, work, poisoned, .. } = self;
        let mine = table.split_padded(side, work.factors(side));
        for (((index, part), from), to) in table.compressed().zip(table.split(side, reduced)).zip(mine) {
            poisoned[index] |= !from.iter().all(|v| usable(*v));
            if poisoned[index] {
                continue;
            }
            let columns = from.chunks_exact(part.dimension(side)).zip(to.chunks_exact_mut(part.stride(side)));
            columns.for_each(|(from, to)| to[..from.len()].copy_from_slice(from));
        }
    }

    /// Ends the step: its factors become the state's, but those of poisoned matrices, of which nothing was sent.
    pub(crate) fn commit(&mut self) {
        let feedback = self.codec.feedback();
        let Self { table, work, poisoned, sent, fates, sums, .. } = self;
        for (index, part) in table.compressed() {
            sent[index] = !poisoned[index];
            fates[index] = fates[index].next(!poisoned[index], feedback);
            if fates[index].outcome == Some(Outcome::Dropped) {
                sums[part.first..part.first + part.elements()].fill(0.0);
            }
        }
        if !poisoned.contains(&true) {
            std::mem::swap(&mut self.left, &mut work.left);
            std::mem::swap(&mut self.right, &mut work.right);
        } else {
            for (side, kept) in [(Side::Left, &mut self.left), (Side::Right, &mut self.right)] {
                let parts = table.compressed().zip(table.split_padded(side, work.factors(side)));
                for (((index, _), from), to) in parts.zip(table.split_padded(side, kept)) {
                    if !poisoned[index] {
                        to.copy_from_slice(from);
                    }
                }
            }
        }
        work.clear();
    }
}
