//! A rotation, and a cosine transform.

use gradwire_kernels::arith::rotation::ROW_LOG2;

use super::super::device::Cpu;
use super::super::run::CpuWork;
use super::super::tasks::{TASK, for_each};
use crate::embed::{Cosine, HostMemory, Turn};
use crate::error::Error;
use crate::plan::Role;

impl CpuWork for Turn {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let params = self.rotation.params(self.elements, self.back, self.seed)?;
        let (input, output) = (memory.read(Role::Input)?, memory.write(Role::Output)?);
        in_tasks(input, output, |first, input, output| cpu.simd().rotate(&params, first >> ROW_LOG2, input, output));
        Ok(())
    }
}

impl CpuWork for Cosine {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let params = self.dct.params(self.elements, self.back)?;
        let (input, output) = (memory.read(Role::Input)?, memory.write(Role::Output)?);
        in_tasks(input, output, |first, input, output| cpu.simd().dct(&params, first, input, output));
        Ok(())
    }
}

/// Cuts both alike, and hands each part to a thread, with the element that it begins at.
fn in_tasks(input: &[f32], output: &mut [f32], work: impl Fn(usize, &[f32], &mut [f32]) + Send + Sync) {
    let tasks: Vec<_> = output.chunks_mut(TASK).zip(input.chunks(TASK)).enumerate().collect();
    for_each(tasks, |(index, (output, input))| work(index * TASK, input, output));
}
