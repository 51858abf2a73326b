//! A segment: the ranks of its sample and of its sketch, and the room that its candidates need.

use gradwire_kernels::arith::topk::NO_KEY;
use gradwire_kernels::params::{PIECE, SKETCH_RUN, SKETCH_STEP, THREADS, TILE};

use crate::gradient::Dtype;

/// How a segment is sampled, by its length. A row has the base-2 logarithm of the workgroups that sample a segment, the
/// number of elements from which on the row holds, and how many standard deviations a workgroup's guesses lie below and
/// above the wanted rank.
///
/// The floor is the lowest guess, so it is wrong only if all guesses are. Where guesses from different places are
/// independent, that happens once in 10^5 times, and costs two reads. The sure key may be wrong once in 10^3 times,
/// which costs less, since all candidates are stored.
pub(crate) const SAMPLES: [(u32, u64, f64, f64); 6] = [
    (5, 1 << 26, -0.52, -0.86),
    (4, 1 << 25, 0.03, -0.38),
    (3, 1 << 24, 0.72, 0.2),
    (2, 1 << 23, 1.59, 0.93),
    (1, 1 << 22, 2.74, 1.86),
    (0, 0, 4.27, 3.09),
];

/// A segment of the gradient that entries are kept of. Despite its name it may have any length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Large {
    /// The segment's first element.
    pub(crate) start: u64,
    /// The segment's number of elements.
    pub(crate) elements: u64,
    /// How many of the segment's elements are kept.
    pub(crate) keep: u64,
    /// Where the segment's entries begin in the output.
    pub(crate) output: u64,
    /// The lowest key that is kept, if it is known beforehand.
    pub(crate) floor: Option<u32>,
}

impl Large {
    /// How many tiles the segment has. The first begins at a multiple of 32 elements, which may lie before the segment.
    pub(crate) fn tiles(&self) -> u64 {
        (self.start % 32 + self.elements).div_ceil(TILE.into())
    }

    /// The element with which the segment's tile `index` begins.
    pub(crate) fn tile(&self, index: u64) -> u64 {
        self.start / 32 * 32 + index * u64::from(TILE)
    }

    /// How a workgroup samples the segment: the base-2 logarithm of a thread's keys, the ranks of the floor and of the
    /// sure key in the sample, and the part of the segment that is expected to be candidates.
    pub(crate) fn guess(&self, samples: (u32, u64, f64, f64)) -> (u32, u32, u32, f64) {
        let (samples_log2, _, below, above) = samples;
        let slots_log2 = (self.elements >> (15 + samples_log2)).clamp(1, 32).ilog2();
        let keys = f64::from(THREADS << slots_log2);
        let part = self.keep as f64 / self.elements as f64;
        let rank = part * keys;
        let deviation = (rank * (1.0 - part)).sqrt();
        let low = (rank + 1.0 + below * deviation).ceil();
        let high = (rank - above * deviation).floor().max(0.0);
        let low = if low > keys { 0.0 } else { low };
        // Neighbours may be alike, and a sample is then worth less than its size: so there is room for more candidates.
        let expected = if low == 0.0 { 1.0 } else { (low + 10.0 + 10.0 * deviation) / keys };
        (slots_log2, low as u32, high as u32, expected)
    }

    /// Whether so much is kept that no sample is taken: after a wrong sample, the segment would be read more than four
    /// times, kept entries included. With feedback the filter has to add the residual anyway, so a sample costs no
    /// read.
    pub(crate) fn is_unsampled(&self, dtype: Dtype, feedback: bool) -> bool {
        let most = if dtype == Dtype::F32 { 0.33 } else { 0.11 };
        !feedback && self.floor.is_none() && self.keep as f64 > most * self.elements as f64
    }

    /// Two ranks in the sketch. From the first one's key on there are at least as many elements as are kept; from the
    /// second one's on there are at most as many. An entry of the sketch stands for 32 elements, and up to 31 more in
    /// each run. 0 stands for no rank.
    pub(crate) fn sketch(&self) -> [u64; 2] {
        let step = u64::from(SKETCH_STEP);
        let low = self.keep.div_ceil(step);
        // The first run and the last may be shorter.
        let low = if low < self.elements / step { low } else { 0 };
        [low, self.keep.saturating_sub(self.uncertain()) / step]
    }

    /// How many elements above a key the sketch may not count.
    fn uncertain(&self) -> u64 {
        self.tiles() * u64::from(TILE / SKETCH_RUN) * u64::from(SKETCH_STEP - 1)
    }

    /// Room for the segment's candidates, in elements: of the first filter, and of the second.
    ///
    /// The second filter cannot find more. Beside the kept elements, those are the elements that the sketch may not
    /// count, and one tile's elements with the lowest key.
    pub(crate) fn room(&self, expected: f64) -> [u64; 2] {
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
