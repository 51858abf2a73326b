//! Entries that a seed draws.

use gradwire_kernels::arith::float::{accumulate, canonical};
use gradwire_kernels::arith::memory::rest;
use gradwire_kernels::arith::permutation::place;
use gradwire_kernels::params::RandomParams;

use super::super::device::Cpu;
use super::super::run::CpuWork;
use super::super::tasks::{TASK, for_each};
use crate::embed::{DecodeRandom, EncodeRandom, HostMemory};
use crate::error::Error;
use crate::plan::Role;
use crate::words::zeros;

/// Entries whose places are found before they are written.
const BATCH: usize = 1 << 16;

impl CpuWork for EncodeRandom {
    fn on_cpu(&self, _: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let params = self.codec.encode_params(self.elements, self.seed)?;
        let gradient = memory.read::<f32>(Role::Input)?;
        let values = memory.write(Role::Output)?;
        let Some(residual) = memory.update(Role::Residual)? else {
            gather(&params, gradient, values);
            return Ok(());
        };
        self.codec.check_feedback(self.elements, params.entries.into())?;
        let mut places = places(&params)?;
        let (sums, before) = (residual.to, residual.from);
        let tasks: Vec<_> = sums.chunks_mut(TASK).zip(gradient.chunks(TASK)).enumerate().collect();
        for_each(tasks, |(index, (sums, gradient))| match before {
            Some(before) => {
                for ((sum, before), gradient) in sums.iter_mut().zip(&before[index * TASK..]).zip(gradient) {
                    *sum = accumulate(*before, 1.0, *gradient);
                }
            }
            None => {
                sums.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum = accumulate(*sum, 1.0, *gradient));
            }
        });
        gather(&params, sums, values);
        let factor = f32::from_bits(params.factor);
        scatter(&params, &mut places, values, sums, |place, sent| *place = rest(*place, sent, factor));
        Ok(())
    }
}

impl CpuWork for DecodeRandom {
    fn on_cpu(&self, _: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let params = self.codec.params(self.elements, self.seed)?;
        let values = memory.read(Role::Values)?;
        let mut places = places(&params)?;
        let Some(weight) = self.weight else {
            let output = memory.write(Role::Output)?;
            output.fill(0.0);
            scatter(&params, &mut places, values, output, |place, value| *place = canonical(value));
            return Ok(());
        };
        if let Some(output) = memory.update(Role::Output)? {
            let add = |place: &mut f32, value| *place = accumulate(*place, weight, value);
            scatter(&params, &mut places, values, output.begun(), add);
        }
        Ok(())
    }
}

/// Takes the entries of the input.
fn gather(p: &RandomParams, input: &[f32], output: &mut [f32]) {
    let factor = f32::from_bits(p.factor);
    let tasks: Vec<_> = output.chunks_mut(TASK / 8).enumerate().collect();
    for_each(tasks, |(index, output)| {
        let first = (index * (TASK / 8)) as u32;
        for (number, value) in (first..).zip(output) {
            *value = canonical(input[place(p, number) as usize] * factor);
        }
    });
}

/// Memory for the places of a batch.
///
/// # Errors
/// [`Error::Backend`] if there is none.
fn places(p: &RandomParams) -> Result<Vec<u32>, Error> {
    zeros(BATCH.min(p.entries as usize) as u64, "the places of entries")
}

/// Does something with the place of each entry and its value, batch by batch.
fn scatter(p: &RandomParams, places: &mut [u32], values: &[f32], output: &mut [f32], write: impl Fn(&mut f32, f32)) {
    for (batch, values) in values.chunks(BATCH).enumerate() {
        let places = &mut places[..values.len()];
        let tasks: Vec<_> = places.chunks_mut(TASK / 8).enumerate().collect();
        for_each(tasks, |(index, places)| {
            let first = (batch * BATCH + index * (TASK / 8)) as u32;
            for (number, at) in (first..).zip(places) {
                *at = place(p, number);
            }
        });
        for (at, value) in places.iter().zip(values) {
            write(&mut output[*at as usize], *value);
        }
    }
}
