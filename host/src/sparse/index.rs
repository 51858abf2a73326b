//! Which entries a sparse payload holds: four ways to write a rising sequence, and the rule that chooses.

use crate::threads;
use crate::wire::{IndexFormat, PayloadError, Split};
use crate::words::reserved;

/// Words that are written together, and 32 times as many indices.
const TOGETHER: usize = 1 << 12;

/// Packs the `width` low bits of each index, less than 32 of them, one after another from the lowest bit on.
fn pack(words: &mut [[u8; 4]], indices: &[u32], width: u32) {
    let (mut pending, mut filled) = (0u64, 0);
    let mut words = words.iter_mut();
    let mask = (1u32 << width) - 1;
    for index in indices {
        pending |= u64::from(index & mask) << filled;
        filled += width;
        if filled >= 32 {
            if let Some(word) = words.next() {
                *word = (pending as u32).to_le_bytes();
            }
            pending >>= 32;
            filled -= 32;
        }
    }
    if let Some(word) = words.next() {
        *word = (pending as u32).to_le_bytes();
    }
}

/// Sets the bits of `count` indices, which rise, in words of zeros: that of the index at place k is `bit(k)`.
fn set(words: &mut [[u8; 4]], count: usize, bit: impl Fn(usize) -> u64 + Sync) {
    let of_part = |(part, words): (usize, &mut [[u8; 4]])| {
        let first = 32 * (part * TOGETHER) as u64;
        // The first index from there on.
        let (mut k, mut end) = (0, count);
        while k < end {
            let middle = k.midpoint(end);
            if bit(middle) < first { k = middle + 1 } else { end = middle }
        }
        // The bits rise. A word is written with each of them, so that no branch goes by where the next word begins.
        let (mut at, mut word) = (0, 0u32);
        while k < count {
            let own = bit(k) - first;
            let next = (own / 32) as usize;
            let Some(to) = words.get_mut(next) else { break };
            word = if next == at { word } else { 0 } | 1 << (own % 32);
            *to = word.to_le_bytes();
            (at, k) = (next, k + 1);
        }
    };
    if words.len() <= TOGETHER {
        return of_part((0, words));
    }
    threads::chunks_mut(words, TOGETHER).enumerate().for_each(of_part);
}

/// Writes indices that rise, each below `n`, over the zeros of as many bytes as the format has.
pub(crate) fn write(format: IndexFormat, n: u64, indices: &[u32], bytes: &mut [u8]) {
    let (words, _) = bytes.as_chunks_mut::<4>();
    match format {
        IndexFormat::All => {}
        IndexFormat::List => words.iter_mut().zip(indices).for_each(|(word, index)| *word = index.to_le_bytes()),
        IndexFormat::Bitmap => set(words, indices.len(), |k| indices[k].into()),
        IndexFormat::EliasFano => {
            let split = Split::new(n, indices.len() as u64);
            let (lows, highs) = words.split_at_mut(split.low_words as usize);
            let mut high = || set(highs, indices.len(), |k| k as u64 + u64::from(indices[k] >> split.low));
            if indices.len() <= TOGETHER || split.low == 0 {
                pack(lows, indices, split.low);
                return high();
            }
            // Indices 32 at a time fill whole words.
            let parts =
                threads::chunks_mut(lows, TOGETHER * split.low as usize).zip(threads::chunks(indices, 32 * TOGETHER));
            threads::join(|| parts.for_each(|(words, indices)| pack(words, indices, split.low)), high);
        }
    }
}

