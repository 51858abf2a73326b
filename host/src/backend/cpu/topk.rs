//! Exact top-k in one read, nearly always.
//!
//! A sample of the gradient tells two keys between which the k-th largest is all but certain to lie. One read keeps
//! what is at or above the lower; what is at or above the higher is in, and among the few between the two the k-th is
//! found exactly. Where the sample was wrong the count says so, and three reads find the key digit by digit. The sample
//! decides how long it takes, and never what is kept.

use gradwire_kernels::arith::topk::key;

use super::device::Cpu;
use super::filter::Filter;
use crate::codec::topk::Select;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::sparse::{ENTRIES, Entries, Source};
use crate::threads;
use crate::words::{no_memory, reserved, zeros};

/// Elements that a thread filters at a time.
const RUN: usize = 1 << 16;
/// Spans of runs for each thread: what a thread finds in a span lies one after another.
const SPANS: usize = 8;
/// Neighbours in the sample: a cache line of f32.
const LINE: usize = 16;
/// Lines in the sample.
const LINES: usize = 2048;
/// Standard deviations from the k-th largest to either key.
const SIGMAS: f64 = 5.0;
/// The base-2 logarithm of the bins that what lies between the two keys is counted in.
const BINS_LOG2: u32 = 11;
/// Gradients of up to this many elements are their own sample.
const SMALL: usize = 2 * LINE * LINES;

/// The last key that is kept, and how many entries of it.
struct Cut {
    /// Keys above are in.
    key: u32,
    /// How many with that very key are in, the first ones.
    ties: usize,
}

/// Entries of a span that are above a cut's key, and that have it.
struct Counts {
    above: usize,
    ties: usize,
}

impl Cpu {
    /// The entries that are kept. With feedback the sums are written if there is a place for them; if this fails,
    /// that may hold anything.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory.
    pub(crate) fn largest_of(
        &self,
        source: Source<'_>,
        sums: Option<&mut [f32]>,
        select: &Select,
    ) -> Result<Entries, Error> {
        let n = source.len();
        match *select {
            Select::Largest(k) if 0 < k && k < n as u64 => {
                let keys = sample(source, k as usize)?;
                self.largest(source, sums, k as usize, keys)
            }
            Select::Largest(0) => self.above(source, sums, u32::MAX),
            Select::Largest(_) => self.above(source, sums, 0),
            Select::Above(threshold) => self.above(source, sums, key(threshold.to_bits())),
            Select::Segments(ref segments) => {
                // Cut up first, and then shared out: a large segment is shared out again.
                let mut parts = reserved(segments.len(), "the segments of a selection")?;
                let (mut start, mut left) = (0, sums);
                for segment in segments.iter() {
                    let end = start + segment.elements as usize;
                    let mine = left.take().map(|all| {
                        let (mine, others) = all.split_at_mut(end - start);
                        left = Some(others);
                        mine
                    });
                    parts.push((start, source.part(start..end), mine, segment.k));
                    start = end;
                }
                let of_part = |(start, source, sums, k)| {
                    let mut entries = self.largest_of(source, sums, &Select::Largest(k))?;
                    entries.indices.iter_mut().for_each(|i| *i += start as u32);
                    Ok(entries)
                };
                join(&threads::items(parts).map(of_part).try_collect(ENTRIES)?)
            }
            Select::Blocks { elements, k } => {
                // Where sums are written, they are first: blocks may be larger than a thread's run.
                let source = match sums {
                    Some(sums) => {
                        self.filter(source, Some(&mut *sums), u32::MAX, 0)?;
                        Gradient::F32(sums).into()
                    }
                    None => source,
                };
                let elements = elements.min(n as u64).max(1) as usize;
                let k = k.min(n as u64) as usize;
                // Whole blocks, about a run of them together: a block may be a single element.
                let span = elements * RUN.div_ceil(elements);
                let of_span = |start: usize| {
                    let (mut entries, mut scratch) = (Entries::default(), [Vec::new(), Vec::new()]);
                    for first in (start..n.min(start.saturating_add(span))).step_by(elements) {
                        block_largest(source, first..n.min(first + elements), k, &mut scratch, &mut entries)?;
                    }
                    Ok(entries)
                };
                join(&threads::items(0..n.div_ceil(span)).map(|i| of_span(i * span)).try_collect(ENTRIES)?)
            }
        }
    }

