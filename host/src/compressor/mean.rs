//! Sums over the ranks that are finite where their mean is.

use crate::collective::{Collective, CollectiveError};

/// Sums values over the ranks, each times a power of two that is at most 1/ranks, and returns what makes the sums means.
///
/// The sum of finite values is then finite. Means have the bits that they would have without the power of two, but for
/// values below 2^-126 times the number of ranks, which may round.
pub(super) fn all_reduce(group: &mut (impl Collective + ?Sized), values: &mut [f32]) -> Result<f32, CollectiveError> {
    let ranks = group.ranks();
    if ranks > 1 {
        let part = power(ranks).recip();
        values.iter_mut().for_each(|value| *value *= part);
    }
    group.all_reduce_sum(values)?;
    Ok(weight(ranks))
}

/// The least power of two that is at least the number of ranks.
pub(super) fn power(ranks: u32) -> f32 {
    // Up to 2^32, which f32 holds.
    u64::from(ranks).next_power_of_two() as f32
}

/// What makes a sum of such parts a mean.
pub(super) fn weight(ranks: u32) -> f32 {
    power(ranks) / ranks as f32
}
