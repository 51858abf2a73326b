//! Exact top-k in one read, nearly always.
//!
//! A sample of the gradient tells two keys between which the k-th largest is all but certain to lie. One read keeps
//! what is at or above the lower; what is at or above the higher is in, and among the few between the two the k-th is
//! found exactly. Where the sample was wrong the count says so, and three reads find the key digit by digit. The sample
//! decides how long it takes, and never what is kept.

use gradwire_kernels::arith::float::{bf16_to_f32, f16_to_f32};
use gradwire_kernels::arith::topk::key;
use rayon::prelude::*;

use super::Cpu;
use super::filter::{Entries, Filter, Sums};
use crate::codec::topk::Select;
use crate::gradient::Gradient;

/// Elements that a thread filters at a time.
const RUN: usize = 1 << 16;
/// Neighbours in the sample: a cache line of f32.
const LINE: usize = 16;
/// Lines in the sample.
const LINES: usize = 2048;
/// Standard deviations from the k-th largest to either key.
const SIGMAS: f64 = 5.0;
/// Gradients of up to this many elements are their own sample.
const SMALL: usize = 2 * LINE * LINES;

/// Where a run's entries begin to be too many.
struct Cut {
    /// Keys above are in.
    key: u32,
    /// How many with that very key are in, the first ones.
    ties: usize,
    /// Whether that is all of them.
    all: bool,
}

impl Cpu {
    /// The entries that are kept. With a residual, its sums with the gradient are written.
    pub(crate) fn largest_of(&self, input: Gradient<'_>, mut sums: Option<Sums<'_>>, select: &Select) -> Entries {
        let n = input.len();
        match *select {
            Select::Largest(k) if 0 < k && k < n as u64 => {
                let keys = sample(input, sums.as_ref().map(Sums::residual), k as usize);
                self.largest(input, sums, k as usize, keys)
            }
            Select::Largest(0) => self.above(input, sums, u32::MAX),
            Select::Largest(_) => self.above(input, sums, 0),
            Select::Above(threshold) => self.above(input, sums, key(threshold.to_bits())),
            Select::Segments(ref segments) => {
                // Cut up first, and then shared out: a large segment is shared out again.
                let mut parts = Vec::with_capacity(segments.len());
                let mut start = 0;
                for segment in segments.iter() {
                    let end = start + segment.elements as usize;
                    let mine = sums.take().map(|left| {
                        let (mine, others) = left.split_at(end - start);
                        sums = Some(others);
                        mine
                    });
                    parts.push((start, part(input, start, end), mine, segment.k));
                    start = end;
                }
                let of_part = |(start, input, sums, k)| {
                    let mut entries = self.largest_of(input, sums, &Select::Largest(k));
                    entries.indices.iter_mut().for_each(|i| *i += start as u32);
                    entries
                };
                join(parts.into_par_iter().map(of_part).collect())
            }
            Select::Blocks { elements, k } => {
                // With feedback the sums are made first: blocks may be larger than a thread's run.
                if sums.is_some() {
                    self.filter(input, sums.as_mut().map(Sums::reborrow), u32::MAX);
                }
                let source = sums.map_or(input, |sums| Gradient::F32(sums.into_sums()));
                let elements = elements.min(n as u64).max(1) as usize;
                let k = k.min(n as u64) as usize;
                // Whole blocks, about a run of them together: a block may be a single element.
                let span = elements * RUN.div_ceil(elements);
                let of_span = |start: usize| {
                    let (mut entries, mut keys) = (Entries::default(), Vec::new());
                    for first in (start..n.min(start.saturating_add(span))).step_by(elements) {
                        block_largest(source, first..n.min(first + elements), k, &mut keys, &mut entries);
                    }
                    entries
                };
                join((0..n.div_ceil(span)).into_par_iter().map(|i| of_span(i * span)).collect())
            }
        }
    }

    /// Whether an element of gradient + residual is not finite, and the first that is not.
    pub(crate) fn first_not_finite(input: Gradient<'_>, residual: Option<&[f32]>) -> Option<u64> {
        let runs = (0..input.len().div_ceil(RUN)).into_par_iter();
        let first = runs.find_map_first(|run| {
            let range = run * RUN..input.len().min((run + 1) * RUN);
            range.into_iter().find(|i| !sum(input, residual, *i).is_finite())
        });
        first.map(|i| i as u64)
    }

