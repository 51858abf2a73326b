//! Waiting times that look random and are not.

use std::time::Duration;

/// The longest that a delivery is held back.
const MOST: Duration = Duration::from_micros(200);

/// The waiting times of one rank: SplitMix64 of a seed and the rank.
///
/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
#[derive(Debug)]
pub(crate) struct Delays(u64);

impl Delays {
    pub(crate) fn new(seed: u64, rank: u32) -> Self {
        let mut delays = Self(seed);
        let own = delays.draw() ^ u64::from(rank);
        Self(own)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Sleeps for the next time. Half of all times are none, so that some deliveries overtake others by much.
    pub(crate) fn sleep(&mut self) {
        let draw = self.draw();
        if draw & 1 == 1 {
            std::thread::sleep(MOST.mul_f64((draw >> 11) as f64 / (1u64 << 53) as f64));
        }
    }
}
