//! A vote.

use super::super::device::Cpu;
use super::super::run::CpuWork;
use super::super::tasks::{TASK, for_each};
use crate::embed::{HostMemory, Votes};
use crate::error::Error;
use crate::plan::Role;
use crate::vote::UNIT;

impl CpuWork for Votes {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let output = memory.write::<f32>(Role::Output)?;
        // Without limits there is one pass, which takes the codes of each payload whole.
        let each = self.code_bytes();
        let ranges = (0..u64::from(self.payloads)).map(|payload| payload * each..(payload + 1) * each);
        let codes = memory.read_ranges(Role::Input, ranges)?;
        let tasks: Vec<_> = output.chunks_mut(TASK).enumerate().collect();
        for_each(tasks, |(index, output)| cpu.simd().vote(index * (TASK / UNIT as usize), &codes, output));
        Ok(())
    }
}
