//! The search for the largest entries of each sign.
//!
//! Thresholds only say which entries are copied to the host: those that are kept do not depend on them.

use std::cmp::Reverse;

use gradwire_kernels::arith::topk::key;

use super::numbers::{down, exceeded, ln};
use crate::codec::topk::rounded_up;
use crate::error::Error;
use crate::sparse::entries::{ENTRIES, Entries};
use crate::words::{reserved, zeros};

/// The least threshold: every entry reaches it that is not zero.
const LEAST: f32 = f32::from_bits(1);

/// By how much a threshold is divided that too few entries reach, one after another. Then all are taken.
const DIVISORS: [f64; 3] = [2.0, 4.0, 16.0];

/// The statistics of finite elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sides {
    /// How many elements are below zero.
    pub(crate) below: u64,
    /// The sums of magnitudes above zero, and below.
    pub(crate) sums: [f64; 2],
}

/// A search, as [`Search`](super::Search) says.
#[derive(Clone, Debug)]
pub(crate) struct PerSign {
    part: f64,
    /// What stands until entries are counted.
    sides: Option<Sides>,
    /// How many entries are kept above zero, and below.
    wanted: Option<[usize; 2]>,
    next: Option<f32>,
    /// How many thresholds too few entries have reached.
    failed: usize,
    entries: Entries,
}

impl PerSign {
    pub(crate) fn new(part: f64, sides: Option<Sides>) -> Self {
        Self { part, sides, wanted: None, next: Some(LEAST), failed: 0, entries: Entries::default() }
    }

    pub(crate) fn next(&self) -> Option<f32> {
        self.next
    }

    /// Whether it is enough to know how many entries reach the threshold.
    pub(crate) fn counts(&self) -> bool {
        self.sides.is_some()
    }

    /// Takes up that number.
    pub(crate) fn count(&mut self, reached: u64) {
        let Some(Sides { below, sums }) = self.sides.take() else { return };
        let counts = [reached.saturating_sub(below), below];
        let wanted = self.want(counts);
        let sides = (0..2).filter(|side| counts[*side] > 0);
        let guess = |side: usize| {
            let rho = wanted[side] as f64 / counts[side] as f64;
            sums[side] / counts[side] as f64 * reach(rho)
        };
        self.next = sides.map(guess).reduce(f64::min).map(down);
    }

    pub(crate) fn take(&mut self, entries: Entries) {
        let Some(threshold) = self.next.take() else { return };
        let mut found = [0; 2];
        entries.bits.iter().for_each(|bits| found[side(*bits)] += 1);
        self.sides = None;
        self.entries = entries;
        // Where nothing is known, the least threshold came first.
        let wanted = self.wanted.unwrap_or_else(|| self.want(found));
        if found.iter().zip(&wanted).any(|(found, wanted)| *found < *wanted as u64) {
            let lower = DIVISORS.get(self.failed).map_or(LEAST, |by| down(f64::from(threshold) / by));
            self.failed += 1;
            self.next = (lower < threshold).then_some(lower);
        }
    }

    pub(crate) fn end(self) -> Result<Entries, Error> {
        let mut entries = self.entries;
        let bits = &entries.bits;
        let mut is_kept: Vec<bool> = zeros(bits.len() as u64, ENTRIES)?;
        let mut places: Vec<u32> = reserved(bits.len(), ENTRIES)?;
        for (of, wanted) in self.wanted.unwrap_or_default().into_iter().enumerate() {
            places.clear();
            places.extend((0..bits.len() as u32).filter(|at| side(bits[*at as usize]) == of));
            let order = |at: &u32| (Reverse(key(bits[*at as usize])), *at);
            if wanted < places.len() {
                places.select_nth_unstable_by_key(wanted, order);
                places.truncate(wanted);
            }
            places.iter().for_each(|at| is_kept[*at as usize] = true);
        }
        entries.retain(|at, _| is_kept[at]);
        Ok(entries)
    }

