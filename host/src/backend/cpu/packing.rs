//! Packing codes on the CPU: runs of units on threads.

use gradwire_kernels::arith::pack::unit_bytes;

use super::device::Cpu;
use super::places;
use super::tasks::for_each;
use crate::error::Error;
use crate::threads;
use crate::wire::Entropy;
use crate::words::{no_memory, reserved, zeros};

/// What the memory of packed codes is for, in an error.
const PACKED: &str = "packed codes";

/// Units of 256 codes that a thread takes at a time, at least.
const TASK_UNITS: usize = 256;

/// Units of packed codes that a thread takes at a time, and bytes of their codes of fixed width.
const fn task(entropy: Entropy, bits: u32) -> (usize, usize) {
    let parts = entropy.parts() as usize;
    let units = TASK_UNITS.div_ceil(parts);
    (units, units * parts * unit_bytes(bits))
}

impl Cpu {
    /// Packs codes of fixed width: the table of an entry per unit, and the words of the units, from runs of them.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for them.
    pub(crate) fn pack_units(
        &self,
        entropy: Entropy,
        bits: u32,
        codes: &[u8],
    ) -> Result<(Vec<u8>, Vec<Vec<u8>>), Error> {
        let count = codes.len().div_ceil(unit_bytes(bits) * entropy.parts() as usize);
        let mut table = zeros(count as u64 * entropy.entry_bytes(), PACKED)?;
        let (units, bytes) = task(entropy, bits);
        let entries = units * entropy.entry_bytes() as usize;
        let runs = threads::chunks(codes, bytes).zip(threads::chunks_mut(&mut table, entries));
        let of_run = |(codes, table): (&[u8], &mut [u8])| {
            let mut words = reserved(codes.len(), PACKED)?;
            let done = match entropy {
                Entropy::Base3 => self.simd().base3_pack(codes, table, &mut words),
                Entropy::None | Entropy::Elias => self.simd().elias_pack(bits, codes, table, &mut words),
                Entropy::Delta => self.simd().delta_pack(bits, codes, table, &mut words),
                Entropy::Sparse => places::pack_units(bits, codes, table, &mut words),
            };
            done.map_err(|_| no_memory::<u8>(2 * words.len() as u64, PACKED))?;
            Ok(words)
        };
        let words = runs.map(of_run).try_collect(PACKED)?;
        Ok((table, words))
    }

    /// The codes of fixed width of packed ones. The table was checked to name exactly the words there are.
    pub(crate) fn unpack_units(&self, entropy: Entropy, bits: u32, table: &[u8], packed: &[u8], codes: &mut [u8]) {
        let mut from = 0;
        let (units, bytes) = task(entropy, bits);
        let runs = table.chunks(units * entropy.entry_bytes() as usize).map(|entries| {
            let run = (entries, &packed[from..]);
            from += 4 * match entropy {
                Entropy::Sparse => places::words_of(entries),
                _ => entries.iter().map(|entry| usize::from(*entry) + 1).sum::<usize>(),
            };
            run
        });
        let tasks = runs.zip(codes.chunks_mut(bytes)).collect();
        for_each(tasks, |((table, packed), codes)| match entropy {
            Entropy::Base3 => self.simd().base3_unpack(table, packed, codes),
            Entropy::None | Entropy::Elias => self.simd().elias_unpack(bits, table, packed, codes),
            Entropy::Delta => self.simd().delta_unpack(bits, table, packed, codes),
            Entropy::Sparse => places::unpack_units(bits, table, packed, codes),
        });
    }
}