    /// Adds a gradient to its residual.
    pub(crate) fn add_to(&self, gradient: Gradient<'_>, residual: &mut [f32]) {
        threads::chunks_mut(residual, RUN).enumerate().for_each(|(run, residual)| {
            self.simd().add_to(gradient.part(run * RUN, residual.len()), residual);
        });
    }

    fn above(&self, source: Source<'_>, sums: Option<&mut [f32]>, floor: u32) -> Result<Entries, Error> {
        join(&self.filter(source, sums, floor, 0)?)
    }

    /// The `k` largest, 0 < k < n, with a guess between which two keys the last of them lies.
    pub(crate) fn largest(
        &self,
        source: Source<'_>,
        mut sums: Option<&mut [f32]>,
        k: usize,
        [lower, higher]: [u32; 2],
    ) -> Result<Entries, Error> {
        // What is above the lower key. Of entries that have that very key there may be any number, most of all in a
        // gradient of zeros; as many as are still wanted are looked for afterwards.
        let spans = self.filter(source, sums.as_deref_mut(), lower.saturating_add(1), k)?;
        let found: usize = spans.iter().map(|span| span.bits.len()).sum();
        if found >= k {
            let (cut, counts) = cut(&spans, k, [lower, higher])?;
            return keep(&spans, &cut, &counts);
        }
        let source = sums.map_or(source, |sums| Gradient::F32(sums).into());
        if let Some(ties) = first_of_key(source, lower, k - found)? {
            return with_ties(&join(&spans)?, &ties);
        }
        drop(spans);
        let cut = digits(source, k);
        let above = join(&self.filter(source, None, cut.key.saturating_add(1), k)?)?;
        // There are as many: they were counted.
        with_ties(&above, &first_of_key(source, cut.key, cut.ties)?.unwrap_or_default())
    }

    /// What is at or above a key, span by span. `about` is how many entries that is, if it is known.
    fn filter(
        &self,
        source: Source<'_>,
        sums: Option<&mut [f32]>,
        floor: u32,
        about: usize,
    ) -> Result<Vec<Entries>, Error> {
        let n = source.len();
        let span = n.div_ceil(SPANS * threads::count()).next_multiple_of(RUN).max(RUN);
        let likely = match about {
            0 => 0,
            _ => (about as f64 * 1.1 * span.min(n) as f64 / n as f64) as usize,
        };
        let of_span = |index: usize, mut sums: &mut [f32]| {
            let (first, end) = (index * span, n.min((index + 1) * span));
            let mut found = Entries::default();
            // All of a run might be kept, and it ends with a vector of which little may be.
            found.reserve(likely + RUN.min(end - first) + LINE)?;
            for start in (first..end).step_by(RUN) {
                let len = RUN.min(end - start);
                let (mine, others) = std::mem::take(&mut sums).split_at_mut_checked(len).unwrap_or_default();
                sums = others;
                found.reserve(len + LINE)?;
                let source = source.part(start..start + len);
                self.simd().filter(Filter { source, start, sums: mine, floor }, &mut found);
            }
            Ok(found)
        };
        match sums {
            None => threads::items(0..n.div_ceil(span)).map(|index| of_span(index, &mut [])).try_collect(ENTRIES),
            Some(sums) => {
                let spans = threads::chunks_mut(sums, span).enumerate();
                spans.map(|(index, sums)| of_span(index, sums)).try_collect(ENTRIES)
            }
        }
    }
}

/// The first entries of exactly this key; `None` if there are fewer than wanted.
fn first_of_key(source: Source<'_>, wanted: u32, count: usize) -> Result<Option<Entries>, Error> {
    let mut entries = Entries::default();
    for i in 0..source.len() {
        let bits = source.at(i).to_bits();
        if key(bits) == wanted {
            entries.reserve(1)?;
            entries.indices.push(i as u32);
            entries.bits.push(bits);
            if entries.bits.len() == count {
                return Ok(Some(entries));
            }
        }
    }
    Ok(None)
}

/// Both, in the order of their indices, of which none is in both.
fn with_ties(above: &Entries, ties: &Entries) -> Result<Entries, Error> {
    let mut all = Entries::default();
    all.reserve(above.bits.len() + ties.bits.len())?;
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
    Ok(all)
}