    /// How many of `counts` elements of each sign are kept.
    fn want(&mut self, counts: [u64; 2]) -> [usize; 2] {
        *self.wanted.insert(counts.map(|count| rounded_up(self.part, count) as usize))
    }
}

/// 0 for an entry above zero, and 1 below.
fn side(bits: u32) -> usize {
    (bits >> 31) as usize
}

/// What a magnitude reaches with this probability, in means of it, and somewhat less: of an exponential density or of a
/// normal one, whichever is lower. Lower still only takes more entries to the host.
fn reach(rho: f64) -> f64 {
    // A normal variable's mean magnitude is sqrt(2/pi).
    let normal = exceeded(rho / 2.0) * (std::f64::consts::PI / 2.0).sqrt();
    normal.min(-ln(rho)).max(0.0) * 0.9375
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 100_000;

    /// The elements that a search keeps, how many thresholds it takes, and how many entries at the most.
    fn searched(x: &[f32], part: f64) -> (Vec<u32>, usize, usize) {
        let above = |threshold: f32| {
            let reached = x.iter().enumerate().filter(|(_, v)| v.abs() >= threshold);
            let (indices, bits) = reached.map(|(i, v)| (i as u32, v.to_bits())).unzip();
            Entries { indices, bits }
        };
        let sum = |side: f32| x.iter().map(|v| f64::from((v * side).max(0.0))).sum();
        let below = x.iter().filter(|v| **v < 0.0).count() as u64;
        let mut search = PerSign::new(part, Some(Sides { below, sums: [sum(1.0), sum(-1.0)] }));
        assert!(search.counts() && search.next() == Some(LEAST));
        search.count(above(LEAST).indices.len() as u64);
        let (mut taken, mut most) = (0, 0);
        while let Some(threshold) = search.next() {
            assert!(!search.counts());
            let entries = above(threshold);
            (taken, most) = (taken + 1, most.max(entries.indices.len()));
            search.take(entries);
        }
        (search.end().expect("memory").indices, taken, most)
    }

    /// Elements of either sign, whose magnitudes are quantiles of a density.
    fn quantiles(of: impl Fn(f64) -> f64) -> Vec<f32> {
        let at = |i: usize| of(((i / 2) as f64 + 0.5) / (N / 2) as f64) as f32;
        (0..N).map(|i| if i % 2 == 0 { at(i) } else { -at(i) }).collect()
    }

    #[test]
    fn of_usual_densities_the_first_threshold_is_enough() {
        for part in [0.001, 0.01, 0.1, 0.3, 0.9] {
            for x in [quantiles(|u| -u.ln()), quantiles(|u| exceeded(u / 2.0))] {
                let (kept, taken, most) = searched(&x, part);
                let k = rounded_up(part, N as u64 / 2) as u32;
                assert!(kept.into_iter().eq(0..2 * k), "{part}: the first are the largest");
                // Twice and a half the kept entries, and a fortieth of all.
                let bound = 5 * k as usize + N / 40;
                assert!(taken == 1 && most <= bound, "{part}: {taken} thresholds, {most} entries for {k}");
            }
        }
    }

    #[test]
    fn a_search_ends_whatever_the_elements() {
        let equal = vec![0.25; N];
        let far = (0..N).map(|i| if i % 1000 == 0 { 1e30 } else { 1e-30 }).collect();
        let uniform = quantiles(|u| u);
        let least = (0..N).map(|i| f32::from_bits((i % 2) as u32)).collect();
        let heavy = quantiles(|u| u.powf(-0.3));
        let all = [(equal, 3), (far, 5), (uniform, 2), (heavy, 2), (least, 2), (vec![-0.0; N], 0)];
        for (x, thresholds) in all {
            let (kept, taken, _) = searched(&x, 0.01);
            let side = |negative: bool| x.iter().filter(|v| **v != 0.0 && v.is_sign_negative() == negative).count();
            let [above, below] = [side(false), side(true)].map(|count| rounded_up(0.01, count as u64) as usize);
            assert_eq!((kept.len(), taken), (above + below, thresholds));
        }
    }
}
