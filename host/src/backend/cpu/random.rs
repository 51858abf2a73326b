//! Entries that a seed draws.

use gradwire_kernels::arith::float::{accumulate, canonical};
use gradwire_kernels::arith::permutation::place;
use gradwire_kernels::params::{RandomParams, random_flags};

use super::{Cpu, TASK, for_each};
use crate::error::Error;
use crate::words::zeros;

/// Entries whose places are found before they are written.
const BATCH: usize = 1 << 16;

impl Cpu {
    /// Takes the entries of the input.
    pub(crate) fn random_gather(&self, p: &RandomParams, input: &[f32], output: &mut [f32]) {
        let factor = f32::from_bits(p.factor);
        let tasks: Vec<_> = output.chunks_mut(TASK / 8).enumerate().collect();
        for_each(tasks, |(index, output)| {
            let first = (index * (TASK / 8)) as u32;
            for (number, value) in (first..).zip(output) {
                *value = canonical(input[place(p, number) as usize] * factor);
            }
        });
    }

    /// Puts values in the places of the entries.
    pub(crate) fn random_spread(&self, p: &RandomParams, values: &[f32], output: &mut [f32]) -> Result<(), Error> {
        let factor = f32::from_bits(p.factor);
        if p.flags & random_flags::ACCUMULATE != 0 {
            self.random_scatter(p, values, output, |place, value| *place = accumulate(*place, factor, value))
        } else {
            self.random_scatter(p, values, output, |place, value| *place = canonical(value * factor))
        }
    }

    /// Does something with the place of each entry and its value.
    ///
    /// # Errors
    /// [`Error::Backend`] where there is no memory for a batch of places. Nothing is written then.
    pub(crate) fn random_scatter(
        &self,
        p: &RandomParams,
        values: &[f32],
        output: &mut [f32],
        write: impl Fn(&mut f32, f32),
    ) -> Result<(), Error> {
        let mut places = zeros::<u32>(BATCH.min(p.entries as usize) as u64, "the places of entries")?;
        let mut first = 0;
        while first < p.entries as usize {
            let own = (p.entries as usize - first).min(BATCH);
            let tasks: Vec<_> = places[..own].chunks_mut(TASK / 8).enumerate().collect();
            for_each(tasks, |(index, places)| {
                let first = (first + index * (TASK / 8)) as u32;
                for (number, at) in (first..).zip(places) {
                    *at = place(p, number);
                }
            });
            for (at, value) in places[..own].iter().zip(&values[first..]) {
                write(&mut output[*at as usize], *value);
            }
            first += own;
        }
        Ok(())
    }
}