    fn above(&self, input: Gradient<'_>, sums: Option<Sums<'_>>, floor: u32) -> Entries {
        join(self.filter(input, sums, floor))
    }

    /// The `k` largest, 0 < k < n, with a guess between which two keys the last of them lies.
    pub(crate) fn largest(
        &self,
        input: Gradient<'_>,
        mut sums: Option<Sums<'_>>,
        k: usize,
        [lower, higher]: [u32; 2],
    ) -> Entries {
        // What is above the lower key. Of entries that have that very key there may be any number, most of all in a
        // gradient of zeros; as many as are still wanted are looked for afterwards.
        let runs = self.filter(input, sums.as_mut().map(Sums::reborrow), lower.saturating_add(1));
        let found: usize = runs.iter().map(|run| run.bits.len()).sum();
        if found >= k {
            let cut = cut(&runs, k, higher);
            return keep(runs, &cut);
        }
        let source = sums.map_or(input, |sums| Gradient::F32(sums.into_sums()));
        if let Some(ties) = first_of_key(source, lower, k - found) {
            return with_ties(join(runs), ties);
        }
        drop(runs);
        let cut = digits(source, k);
        let above = join(self.filter(source, None, cut.key + 1));
        // There are as many: they were counted.
        with_ties(above, first_of_key(source, cut.key, cut.ties).unwrap_or_default())
    }

    fn filter(&self, input: Gradient<'_>, sums: Option<Sums<'_>>, floor: u32) -> Vec<Entries> {
        // Room that the next run uses again: new room for each would cost more than the filter.
        let run = |scratch: &mut Entries, run: usize, sums: Option<Sums<'_>>| {
            let start = run * RUN;
            scratch.indices.clear();
            scratch.bits.clear();
            self.simd.filter(Filter { input, start, len: RUN.min(input.len() - start), sums, floor }, scratch);
            scratch.clone()
        };
        let scratch = Entries::default;
        match sums {
            None => {
                let runs = (0..input.len().div_ceil(RUN)).into_par_iter();
                runs.map_init(scratch, |scratch, r| run(scratch, r, None)).collect()
            }
            Some(Sums { residual, sums }) => {
                let of_run = |(r, sums): (usize, _)| {
                    let residual = residual.map(|all| &all[r * RUN..all.len().min((r + 1) * RUN)]);
                    (r, Sums { residual, sums })
                };
                let runs = sums.par_chunks_mut(RUN).enumerate().map(of_run);
                runs.map_init(scratch, |scratch, (r, sums)| run(scratch, r, Some(sums))).collect()
            }
        }
    }
}

/// The first entries of exactly this key; `None` where there are fewer than wanted.
fn first_of_key(source: Gradient<'_>, wanted: u32, count: usize) -> Option<Entries> {
    let mut entries = Entries::default();
    for i in 0..source.len() {
        let bits = at(source, i).to_bits();
        if key(bits) == wanted {
            entries.indices.push(i as u32);
            entries.bits.push(bits);
            if entries.bits.len() == count {
                return Some(entries);
            }
        }
    }
    None
}

/// Both, in the order of their indices, of which none is in both.
fn with_ties(above: Entries, ties: Entries) -> Entries {
    let count = above.bits.len() + ties.bits.len();
    let mut all = Entries { indices: Vec::with_capacity(count), bits: Vec::with_capacity(count) };
    let mut from = 0;
    for (index, bits) in ties.indices.iter().zip(&ties.bits) {
        let to = from + above.indices[from..].partition_point(|i| i < index);
        all.indices.extend_from_slice(&above.indices[from..to]);
        all.bits.extend_from_slice(&above.bits[from..to]);
        all.indices.push(*index);
        all.bits.push(*bits);
        from = to;
    }
    all.indices.extend_from_slice(&above.indices[from..]);
    all.bits.extend_from_slice(&above.bits[from..]);
    all
}

