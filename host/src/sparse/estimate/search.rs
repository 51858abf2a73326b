//! The search for a threshold that about a given number of entries reach.

use gradwire_kernels::arith::float::MAGNITUDE;

use super::numbers::{down, exceeded, ln};
use crate::codec::estimate::Estimate;
use crate::sparse::entries::Entries;

/// Corrections of a threshold of GaussianK.
const CORRECTIONS: u32 = 10;

/// ln(1/0.25): the first of several stages of SIDCo is for that part of the elements.
const FIRST: f64 = 2.0 * std::f64::consts::LN_2;

/// The statistics of a gradient's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Known {
    /// Some are not finite.
    NotFinite,
    /// The mean, and the standard deviation about it.
    Normal { mean: f64, deviation: f64 },
    /// The mean of the magnitudes.
    Magnitude(f64),
}

/// How many entries are wanted, and how many sixtieths of that are enough, and not too many.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    k: u64,
    least: u64,
    most: u64,
}

impl Wanted {
    fn has(self, count: u64) -> bool {
        let (count, k) = (60 * u128::from(count), u128::from(self.k));
        (u128::from(self.least) * k..=u128::from(self.most) * k).contains(&count)
    }

    /// Whether a number of entries is nearer than another, as a ratio. None at all is farthest.
    fn is_nearer(self, count: u64, other: u64) -> bool {
        let larger = |count: u64| u128::from(count.max(self.k));
        let smaller = |count: u64| u128::from(count.min(self.k));
        larger(count) * smaller(other) < larger(other) * smaller(count)
    }
}

/// A search, as [`Search`](super::Search) says.
#[derive(Clone, Debug)]
pub(crate) struct About {
    wanted: Wanted,
    way: Way,
    next: Option<f32>,
    /// From this threshold on, which is the lowest so far.
    entries: Entries,
    /// The best threshold, and the number of entries that reach it.
    best: Option<(f32, u64)>,
}

/// The source of the next threshold.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// There is one threshold.
    One,
    /// Of a mean of magnitudes and ln(1/rho): one stage.
    Stage { mean: f64, log: f64 },
    /// Of the same: several stages, from the first one's entries.
    Stages { mean: f64, log: f64 },
    /// Corrections that are left; a threshold that too many reach, and one that too few reach.
    Corrected { left: u32, many: Option<f32>, few: Option<f32> },
}

impl About {
    /// Of `k` wanted entries of `n`, 0 < k <= n.
    pub(crate) fn new(estimate: Estimate, k: u64, n: u64, known: Known) -> Self {
        let [least, most] = match estimate {
            Estimate::Gaussian => [40, 80],
            Estimate::Sidco => [48, 72],
        };
        let part = k as f64 / n as f64;
        let (way, first) = match known {
            Known::NotFinite => (Way::One, f32::INFINITY),
            // Nothing but zeros.
            Known::Normal { mean: 0.0, deviation: 0.0 } | Known::Magnitude(0.0) => (Way::One, down(0.0)),
            Known::Normal { mean, deviation } => {
                let way = Way::Corrected { left: CORRECTIONS, many: None, few: None };
                (way, down(exceeded(part / 2.0) * deviation + mean.abs()))
            }
            Known::Magnitude(mean) => {
                let log = -ln(part);
                (Way::Stage { mean, log }, down(mean * log))
            }
        };
        let wanted = Wanted { k, least, most };
        Self { wanted, way, next: Some(first), entries: Entries::default(), best: None }
    }

    pub(crate) fn next(&self) -> Option<f32> {
        self.next
    }

    pub(crate) fn take(&mut self, entries: Entries) {
        let Some(first) = self.next.take() else { return };
        self.entries = entries;
        match self.way {
            Way::One => {
                self.offer(first);
            }
            Way::Stage { mean, log } => {
                if !self.offer(first) && log > FIRST {
                    self.way = Way::Stages { mean, log };
                    self.next = Some(down(mean * FIRST));
                } else {
                    self.keep_some(mean);
                }
            }
            Way::Stages { mean, log } => {
                for stages in 2..=(log / std::f64::consts::LN_2).ceil() as u32 {
                    let each = (log - FIRST) / f64::from(stages - 1);
                    let last = (1..stages).fold(first, |threshold, _| self.stage(threshold, each));
                    if self.offer(last) {
                        break;
                    }
                }
                self.keep_some(mean);
            }
            Way::Corrected { mut left, mut many, mut few } => {
                let mut threshold = first;
                while !self.offer(threshold) && left > 0 {
                    left -= 1;
                    let too_many = self.count(threshold) > self.wanted.k;
                    *if too_many { &mut many } else { &mut few } = Some(threshold);
                    let now = f64::from(threshold);
                    let then = match (many, few) {
                        (Some(many), Some(few)) => down((f64::from(many) + f64::from(few)) * 0.5),
                        (Some(_), None) => down(now * 1.5),
                        _ => down(now * 0.5),
                    };
                    if then == threshold {
                        break;
                    }
                    if then < first {
                        self.next = Some(then);
                        break;
                    }
                    threshold = then;
                }
                self.way = Way::Corrected { left, many, few };
            }
        }
    }

    pub(crate) fn end(self) -> Entries {
        let (threshold, _) = self.best.unwrap_or((f32::INFINITY, 0));
        let mut entries = self.entries;
        entries.retain(|_, bits| reaches(bits, threshold));
        entries
    }

    /// Has the mean for a threshold, which some magnitude reaches, if none reached those before it.
    fn keep_some(&mut self, mean: f64) {
        if matches!(self.best, Some((_, 0))) {
            self.way = Way::One;
            self.next = Some(down(mean));
        }
    }

    /// Keeps a threshold in mind, and says whether enough entries reach it, and not too many.
    fn offer(&mut self, threshold: f32) -> bool {
        let count = self.count(threshold);
        if self.best.is_none_or(|(_, best)| self.wanted.is_nearer(count, best)) {
            self.best = Some((threshold, count));
        }
        self.wanted.has(count)
    }

    fn count(&self, threshold: f32) -> u64 {
        self.entries.bits.iter().filter(|bits| reaches(**bits, threshold)).count() as u64
    }

    /// The threshold of the stage after one: what magnitudes exceed it by in the mean, times `each`, above it.
    fn stage(&self, threshold: f32, each: f64) -> f32 {
        let (mut sum, mut count) = (0.0f64, 0u64);
        for bits in self.entries.bits.iter().filter(|bits| reaches(**bits, threshold)) {
            sum += f64::from(f32::from_bits(bits & MAGNITUDE)) - f64::from(threshold);
            count += 1;
        }
        if count == 0 { threshold } else { down(f64::from(threshold) + sum / count as f64 * each) }
    }
}

/// Whether an entry's magnitude is at least so large, or it is NaN.
fn reaches(bits: u32, threshold: f32) -> bool {
    bits & MAGNITUDE >= threshold.to_bits()
}
