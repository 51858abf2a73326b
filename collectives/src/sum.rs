//! A sum in the order of ranks, which every engine makes with this code, so that it has the same bits on all of them.
//!
//! Each rank adds up one share of the values, and all ranks gather the shares.

use std::ops::Range;

use gradwire::FloatEnvironment;

/// The share of rank `of` in `values`: ranks at the end may have less, or nothing.
pub(crate) fn share(values: usize, ranks: u32, of: u32) -> Range<usize> {
    let size = values.div_ceil(ranks as usize);
    let bound = |rank: usize| rank.saturating_mul(size).min(values);
    bound(of as usize)..bound(of as usize + 1)
}

/// `sums` become ((part 0 + part 1) + part 2) and so on, each sum rounded to f32.
pub(crate) fn add(parts: &[impl AsRef<[u8]>], sums: &mut [f32]) {
    let _environment = FloatEnvironment::standard();
    for (from, part) in parts.iter().enumerate() {
        for (sum, value) in sums.iter_mut().zip(floats(part.as_ref())) {
            *sum = if from == 0 { value } else { *sum + value };
        }
    }
}

/// Values as bytes, little-endian.
pub(crate) fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The values of [`to_bytes`].
pub(crate) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|value| f32::from_le_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_values_once() {
        for values in [0, 1, 2, 7, 8, 9, 1000] {
            for ranks in [1, 2, 3, 8, 13] {
                let all: Vec<usize> = (0..ranks).flat_map(|rank| share(values, ranks, rank)).collect();
                assert_eq!(all, (0..values).collect::<Vec<_>>(), "{values} values of {ranks} ranks");
            }
        }
    }

    #[test]
    fn a_sum_goes_by_the_order_of_parts() {
        let parts = [[1e8f32], [1.0], [-1e8]].map(|part| to_bytes(&part));
        let mut sum = [5.0];
        add(&parts, &mut sum);
        assert_eq!(sum, [0.0], "the 1 is lost in 1e8");
        add(&[&parts[0], &parts[2], &parts[1]], &mut sum);
        assert_eq!(sum, [1.0]);
    }
}
