//! Codes that are packed, and unpacked.

use super::super::device::Cpu;
use super::super::run::CpuWork;
use crate::embed::{HostMemory, Pack, Unpack};
use crate::entropy::payload::PAYLOAD;
use crate::error::Error;
use crate::plan::Role;
use crate::words::zeros;

impl CpuWork for Pack<'_> {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let (header, entropy) = (self.header, self.entropy);
        let codes = memory.read(Role::Codes)?;
        let (table, runs) = cpu.pack_units(entropy, header.bits(), codes)?;
        let words_at = entropy.table_bytes(header.elements());
        let all = runs.iter().map(|run| run.len() as u64).sum::<u64>();
        let mut words: Vec<u32> = zeros((words_at + all) / 4, PAYLOAD)?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        bytes[..table.len()].copy_from_slice(&table);
        let mut rest = &mut bytes[words_at as usize..];
        for run in &runs {
            let (own, after) = rest.split_at_mut(run.len());
            own.copy_from_slice(run);
            rest = after;
        }
        memory.grown(Role::Values).into_iter().for_each(|packed| *packed = std::mem::take(&mut words));
        Ok(())
    }
}

impl CpuWork for Unpack<'_> {
    fn on_cpu(&self, cpu: &Cpu, mut memory: HostMemory<'_>) -> Result<(), Error> {
        let (n, entropy, bits) = (self.header.elements(), self.header.entropy(), self.header.bits());
        let packed = memory.read::<u8>(Role::Values)?;
        let codes = memory.write(Role::Codes)?;
        let (table, words) = packed.split_at(entropy.table_bytes(n) as usize);
        let table = &table[..(entropy.units(n) * entropy.entry_bytes()) as usize];
        cpu.unpack_units(entropy, bits, table, words, codes);
        Ok(())
    }
}