/// Two keys between which the k-th largest is likely to lie.
fn sample(source: Source<'_>, k: usize) -> Result<[u32; 2], Error> {
    let n = source.len();
    let of = |i: usize| key(source.at(i).to_bits());
    let mut keys: Vec<u32> = zeros(if n <= SMALL { n } else { LINES * LINE } as u64, "a sample of the gradient")?;
    if n <= SMALL {
        keys.iter_mut().zip(0..).for_each(|(key, i)| *key = of(i));
    } else {
        // A line from each of as many equal parts, at a place in it that varies from part to part.
        let part = n / LINES;
        let place = |line: usize| line * part + (line.wrapping_mul(0x9E37_79B1) >> 7) % (part - LINE);
        let lines = threads::chunks_mut(&mut keys, LINE).enumerate().with_min_len(LINES / 8);
        lines.for_each(|(line, keys)| (place(line)..).zip(keys).for_each(|(i, key)| *key = of(i)));
    }
    let m = keys.len();
    let rank = k as f64 / n as f64 * m as f64;
    // Neighbours are alike in real gradients, so the sample is worth less than its size; a miss costs time alone.
    let margin = if m == n { 0.0 } else { 1.0 + SIGMAS * (rank * (1.0 - k as f64 / n as f64)).sqrt() };
    let place = |rank: f64| (rank.max(1.0) as usize).min(m) - 1;
    let (low, high) = (place((rank + margin).ceil()), place((rank - margin).floor()));
    let lower = *keys.select_nth_unstable_by(low, |a, b| b.cmp(a)).1;
    // What is larger lies before it.
    let higher = *keys[..=low].select_nth_unstable_by(high, |a, b| b.cmp(a)).1;
    Ok([lower, higher])
}

/// Where to cut what was found, at least `k` entries, so that `k` are left; and what of each span is above the cut.
fn cut(spans: &[Entries], k: usize, [lower, higher]: [u32; 2]) -> Result<(Cut, Vec<Counts>), Error> {
    let found: usize = spans.iter().map(|span| span.bits.len()).sum();
    let below = |limit: u32| threads::items(spans).map(|span| keys_below(span, limit)).try_collect(CANDIDATES);
    let (mut open, mut limit) = (below(higher)?, higher);
    let mut sure = found - open.iter().map(Vec::len).sum::<usize>();
    if sure >= k {
        (open, limit, sure) = (below(u32::MAX)?, u32::MAX, 0);
    }
    let mut wanted = k - sure;
    // By the highest bits of what lies between the two first, so that a few are left to be ordered.
    let shift = (limit.saturating_sub(lower).max(1).ilog2() + 1).saturating_sub(BINS_LOG2);
    let bin = |key: u32| (key.saturating_sub(lower) >> shift).min((1 << BINS_LOG2) - 1) as usize;
    let count = |keys: &Vec<u32>| {
        let mut bins = vec![0usize; 1 << BINS_LOG2];
        keys.iter().for_each(|key| bins[bin(*key)] += 1);
        bins
    };
    let bins = threads::items(&open).map(count).reduce(|| vec![0; 1 << BINS_LOG2], add);
    let mut last = bins.len() - 1;
    while bins[last] < wanted {
        wanted -= bins[last];
        last -= 1;
    }
    let mut few = reserved(bins[last], CANDIDATES)?;
    few.extend(open.iter().flatten().copied().filter(|key| bin(*key) == last));
    let (above, key, _) = few.select_nth_unstable_by(wanted - 1, |a, b| b.cmp(a));
    let key = *key;
    let cut = Cut { key, ties: wanted - above.iter().filter(|above| **above > key).count() };
    let counts = |(span, open): (&Entries, &Vec<u32>)| Counts {
        above: span.bits.len() - open.iter().filter(|open| **open <= key).count(),
        ties: open.iter().filter(|open| **open == key).count(),
    };
    Ok((cut, threads::items(spans).zip(threads::items(&open)).map(counts).collect()))
}

/// What the memory of keys near the last one that is kept is for, in an error.
const CANDIDATES: &str = "the candidates of a selection";

