//! Elias codes on the CPU: a unit after the other, bit after bit.

use gradwire_kernels::arith::elias::{exponent, level_of, read, rest_bits, tail_of, unary_bits, zeros};
use gradwire_kernels::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use rayon::prelude::*;

use super::Cpu;
use super::rows::{Unit, pack, unpack};

/// Units that a thread takes at a time.
const TASK_UNITS: usize = 256;

/// The place in a unit of each code, in the order in which they are sent: lane after lane.
fn order() -> impl Iterator<Item = usize> {
    (0..LANES).flat_map(|lane| (0..SLOTS).map(move |slot| slot * LANES + lane))
}

/// Words of a unit's Elias codes.
fn measure(bits: u32, codes: &Unit) -> u32 {
    let of_code = |code: &u32| {
        let q = exponent(level_of(*code, bits));
        unary_bits(q) + rest_bits(q)
    };
    codes.iter().map(of_code).sum::<u32>().div_ceil(32)
}

/// Adds bits to words that were zero from there on.
fn put(words: &mut [u32], at: &mut u32, value: u32, bits: u32) {
    // The last code's rest may be none, and the words be full.
    if bits == 0 {
        return;
    }
    let (index, shift) = ((*at / 32) as usize, *at % 32);
    *at += bits;
    words[index] |= value << shift;
    if shift + bits > 32 {
        words[index + 1] |= value >> (32 - shift);
    }
}

/// Writes a unit's Elias codes over zeros.
fn write(bits: u32, codes: &Unit, words: &mut [u32]) {
    let mut at = 0;
    for place in order() {
        let q = exponent(level_of(codes[place], bits));
        put(words, &mut at, 1 << q, unary_bits(q));
    }
    for place in order() {
        let q = exponent(level_of(codes[place], bits));
        put(words, &mut at, tail_of(codes[place], bits, q), rest_bits(q));
    }
}

/// Reads a unit's Elias codes, whatever the words hold.
fn read_unit(bits: u32, words: &[u32], codes: &mut Unit) {
    let word = |index: u32| words.get(index as usize).copied().unwrap_or(u32::MAX);
    let mut exponents = [0; UNIT];
    let mut at = 0;
    for place in order() {
        exponents[place] = zeros(word, at);
        at += unary_bits(exponents[place]);
    }
    for place in order() {
        codes[place] = read(word, at, exponents[place], bits);
        at += rest_bits(exponents[place]);
    }
}

/// Where each unit's words begin, and behind the last one where they end.
fn offsets(table: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::with_capacity(table.len() + 1);
    let mut sum = 0;
    offsets.push(sum);
    for byte in table {
        sum += usize::from(*byte) + 1;
        offsets.push(sum);
    }
    offsets
}

impl Cpu {
    /// Packs codes of fixed width: the table of a byte per unit, and the words of the units.
    pub(crate) fn elias_pack(bits: u32, codes: &[u8]) -> (Vec<u8>, Vec<u32>) {
        let units = codes.par_chunks_exact(unit_bytes(bits));
        let table: Vec<u8> = units
            .clone()
            .map(|unit| {
                let mut codes = [0; UNIT];
                unpack(bits, unit, &mut codes);
                // 8 words at least, since a code takes a bit, and 256 at most, since the longest takes 32.
                (measure(bits, &codes) - 1) as u8
            })
            .collect();
        let offsets = offsets(&table);
        let mut words = vec![0; offsets[table.len()]];
        let mut tasks = Vec::with_capacity(table.len().div_ceil(TASK_UNITS));
        let mut rest = &mut words[..];
        for first in (0..table.len()).step_by(TASK_UNITS) {
            let end = table.len().min(first + TASK_UNITS);
            let (own, others) = rest.split_at_mut(offsets[end] - offsets[first]);
            rest = others;
            tasks.push((first, end, own));
        }
        tasks.into_par_iter().for_each(|(first, end, own)| {
            for unit in first..end {
                let mut values = [0; UNIT];
                unpack(bits, &codes[unit * unit_bytes(bits)..][..unit_bytes(bits)], &mut values);
                write(bits, &values, &mut own[offsets[unit] - offsets[first]..offsets[unit + 1] - offsets[first]]);
            }
        });
        (table, words)
    }

    /// The codes of fixed width of packed ones. The table was checked to name exactly the words there are.
    pub(crate) fn elias_unpack(bits: u32, table: &[u8], packed: &[u8], codes: &mut [u8]) {
        let offsets = offsets(table);
        let one = |(unit, out): (usize, &mut [u8])| {
            let bytes = &packed[4 * offsets[unit]..4 * offsets[unit + 1]];
            let mut words = [0; UNIT];
            let words = &mut words[..bytes.len() / 4];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            let mut values = [0; UNIT];
            read_unit(bits, words, &mut values);
            pack(bits, &values, out);
        };
        // Waking a thread costs more than a small tensor does.
        if table.len() <= TASK_UNITS {
            codes.chunks_exact_mut(unit_bytes(bits)).enumerate().for_each(one);
        } else {
            codes.par_chunks_exact_mut(unit_bytes(bits)).enumerate().for_each(one);
        }
    }
}