fn part(input: Gradient<'_>, start: usize, end: usize) -> Gradient<'_> {
    match input {
        Gradient::F32(x) => Gradient::F32(&x[start..end]),
        Gradient::F16(x) => Gradient::F16(&x[start..end]),
        Gradient::Bf16(x) => Gradient::Bf16(&x[start..end]),
    }
}

#[inline(always)]
fn at(input: Gradient<'_>, i: usize) -> f32 {
    match input {
        Gradient::F32(x) => x[i],
        Gradient::F16(x) => f16_to_f32(x[i].to_bits()),
        Gradient::Bf16(x) => bf16_to_f32(x[i].to_bits()),
    }
}

fn sum(input: Gradient<'_>, residual: Option<&[f32]>, i: usize) -> f32 {
    at(input, i) + residual.map_or(0.0, |r| r[i])
}

/// Two keys between which the k-th largest is likely to lie.
fn sample(input: Gradient<'_>, residual: Option<&[f32]>, k: usize) -> [u32; 2] {
    let n = input.len();
    let of = |i: usize| key(residual.map_or_else(|| at(input, i), |_| sum(input, residual, i)).to_bits());
    let mut keys: Vec<u32> = if n <= SMALL {
        (0..n).map(of).collect()
    } else {
        // A line from each of as many equal parts, at a place in it that varies from part to part.
        let part = n / LINES;
        let place = |line: usize| line * part + (line.wrapping_mul(0x9E37_79B1) >> 7) % (part - LINE);
        (0..LINES).flat_map(|line| (0..LINE).map(move |i| place(line) + i)).map(of).collect()
    };
    let m = keys.len();
    let rank = k as f64 / n as f64 * m as f64;
    // Neighbours are alike in real gradients, so the sample is worth less than its size; a miss costs time alone.
    let margin = if m == n { 0.0 } else { 1.0 + SIGMAS * (rank * (1.0 - k as f64 / n as f64)).sqrt() };
    let mut nth = |rank: f64| {
        let rank = (rank.max(1.0) as usize).min(m) - 1;
        *keys.select_nth_unstable_by(rank, |a, b| b.cmp(a)).1
    };
    let lower = nth((rank + margin).ceil());
    let higher = nth((rank - margin).floor());
    [lower, higher]
}

/// Where to cut what was found, at least `k`, so that `k` are left.
fn cut(runs: &[Entries], k: usize, higher: u32) -> Cut {
    let found: usize = runs.iter().map(|run| run.bits.len()).sum();
    let below = |limit: u32| -> Vec<u32> {
        let of_run = |run: &Entries| {
            let mut keys = vec![0; run.bits.len() + 1];
            let mut count = 0;
            for bits in &run.bits {
                keys[count] = key(*bits);
                count += usize::from(keys[count] < limit);
            }
            keys.truncate(count);
            keys.shrink_to_fit();
            keys
        };
        runs.par_iter().map(of_run).collect::<Vec<_>>().concat()
    };
    let mut open = below(higher);
    if found - open.len() >= k {
        open = below(u32::MAX);
    }
    let wanted = k - (found - open.len());
    let (above, last, _) = open.select_nth_unstable_by(wanted - 1, |a, b| b.cmp(a));
    let (last, above) = (*last, above.iter().filter(|key| **key > *last).count());
    let ties = open.iter().filter(|key| **key == last).count();
    Cut { key: last, ties: wanted - above, all: ties == wanted - above }
}

/// The entries that a cut leaves, in order.
fn keep(runs: Vec<Entries>, cut: &Cut) -> Entries {
    let ties_of = |run: &Entries| run.bits.iter().filter(|bits| key(**bits) == cut.key).count();
    let mut left = cut.ties;
    let mut quota = |ties: usize| {
        let quota = ties.min(left);
        left -= quota;
        quota
    };
    let quotas: Vec<usize> = if cut.all {
        vec![usize::MAX; runs.len()]
    } else {
        let ties: Vec<usize> = runs.par_iter().map(ties_of).collect();
        ties.into_iter().map(&mut quota).collect()
    };
    let of_run = |(run, mut quota): (Entries, usize)| {
        // In place, and without a branch an entry: whether one stays is as good as random.
        let Entries { mut indices, mut bits } = run;
        let mut count = 0;
        for from in 0..bits.len() {
            let (index, value) = (indices[from], bits[from]);
            (indices[count], bits[count]) = (index, value);
            let tie = key(value) == cut.key;
            count += usize::from(key(value) > cut.key || (tie && quota > 0));
            quota -= usize::from(tie && quota > 0);
        }
        indices.truncate(count);
        bits.truncate(count);
        Entries { indices, bits }
    };
    join(runs.into_par_iter().zip(quotas).map(of_run).collect())
}

/// Runs one after another.
fn join(runs: Vec<Entries>) -> Entries {
    let (indices, bits): (Vec<Vec<u32>>, Vec<Vec<u32>>) = runs.into_iter().map(|run| (run.indices, run.bits)).unzip();
    let (indices, bits) = rayon::join(|| indices.concat(), || bits.concat());
    Entries { indices, bits }
}

/// Bits of a digit of the search that cannot be wrong; three of them make a key.
const DIGITS: [u32; 3] = [11, 10, 10];

/// The key of the k-th largest, by counting digits from the highest on.
fn digits(source: Gradient<'_>, k: usize) -> Cut {
    let (mut known, mut shift, mut left) = (0u32, 31, k);
    for bits in DIGITS {
        shift -= bits;
        let (prefix, above) = (known, shift + bits);
        let runs = (0..source.len().div_ceil(RUN)).into_par_iter();
        let count = |run: usize| {
            let mut counts = vec![0usize; 1 << bits];
            for i in run * RUN..source.len().min((run + 1) * RUN) {
                let key = key(at(source, i).to_bits());
                if key >> above == prefix >> above {
                    counts[(key >> shift) as usize & ((1 << bits) - 1)] += 1;
                }
            }
            counts
        };
        let merge = |mut a: Vec<usize>, b: Vec<usize>| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
            a
        };
        let counts = runs.map(count).reduce(|| vec![0; 1 << bits], merge);
        let mut digit = counts.len() - 1;
        while counts[digit] < left {
            left -= counts[digit];
            digit -= 1;
        }
        known |= (digit as u32) << shift;
    }
    Cut { key: known, ties: left, all: false }
}