/// Reads what [`write`] wrote, and checks that it is `count` indices below `n` that rise.
pub(crate) fn read(format: IndexFormat, n: u64, count: u64, bytes: &[u8]) -> Result<Vec<u32>, PayloadError> {
    let word = |at: usize| u32::from_le_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]]);
    let words = bytes.len() / 4;
    let memory =
        || reserved(count as usize, "indices").map_err(|_| PayloadError::Memory { bytes: count.saturating_mul(4) });
    let indices: Vec<u32> = match format {
        IndexFormat::All => {
            let mut indices = memory()?;
            indices.extend(0..n as u32);
            indices
        }
        IndexFormat::List => {
            let mut indices = memory()?;
            indices.extend((0..words).map(word));
            indices
        }
        IndexFormat::Bitmap => {
            let found: u64 = (0..words).map(|at| u64::from(word(at).count_ones())).sum();
            expect(found, count)?;
            let mut indices = memory()?;
            ones((0..words).map(word), |position| indices.push(position));
            indices
        }
        IndexFormat::EliasFano => {
            let split = Split::new(n, count);
            let first = split.low_words as usize;
            // All other bits are accounted for: a one among the high bits is an index, and an index below `n` has its
            // bit there.
            let used = (count * u64::from(split.low) % 32) as u32;
            if used > 0 && word(first - 1) >> used != 0 {
                return Err(PayloadError::Index {
                    at: count,
                    what: "does not exist, and bits behind the last one are set",
                });
            }
            let found: u64 = (first..words).map(|at| u64::from(word(at).count_ones())).sum();
            expect(found, count)?;
            let mask = (1u64 << split.low) - 1;
            let lows = |k: u64| {
                let bit = k * u64::from(split.low);
                let at = (bit / 32) as usize;
                let next = if at + 1 < first { word(at + 1) } else { 0 };
                let pair = if split.low == 0 { 0 } else { u64::from(word(at)) | u64::from(next) << 32 };
                ((pair >> (bit % 32)) & mask) as u32
            };
            let mut indices = memory()?;
            ones((first..words).map(word), |high| {
                let k = indices.len() as u32;
                // What does not fit 32 bits is out of range, and stays so.
                let index = u64::from(high - k) << split.low | u64::from(lows(k.into()));
                indices.push(u32::try_from(index).unwrap_or(u32::MAX));
            });
            indices
        }
    };
    for (at, index) in indices.iter().enumerate() {
        if u64::from(*index) >= n {
            return Err(PayloadError::Index { at: at as u64, what: "is not below the number of elements" });
        }
        if at > 0 && indices[at - 1] >= *index {
            return Err(PayloadError::Index { at: at as u64, what: "is not above the one before it" });
        }
    }
    Ok(indices)
}

fn expect(found: u64, count: u64) -> Result<(), PayloadError> {
    if found == count {
        return Ok(());
    }
    Err(PayloadError::Index { at: found.min(count), what: "is where the bits and the header's count disagree" })
}

