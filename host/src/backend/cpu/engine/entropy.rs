//! Codes that are packed, and unpacked.

use crate::backend::cpu::Cpu;
use crate::entropy::{PAYLOAD, Packed, Packs};
use crate::error::Error;
use crate::wire::{Entropy, Header};
use crate::words::zeros;

impl Packs for Cpu {
    fn pack_codes(&self, header: &Header, entropy: Entropy, codes: &[u8]) -> Result<Packed, Error> {
        let (table, runs) = self.pack_units(entropy, header.bits(), codes)?;
        let words_at = entropy.table_bytes(header.elements());
        let all = runs.iter().map(|run| run.len() as u64).sum::<u64>();
        let mut bytes = zeros(words_at + all, PAYLOAD)?;
        bytes[..table.len()].copy_from_slice(&table);
        let mut rest = &mut bytes[words_at as usize..];
        for run in &runs {
            let (own, behind) = rest.split_at_mut(run.len());
            own.copy_from_slice(run);
            rest = behind;
        }
        // At most 2^31: 256 words for each of 2^23 units.
        Ok(Packed { bytes, words: (all / 4) as u32 })
    }

    fn unpack_codes(&self, header: &Header, packed: &[u8], codes: &mut [u8]) -> Result<(), Error> {
        let (n, entropy) = (header.elements(), header.entropy());
        let (table, words) = packed.split_at(entropy.table_bytes(n) as usize);
        let table = &table[..(entropy.units(n) * entropy.entry_bytes()) as usize];
        self.unpack_units(entropy, header.bits(), table, words, codes);
        Ok(())
    }
}