/// Adds the `k` largest of a range; `keys` is scratch.
fn block_largest(
    source: Gradient<'_>,
    range: std::ops::Range<usize>,
    k: usize,
    keys: &mut Vec<u32>,
    entries: &mut Entries,
) {
    let k = k.min(range.len());
    if k == 0 {
        return;
    }
    keys.clear();
    keys.extend(range.clone().map(|i| key(at(source, i).to_bits())));
    let last = *keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1;
    let mut ties = k - keys.iter().filter(|key| **key > last).count();
    for i in range {
        let bits = at(source, i).to_bits();
        let key = key(bits);
        if key > last || (key == last && ties > 0) {
            ties -= usize::from(key == last);
            entries.indices.push(i as u32);
            entries.bits.push(bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Simd;
    use super::*;

    fn sorted(x: &[f32], k: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..x.len() as u32).collect();
        order.sort_by_key(|i| (u32::MAX - key(x[*i as usize].to_bits()), *i));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    #[test]
    fn a_wrong_guess_changes_nothing() {
        let cpus: Vec<Cpu> = Simd::ALL.into_iter().filter_map(|simd| Cpu::with_simd(simd).ok()).collect();
        let normal: Vec<f32> = (0..200_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761) >> 3)).collect();
        let ties: Vec<f32> = (0..200_000).map(|i| (i % 7) as f32).collect();
        for x in [&normal, &ties] {
            for k in [1, 100, 70_000, 199_999] {
                let expected = sorted(x, k);
                let right = key(x[expected[0] as usize].to_bits());
                for guess in [
                    [u32::MAX, u32::MAX],         // nothing is that large
                    [0, 0],                       // everything is
                    [0, u32::MAX],                // no knowledge at all
                    [right, right],               // one key, and it may be the one
                    [right + 1, u32::MAX],        // just too high
                    [0, 1],                       // the sure ones are more than wanted
                    [right.saturating_sub(9), 2], // upside down
                ] {
                    for cpu in &cpus {
                        let mut residual = vec![0.0; x.len()];
                        let (zeros, mut beside) = (residual.clone(), vec![f32::NAN; x.len()]);
                        let feedback = [None, Some(Sums::over(&mut residual)), Some(Sums::beside(&zeros, &mut beside))];
                        for sums in feedback {
                            let got = cpu.largest(Gradient::F32(x), sums, k, guess);
                            assert_eq!(got.indices, expected, "{guess:x?}, k = {k}, {cpu:?}");
                        }
                        assert_eq!(&residual, x, "the sum is left behind once");
                        assert_eq!(&beside, x, "and beside the residual");
                    }
                }
            }
        }
    }

    #[test]
    fn digits_find_the_key() {
        let x = [3.0f32, -5.0, 5.0, 0.0, f32::NAN, 5.0];
        let cut = digits(Gradient::F32(&x), 3);
        assert_eq!((cut.key, cut.ties), (key(5f32.to_bits()), 2));
        let cut = digits(Gradient::F32(&x), 6);
        assert_eq!((cut.key, cut.ties), (0, 1));
    }
}
