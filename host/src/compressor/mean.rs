//! Sums over the ranks that are finite where their mean is.

use crate::collective::{Collective, CollectiveError};
use crate::threads;

/// Values that a thread takes at a time.
pub(crate) const PIECE: usize = 1 << 16;

/// Sums values over the ranks, each times a power of two that is at most 1/ranks, and returns what makes the sums
/// means.
///
/// The sum of finite values is then finite. Means have the bits that they would have without the power of two, but for
/// values below 2^-126 times the number of ranks, which may round.
pub(crate) fn all_reduce(group: &mut (impl Collective + ?Sized), values: &mut [f32]) -> Result<f32, CollectiveError> {
    let ranks = group.ranks();
    if ranks > 1 {
        scale(values, power(ranks).recip());
    }
    group.all_reduce_sum(values)?;
    Ok(weight(ranks))
}

/// Multiplies values by a factor.
pub(crate) fn scale(values: &mut [f32], by: f32) {
    threads::chunks_mut(values, PIECE).for_each(|piece| piece.iter_mut().for_each(|value| *value *= by));
}

/// The least power of two that is at least the number of ranks.
pub(crate) fn power(ranks: u32) -> f32 {
    // Up to 2^32, which f32 holds.
    u64::from(ranks).next_power_of_two() as f32
}

/// What makes a sum of such parts a mean.
pub(crate) fn weight(ranks: u32) -> f32 {
    power(ranks) / ranks as f32
}