/// The keys of a span that are below a limit.
fn keys_below(span: &Entries, limit: u32) -> Result<Vec<u32>, Error> {
    let mut keys = Vec::new();
    // Without a branch an entry, into a room that stays in the cache.
    let mut room = [0; 64];
    for bits in span.bits.chunks(room.len()) {
        let mut count = 0;
        for bits in bits {
            let key = key(*bits);
            room[count.min(63)] = key;
            count += usize::from(key < limit);
        }
        keys.try_reserve(count).map_err(|_| no_memory::<u32>((keys.len() + count) as u64, CANDIDATES))?;
        keys.extend_from_slice(&room[..count]);
    }
    Ok(keys)
}

fn add(mut a: Vec<usize>, b: Vec<usize>) -> Vec<usize> {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    a
}

/// The entries that a cut leaves, in order.
fn keep(spans: &[Entries], cut: &Cut, counts: &[Counts]) -> Result<Entries, Error> {
    let total = counts.iter().map(|counts| counts.above).sum::<usize>() + cut.ties;
    let mut kept = Entries { indices: zeros(total as u64, ENTRIES)?, bits: zeros(total as u64, ENTRIES)? };
    let (mut left_of_indices, mut left_of_bits) = (&mut kept.indices[..], &mut kept.bits[..]);
    let mut left_of_ties = cut.ties;
    let mut tasks = Vec::with_capacity(spans.len());
    for (span, counts) in spans.iter().zip(counts) {
        let ties = counts.ties.min(left_of_ties);
        left_of_ties -= ties;
        let (indices, other_indices) = left_of_indices.split_at_mut(counts.above + ties);
        let (bits, other_bits) = left_of_bits.split_at_mut(counts.above + ties);
        (left_of_indices, left_of_bits) = (other_indices, other_bits);
        tasks.push(Kept { span, indices, bits, ties, all: ties == counts.ties });
    }
    threads::items(tasks).for_each(|task| task.write(cut.key));
    Ok(kept)
}

/// What is kept of a span, and where it goes.
struct Kept<'a> {
    span: &'a Entries,
    indices: &'a mut [u32],
    bits: &'a mut [u32],
    /// Of entries that have the cut's key, so many, the first ones.
    ties: usize,
    /// Whether that is all of them.
    all: bool,
}

impl Kept<'_> {
    /// Writes all of the room.
    fn write(self, cut: u32) {
        match self {
            Self { all: true, .. } => self.write_those(|key| key >= cut),
            Self { ties: 0, .. } => self.write_those(|key| key > cut),
            Self { mut ties, .. } => self.write_those(|key| {
                let is_tie = key == cut && ties > 0;
                ties -= usize::from(is_tie);
                key > cut || is_tie
            }),
        }
    }

    #[inline(always)]
    fn write_those(self, mut is_kept: impl FnMut(u32) -> bool) {
        let room = self.bits.len();
        let (indices, mut at) = (&mut self.indices[..room], 0);
        // Without a branch that goes by an entry: whether one stays is as good as random.
        for (index, bits) in self.span.indices.iter().zip(&self.span.bits) {
            if at == room {
                break;
            }
            (indices[at], self.bits[at]) = (*index, *bits);
            at += usize::from(is_kept(key(*bits)));
        }
        debug_assert_eq!(at, room, "as many entries as were counted");
    }
}

/// Spans one after another.
fn join(spans: &[Entries]) -> Result<Entries, Error> {
    let mut all = Entries::default();
    all.reserve(spans.iter().map(|span| span.bits.len()).sum())?;
    let Entries { indices, bits } = &mut all;
    threads::join(
        || spans.iter().for_each(|span| indices.extend_from_slice(&span.indices)),
        || spans.iter().for_each(|span| bits.extend_from_slice(&span.bits)),
    );
    Ok(all)
}

/// Bits of a digit of the search that cannot be wrong; three of them make a key.
const DIGITS: [u32; 3] = [11, 10, 10];

