//! A small seeded random number generator, because candle's own generator on
//! the CPU cannot be seeded.

/// SplitMix64, by Sebastiano Vigna (public domain).
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in -limit..limit. It takes the top 53 bits, as many as an f64
    /// can hold exactly, and uses no library function that could differ
    /// between platforms.
    pub(crate) fn symmetric(&mut self, limit: f64) -> f64 {
        let unit = (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        (2.0 * unit - 1.0) * limit
    }

    /// A number in 0..bound. The high half of the product has a bias of at
    /// most bound / 2^64, which is far too small to matter here.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Puts the items in a random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut rng = SplitMix64::new(1_234_567);
        let found = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(found, published);
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_follows_the_seed() {
        let shuffled = |seed| {
            let mut items: Vec<usize> = (0..1000).collect();
            SplitMix64::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut sorted = shuffled(1);
        assert_ne!(sorted, (0..1000).collect::<Vec<_>>());
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_shuffle_reaches_every_order_about_equally_often() {
        let mut rng = SplitMix64::new(7);
        let mut counts = std::collections::HashMap::new();
        for _ in 0..6000 {
            let mut items = [0, 1, 2];
            rng.shuffle(&mut items);
            *counts.entry(items).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        // The standard deviation of a count is 29, so the bound is generous.
        assert!(counts.values().all(|count| (850..1150).contains(count)));
    }

    #[test]
    fn an_empty_or_single_item_shuffle_does_nothing() {
        let mut rng = SplitMix64::new(0);
        rng.shuffle::<u8>(&mut []);
        let mut one = [5];
        rng.shuffle(&mut one);
        assert_eq!(one, [5]);
    }

    #[test]
    fn symmetric_numbers_stay_inside_the_limit_and_centre_on_zero() {
        let mut rng = SplitMix64::new(3);
        let numbers: Vec<f64> = (0..10_000).map(|_| rng.symmetric(2.0)).collect();
        assert!(numbers.iter().all(|number| number.abs() <= 2.0));
        assert!(numbers.iter().sum::<f64>().abs() / 10_000.0 < 0.05);
    }
}
