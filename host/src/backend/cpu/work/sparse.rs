//! Entries of a gradient.

use std::iter::once;
use std::ops::Range;

use gradwire_kernels::arith::float::{accumulate, canonical};
use gradwire_kernels::params::EncodeParams;

use super::super::device::Cpu;
use super::super::run::CpuWork;
use crate::embed::{Apart, CountAbove, HostMemory, Measures, Scatter, Scatters, Sift, TakeOff, Update};
use crate::error::Error;
use crate::plan::Role;
use crate::seed::Seed;
use crate::sparse::lazy::take_off;
use crate::sparse::{Entries, Source};

impl CpuWork for Sift<'_> {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let gradient = memory.gradient(self.select.dtype())?;
        let Apart { from: residual, to: sums } = memory.sums(Role::Residual)?;
        let Entries { indices, bits } = cpu.largest_of(Source { gradient, residual }, sums, &self.plan.select)?;
        let found = bits.len() as u64;
        if let Some(expected) = self.plan.kept().filter(|expected| *expected != found) {
            return Err(Error::Changed { expected, found });
        }
        if let (Some(to), Some(values)) = (memory.grown(Role::Indices), memory.grown(Role::Values)) {
            (*to, *values) = (indices, bits);
        }
        Ok(())
    }
}

impl CpuWork for CountAbove<'_> {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let gradient = memory.gradient(self.select.dtype())?;
        let Apart { from: residual, to: sums } = memory.sums(Role::Residual)?;
        let at = self.select.total_at();
        let count = memory.lists_mut::<u32>(Role::Workspace, once(at..at + 4))?;
        let found = cpu.largest_of(Source { gradient, residual }, sums, &self.plan.select)?.bits.len();
        count.into_iter().flatten().for_each(|count| *count = found as u32);
        Ok(())
    }
}

impl CpuWork for Measures<'_> {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let Some(first) = self.0.first() else { return Ok(()) };
        let gradient = memory.gradient(first.header().dtype)?;
        let residual = if first.feedback() { Some(memory.read(Role::Residual)?) } else { None };
        let statistics = memory.lists_mut(Role::Workspace, self.statistics())?;
        for (plan, statistics) in self.0.iter().zip(statistics) {
            let params = EncodeParams { n: gradient.len() as u32, ..plan.params(Seed::new(0)) };
            cpu.statistics(plan.header().codec, &params, gradient, residual, statistics);
        }
        Ok(())
    }
}

impl CpuWork for Scatter {
    fn on_cpu(&self, _: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let (indices, values) = (memory.read(Role::Indices)?, memory.read(Role::Values)?);
        let output = memory.update(Role::Output)?.map_or(&mut [][..], Update::begun);
        match self.weight {
            Some(weight) => add(indices, values, weight, output),
            None => {
                output.fill(0.0);
                for (index, value) in indices.iter().zip(values) {
                    // As a device has it, an index that is not an element's is not looked at.
                    if let Some(place) = output.get_mut(*index as usize) {
                        *place = canonical(*value);
                    }
                }
            }
        }
        Ok(())
    }
}

impl CpuWork for Scatters {
    fn on_cpu(&self, _: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let ranges: Vec<Range<u64>> = self.ranges().collect();
        let indices = memory.lists(Role::Indices, ranges.iter().cloned())?;
        let values = memory.lists(Role::Values, ranges)?;
        let output = memory.write(Role::Output)?;
        output.fill(0.0);
        indices.iter().zip(values).for_each(|(indices, values)| add(indices, values, self.weight, output));
        Ok(())
    }
}

impl CpuWork for TakeOff<'_> {
    fn on_cpu(&self, _: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let sums = memory.update(Role::Residual)?.map_or(&mut [][..], Update::begun);
        take_off(self.sent, sums);
        Ok(())
    }
}

/// Adds weighted entries to what `output` holds.
fn add(indices: &[u32], values: &[f32], weight: f32, output: &mut [f32]) {
    for (index, value) in indices.iter().zip(values) {
        if let Some(place) = output.get_mut(*index as usize) {
            *place = accumulate(*place, weight, *value);
        }
    }
}