/// The key of the k-th largest, by counting digits from the highest on.
fn digits(source: Source<'_>, k: usize) -> Cut {
    let (mut known, mut shift, mut left) = (0u32, 31, k);
    for bits in DIGITS {
        shift -= bits;
        let (prefix, above) = (known, shift + bits);
        let runs = threads::items(0..source.len().div_ceil(RUN));
        let count = |run: usize| {
            let mut counts = vec![0usize; 1 << bits];
            for i in run * RUN..source.len().min((run + 1) * RUN) {
                let key = key(source.at(i).to_bits());
                if key >> above == prefix >> above {
                    counts[(key >> shift) as usize & ((1 << bits) - 1)] += 1;
                }
            }
            counts
        };
        let counts = runs.map(count).reduce(|| vec![0; 1 << bits], add);
        let mut digit = counts.len() - 1;
        // Fewer than before are there only where the gradient was written meanwhile.
        while digit > 0 && counts[digit] < left {
            left -= counts[digit];
            digit -= 1;
        }
        known |= (digit as u32) << shift;
    }
    Cut { key: known, ties: left }
}

/// Adds the `k` largest of a range. The scratch is for the bits of all, and for their keys.
fn block_largest(
    source: Source<'_>,
    range: std::ops::Range<usize>,
    k: usize,
    [bits, keys]: &mut [Vec<u32>; 2],
    entries: &mut Entries,
) -> Result<(), Error> {
    let k = k.min(range.len());
    if k == 0 {
        return Ok(());
    }
    for scratch in [&mut *bits, &mut *keys] {
        scratch.clear();
        scratch.try_reserve(range.len()).map_err(|_| no_memory::<u32>(range.len() as u64, CANDIDATES))?;
    }
    bits.extend(range.clone().map(|i| source.at(i).to_bits()));
    keys.extend(bits.iter().map(|bits| key(*bits)));
    entries.reserve(k)?;
    let last = *keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1;
    let mut ties = k - keys.iter().filter(|key| **key > last).count();
    for (i, bits) in range.zip(bits) {
        let key = key(*bits);
        if key > last || (key == last && ties > 0) {
            ties -= usize::from(key == last);
            entries.indices.push(i as u32);
            entries.bits.push(*bits);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::simd::Simd;
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
                        let (zeros, mut written) = (vec![0.0; x.len()], vec![f32::NAN; x.len()]);
                        let alone = Source::from(Gradient::F32(x));
                        let fed = Source { residual: Some(&zeros), ..alone };
                        for (source, sums) in [(alone, None), (fed, None), (fed, Some(&mut written[..]))] {
                            let got = cpu.largest(source, sums, k, guess).expect("memory");
                            assert_eq!(got.indices, expected, "{guess:x?}, k = {k}, {cpu:?}");
                        }
                        assert_eq!(&written, x, "the sums");
                    }
                }
            }
        }
    }

    #[test]
    fn a_span_of_several_runs_keeps_gradient_and_residual_together() {
        let n = SPANS * RUN + 12_345;
        let x: Vec<f32> = (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
        let before: Vec<f32> = (0..n as u32).map(|i| (i.wrapping_mul(40_503) >> 9) as f32).collect();
        let sums: Vec<f32> = x.iter().zip(&before).map(|(x, r)| x + r).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
        for simd in Simd::ALL {
            let Ok(cpu) = Cpu::with_simd(simd) else { continue };
            for k in [700, 60_000] {
                let mut written = vec![f32::NAN; n];
                let got = pool.install(|| {
                    let source = Source { gradient: Gradient::F32(&x), residual: Some(&before) };
                    let select = Select::Largest(k as u64);
                    let of = |sums| cpu.largest_of(source, sums, &select).expect("memory");
                    [of(None), of(Some(&mut written))]
                });
                let mut added = before.clone();
                pool.install(|| cpu.add_to(Gradient::F32(&x), &mut added));
                let expected = sorted(&sums, k);
                assert!(got.iter().all(|got| got.indices == expected), "{simd:?}, k = {k}");
                assert!(got.iter().all(|got| {
                    got.indices.iter().zip(&got.bits).all(|(i, bits)| sums[*i as usize].to_bits() == *bits)
                }));
                assert!(written == sums && added == sums, "{simd:?}, k = {k}");
            }
        }
    }

    #[test]
    fn digits_find_the_key() {
        let x = [3.0f32, -5.0, 5.0, 0.0, f32::NAN, 5.0];
        let cut = digits(Gradient::F32(&x).into(), 3);
        assert_eq!((cut.key, cut.ties), (key(5f32.to_bits()), 2));
        let cut = digits(Gradient::F32(&x).into(), 6);
        assert_eq!((cut.key, cut.ties), (0, 1));
    }
}
