//! Random inputs whose sums are exact: whole numbers of a unit that is a power of two.

use gradwire_planner::{Groups, Layer, Profile};

/// A small generator (splitmix64), so that every run has the same cases.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number from 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    /// Whole microseconds in units of 2^-20 s, so that sums and products by whole numbers are exact.
    pub(crate) fn time(&mut self, end: u64) -> f64 {
        self.below(end) as f64 / 1_048_576.0
    }

    /// A profile of 1 to `most` layers, some of which take no time.
    pub(crate) fn profile(&mut self, most: u64) -> Profile {
        let count = 1 + self.below(most);
        let spread = [4, 64, 1024][self.below(3) as usize];
        let layer = |index| Layer::new(&format!("layer {index}"), 1 + self.below(spread), self.time(spread));
        let layers = (0..count).map(layer).collect();
        Profile::new(self.time(1024), layers).expect("valid")
    }
}

/// Every partition of this many layers into groups of neighbours.
pub(crate) fn partitions(layers: usize) -> impl Iterator<Item = Groups> {
    (0..1u32 << (layers - 1)).map(move |cuts| {
        let mut lengths = vec![1];
        for layer in 1..layers {
            match lengths.last_mut() {
                Some(length) if cuts >> (layer - 1) & 1 == 0 => *length += 1,
                _ => lengths.push(1),
            }
        }
        Groups::new(lengths, layers).expect("a partition")
    })
}