/// Hands out the positions of the bits that are set, which rise.
fn ones(words: impl Iterator<Item = u32>, mut each: impl FnMut(u32)) {
    for (at, mut word) in words.enumerate() {
        while word != 0 {
            each(32 * at as u32 + word.trailing_zeros());
            word &= word - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: IndexFormat, n: u64, indices: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; format.bytes(n, indices.len() as u64) as usize];
        write(format, n, indices, &mut bytes);
        bytes
    }

    fn round_trip(n: u64, indices: &[u32]) {
        let count = indices.len() as u64;
        for format in [IndexFormat::List, IndexFormat::EliasFano, IndexFormat::Bitmap] {
            let bytes = written(format, n, indices);
            assert_eq!(read(format, n, count, &bytes).as_deref(), Ok(indices), "{format:?} {n}");
        }
    }

    #[test]
    fn every_format_gives_the_indices_back() {
        round_trip(1, &[0]);
        round_trip(5, &[]);
        round_trip(1000, &[0, 1, 2, 997, 998, 999]);
        round_trip(1 << 31, &[0, 77, 1 << 30, (1 << 31) - 1]);
        for step in [1, 2, 3, 7, 100, 5000] {
            let indices: Vec<u32> = (0..20_000).step_by(step).collect();
            round_trip(20_000, &indices);
        }
        // More than are written together, at even places and at others, with a gap of several parts.
        let n = 1u32 << 23;
        for most in [2, 9, 50] {
            let mut places: Vec<u32> = (0..n / most).map(|i| i * most + i.wrapping_mul(0x9e37_79b1) % most).collect();
            round_trip(n.into(), &places);
            places.retain(|place| !(1 << 21..7 << 20).contains(place));
            round_trip(n.into(), &places);
        }
    }

    #[test]
    fn the_smallest_is_chosen() {
        assert_eq!(IndexFormat::choose(0, 0), IndexFormat::All);
        assert_eq!(IndexFormat::choose(9, 9), IndexFormat::All);
        assert_eq!(IndexFormat::choose(1 << 20, 0), IndexFormat::List);
        assert_eq!(IndexFormat::choose(1 << 20, 1), IndexFormat::List);
        assert_eq!(IndexFormat::choose(1 << 20, 10_486), IndexFormat::EliasFano);
        assert_eq!(IndexFormat::choose(1 << 20, 1 << 19), IndexFormat::Bitmap);
        // The entropy of one in a hundred is 8.08 bits an index.
        let bits = IndexFormat::EliasFano.bytes(1 << 20, 10_486) as f64 * 8.0 / 10_486.0;
        assert!(bits < 8.6, "{bits}");
    }

    #[test]
    fn sizes_beyond_64_bits_saturate() {
        let large = [0, 1, 2, 31, 1 << 31, 1 << 62, u64::MAX - 1, u64::MAX];
        for (n, count) in large.into_iter().flat_map(|n| large.map(|count| (n, count))) {
            for format in [IndexFormat::All, IndexFormat::List, IndexFormat::EliasFano, IndexFormat::Bitmap] {
                let bytes = format.bytes(n, count);
                let exact: u128 = match format {
                    IndexFormat::All => 0,
                    IndexFormat::List => 4 * u128::from(count),
                    IndexFormat::Bitmap => 4 * u128::from(n.div_ceil(32)),
                    IndexFormat::EliasFano if count == 0 => 0,
                    IndexFormat::EliasFano => {
                        let low = (n / count).max(1).ilog2();
                        let high = u128::from(count) + u128::from(n.saturating_sub(1) >> low);
                        4 * ((u128::from(count) * u128::from(low)).div_ceil(32) + high.div_ceil(32))
                    }
                };
                // Elias and Fano's two parts saturate each for itself.
                assert!(u128::from(bytes) == exact || exact >= 1 << 60, "{format:?} {n} {count}: {bytes}, not {exact}");
                assert!(u128::from(bytes) <= exact, "{format:?} {n} {count}");
            }
            let _ = IndexFormat::choose(n, count);
        }
        assert_eq!(IndexFormat::List.bytes(u64::MAX, u64::MAX - 1), u64::MAX);
    }

    #[test]
    fn what_no_writer_writes_is_refused() {
        let list = |indices: &[u32]| indices.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>();
        let refused = |bytes: &[u8], count| read(IndexFormat::List, 10, count, bytes).expect_err("refused");
        assert!(matches!(refused(&list(&[3, 3]), 2), PayloadError::Index { at: 1, .. }), "repeated");
        assert!(matches!(refused(&list(&[3, 2]), 2), PayloadError::Index { at: 1, .. }), "unsorted");
        assert!(matches!(refused(&list(&[3, 10]), 2), PayloadError::Index { at: 1, .. }), "out of range");
        let one_too_many = 0b111u32.to_le_bytes();
        assert!(matches!(read(IndexFormat::Bitmap, 10, 2, &one_too_many), Err(PayloadError::Index { .. })));
        let beyond = (1u32 << 20 | 1).to_le_bytes();
        assert!(matches!(read(IndexFormat::Bitmap, 10, 2, &beyond), Err(PayloadError::Index { at: 1, .. })));
    }

    #[test]
    fn no_bits_of_elias_and_fano_panic() {
        // A valid sequence with a few bits changed: read as another valid one, or refused.
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut accepted = 0;
        for _ in 0..20_000 {
            let n = 2 + random(300);
            let indices: Vec<u32> = (0..n as u32).filter(|_| random(6) == 0).collect();
            let count = indices.len() as u64;
            let mut bytes = written(IndexFormat::EliasFano, n, &indices);
            for _ in 0..random(4) {
                let bits = 8 * bytes.len() as u64;
                if bits > 0 {
                    let bit = random(bits);
                    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
                }
            }
            if let Ok(read) = read(IndexFormat::EliasFano, n, count, &bytes) {
                assert_eq!(read.len() as u64, count);
                assert_eq!(written(IndexFormat::EliasFano, n, &read), bytes, "there is one way to write a sequence");
                accepted += 1;
            }
        }
        assert!((6000..20_000).contains(&accepted), "{accepted} accepted");
    }
}
