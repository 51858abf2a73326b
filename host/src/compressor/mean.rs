//! Sums over the ranks that are finite where their mean is.

use crate::collective::{Collective, CollectiveError};

/// Sums values over the ranks, each times a power of two that is at most 1/ranks, and returns what makes the sums means.
///
/// The sum of finite values is then finite. Means have the bits that they would have without the power of two, but for
/// values below 2^-126 times the number of ranks, which may round.
pub(super) fn all_reduce(group: &mut (impl Collective + ?Sized), values: &mut [f32]) -> Result<f32, CollectiveError> {
    let ranks = group.ranks();
    // A power of two up to 2^32, which f32 holds.
    let power = u64::from(ranks).next_power_of_two() as f32;
    if ranks > 1 {
        values.iter_mut().for_each(|value| *value *= power.recip());
    }
    group.all_reduce_sum(values)?;
    Ok(power / ranks as f32)
}
