//! A segment that is more than a tile: what is sampled of it, and how much room it needs.

use gradwire_kernels::arith::topk::NO_KEY;
use gradwire_kernels::params::{PIECE, SKETCH_RUN, SKETCH_STEP, THREADS, TILE};

use crate::gradient::Dtype;

/// Workgroups that sample a segment (logarithm), the elements from which on there are as many, and how many standard
/// deviations a workgroup's guess lies below and above the rank that is wanted. The floor is the lowest of the guesses,
/// so that all have to be wrong for it to be: once in 10^5 times, whatever their deviation is, where guesses from different
/// places are independent; it costs two reads. The sure key may be wrong once in 10^3 times: all candidates are stored.
pub(super) const SAMPLES: [(u32, u64, f64, f64); 6] = [
    (5, 1 << 26, -0.52, -0.86),
    (4, 1 << 25, 0.03, -0.38),
    (3, 1 << 24, 0.72, 0.2),
    (2, 1 << 23, 1.59, 0.93),
    (1, 1 << 22, 2.74, 1.86),
    (0, 0, 4.27, 3.09),
];

/// A segment that is more than a tile, with its share of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Large {
    pub(super) start: u64,
    pub(super) elements: u64,
    pub(super) keep: u64,
    pub(super) output: u64,
    /// The key from which on all is kept, where that is known.
    pub(super) floor: Option<u32>,
}

impl Large {
    pub(super) fn tiles(&self) -> u64 {
        (self.start % 32 + self.elements).div_ceil(TILE.into())
    }

    /// The element with which a tile begins.
    pub(super) fn tile(&self, index: u64) -> u64 {
        self.start / 32 * 32 + index * u64::from(TILE)
    }

    /// Keys of a workgroup's sample (logarithm of a thread's), and the ranks of its guesses.
    pub(super) fn guess(&self, samples: (u32, u64, f64, f64)) -> (u32, u32, u32, f64) {
        let (samples_log2, _, below, above) = samples;
        let slots_log2 = (self.elements >> (15 + samples_log2)).clamp(1, 32).ilog2();
        let keys = f64::from(THREADS << slots_log2);
        let part = self.keep as f64 / self.elements as f64;
        let rank = part * keys;
        let deviation = (rank * (1.0 - part)).sqrt();
        let low = (rank + 1.0 + below * deviation).ceil();
        let high = (rank - above * deviation).floor().max(0.0);
        let low = if low > keys { 0.0 } else { low };
        // Candidates that are expected where neighbours are alike, and the sample worth less than its size.
        let expected = if low == 0.0 { 1.0 } else { (low + 10.0 + 10.0 * deviation) / keys };
        (slots_log2, low as u32, high as u32, expected)
    }

    /// Whether so much is kept that no sample is taken: where it misled, its read and a kept entry's two would be more than
    /// four of all. Where gradient and residual have to be added anyway, the sample takes no read of its own.
    pub(super) fn is_unsampled(&self, dtype: Dtype, feedback: bool) -> bool {
        let most = if dtype == Dtype::F32 { 0.33 } else { 0.11 };
        !feedback && self.floor.is_none() && self.keep as f64 > most * self.elements as f64
    }

    /// Ranks in the sketch: of a key from which on there are as many elements as are kept, or more; and of one from which on
    /// there are no more. An entry of the sketch stands for 32 elements and up to 31 more in each run. 0: there is no such
    /// rank.
    pub(super) fn sketch(&self) -> [u64; 2] {
        let step = u64::from(SKETCH_STEP);
        let low = self.keep.div_ceil(step);
        // The first run and the last may be shorter.
        let low = if low < self.elements / step { low } else { 0 };
        [low, self.keep.saturating_sub(self.uncertain()) / step]
    }

    /// Elements that the sketch may have missed.
    fn uncertain(&self) -> u64 {
        self.tiles() * u64::from(TILE / SKETCH_RUN) * u64::from(SKETCH_STEP - 1)
    }

    /// Candidates that there is room for; and of those of filtering again, of which there are no more: what the sketch may
    /// have missed, and a tile's elements that have the lowest key.
    pub(super) fn room(&self, expected: f64) -> [u64; 2] {
        let pieces = self.tiles() * u64::from(PIECE);
        match self.floor {
            // All, or nothing.
            Some(0 | NO_KEY) => [0, 0],
            // How many entries a threshold keeps is not known in advance.
            Some(_) => [self.elements / 16 + pieces, 0],
            None => {
                let first = (self.elements as f64 * expected) as u64;
                let again = self.keep + u64::from(SKETCH_STEP) + self.uncertain() + u64::from(TILE);
                [first.min(self.elements / 2) + pieces, again.min(self.elements) + pieces]
            }
        }
    }
}
