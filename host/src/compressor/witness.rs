//! What a rank took of a step, in 32 bits: the next step compares them.

use super::frame;
use crate::collective::{Collective, CollectiveError};
use crate::threads;

/// A group whose messages are noted, as far as all ranks get the same of them.
///
/// Of payloads the checksums are noted, which reading them has compared with their bytes; of sums, two numbers that
/// depend on every value and its place.
pub(crate) struct Witness<'g> {
    group: &'g mut dyn Collective,
    /// Nothing while nobody will ask.
    taken: Option<crc32fast::Hasher>,
    /// Whether the last sums that were noted are all finite.
    finite: bool,
}

impl<'g> Witness<'g> {
    pub(crate) fn new(group: &'g mut dyn Collective) -> Self {
        Self { group, taken: None, finite: false }
    }

    /// Begins to note, if the heads of the next step will compare digests.
    pub(crate) fn begin(&mut self, is_asked: bool) {
        self.taken = is_asked.then(crc32fast::Hasher::new);
    }

    /// Whether all values of the last sums are finite; false if they were not noted.
    pub(crate) fn sums_are_finite(&self) -> bool {
        self.finite
    }

    /// Notes a message that all ranks get, one from another.
    pub(crate) fn note(&mut self, message: &[u8]) {
        if let Some(taken) = &mut self.taken {
            frame::note(message, taken);
        }
    }

    /// The digest of the noted messages and sums; 0 if it is not known.
    pub(crate) fn digest(self) -> u32 {
        self.taken.map_or(0, |taken| taken.finalize().max(1))
    }
}

impl Collective for Witness<'_> {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn ranks(&self) -> u32 {
        self.group.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_gather(mine, all)?;
        all.iter().for_each(|message| self.note(message));
        Ok(())
    }

    /// Each rank gets other parts.
    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_to_all(to, from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.group.all_reduce_sum(values)?;
        self.finite = false;
        if let Some(taken) = &mut self.taken {
            let folded = Folded::of(values);
            folded.sums.as_flattened().iter().for_each(|number| taken.update(&number.to_le_bytes()));
            self.finite = folded.largest < f32::INFINITY.to_bits();
        }
        Ok(())
    }

    /// A pair's own. What a tree ends with goes this way, and the tree notes it.
    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.broadcast(root, bytes)
    }
}

/// Two rows of numbers that depend on every value and its place: values are rows of eight words of 64 bits, the last
/// one filled up with zeros. Each row is added to the first of the two, and that then to the second, modulo 2^64.
///
/// At the speed of the memory, where a CRC-32 of all bytes took a twentieth of a step of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Folded {
    rows: u64,
    sums: [[u64; 8]; 2],
    /// The bits of the largest magnitude, NaN above infinity: another pass would take as long as this one.
    largest: u32,
}

impl Folded {
    /// Values of a row.
    const ROW: usize = 16;
    /// Values that a thread takes at a time: whole rows.
    const PIECE: usize = 1 << 16;
    const NOTHING: Self = Self { rows: 0, sums: [[0; 8]; 2], largest: 0 };

    fn of(values: &[f32]) -> Self {
        threads::chunks(values, Self::PIECE).map(Self::piece).reduce(|| Self::NOTHING, Self::then)
    }

    fn piece(values: &[f32]) -> Self {
        let ([mut first, mut second], mut largest) = ([[0u64; 8]; 2], [0; Self::ROW]);
        let mut add = |row: &[f32; Self::ROW]| {
            for k in 0..Self::ROW {
                // Signed, which vectors of every width compare.
                largest[k] = ((row[k].to_bits() & 0x7fff_ffff) as i32).max(largest[k]);
            }
            for k in 0..8 {
                let word = u64::from(row[2 * k].to_bits()) | u64::from(row[2 * k + 1].to_bits()) << 32;
                first[k] = first[k].wrapping_add(word);
                second[k] = second[k].wrapping_add(first[k]);
            }
        };
        let (rows, rest) = values.as_chunks();
        rows.iter().for_each(&mut add);
        if !rest.is_empty() {
            let mut last = [0.0; Self::ROW];
            last[..rest.len()].copy_from_slice(rest);
            add(&last);
        }
        let largest = largest.into_iter().fold(0, i32::max) as u32;
        Self { rows: values.len().div_ceil(Self::ROW) as u64, sums: [first, second], largest }
    }

    /// These rows, followed by others.
    fn then(self, other: Self) -> Self {
        let Self { rows, sums: [mut first, mut second], largest } = self;
        for k in 0..8 {
            let carried = first[k].wrapping_mul(other.rows);
            second[k] = second[k].wrapping_add(carried).wrapping_add(other.sums[1][k]);
            first[k] = first[k].wrapping_add(other.sums[0][k]);
        }
        Self { rows: rows + other.rows, sums: [first, second], largest: largest.max(other.largest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_of_sums_depends_on_each_value_and_its_place() {
        for n in [0, 1, 17, Folded::PIECE - 1, Folded::PIECE, 2 * Folded::PIECE + 3] {
            let values: Vec<f32> = (0..n as u32).map(|k| f32::from_bits(k.wrapping_mul(0x9e37_79b9))).collect();
            let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            bytes.resize(n.div_ceil(16) * 64, 0);
            let mut sums = [[0u64; 8]; 2];
            for (at, word) in bytes.chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                sums[0][at % 8] = sums[0][at % 8].wrapping_add(word);
                sums[1][at % 8] = sums[1][at % 8].wrapping_add(sums[0][at % 8]);
            }
            let folded = Folded::of(&values);
            assert_eq!(folded.sums, sums, "{n}");
            let largest = values.iter().map(|value| value.to_bits() & 0x7fff_ffff).max();
            assert_eq!(folded.largest, largest.unwrap_or(0), "{n}");
            for (at, to) in [(0, 1), (n / 2, n / 2 + 2), (0, 16), (n.saturating_sub(2), n.saturating_sub(1))] {
                if to >= n || at == to {
                    continue;
                }
                let mut other = values.clone();
                other.swap(at, to);
                assert_ne!(Folded::of(&other), folded, "{n}, {at}, {to}");
                other[at] = f32::from_bits(values[at].to_bits() ^ 1 << 31);
                assert_ne!(Folded::of(&other), folded, "{n}, {at}, {to}");
            }
        }
    }
}
