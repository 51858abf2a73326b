//! What a kernel asks of a bucketed quantizer beside its formula, and how a block measures a bucket.

use super::statistic::{Grouping, Statistic};
use super::tile::{Place, Tile};
use crate::arith::fold::{Fold, Sum};
use crate::arith::quantizer::{Quantizer, Words};
use crate::device;
use crate::params::EncodeParams;

/// A quantizer whose statistics the lanes of a warp can hand to one another.
pub(super) trait Measured: Quantizer<First: Statistic, Second: Statistic, Total: Statistic> {}

impl<Q: Quantizer<First: Statistic, Second: Statistic, Total: Statistic>> Measured for Q {}

/// First word of shared memory for what the first look sees: a statistic per warp.
pub(super) const FIRST: u32 = 0;

/// First word of shared memory for what the second look sees.
#[inline(always)]
pub(super) const fn second<Q: Measured>() -> u32 {
    const {
        let more = if Q::Second::WORDS > Q::Total::WORDS { Q::Second::WORDS } else { Q::Total::WORDS };
        assert!(8 * (Q::First::WORDS + more) <= device::SHARED_WORDS as u32, "a statistic per warp does not fit");
    }
    8 * Q::First::WORDS
}

/// First word of shared memory for what the third look sees.
#[inline(always)]
const fn third<Q: Measured>() -> u32 {
    const {
        let words = Q::First::WORDS + Q::Second::WORDS + Sum::WORDS;
        assert!(!Q::LOOKS_THRICE || 8 * words <= device::SHARED_WORDS as u32, "a statistic per warp does not fit");
    }
    8 * (Q::First::WORDS + Q::Second::WORDS)
}

/// Each lane gets the partial statistic of the bucket that what it owns lies in.
///
/// # Safety
/// All threads of the block arrive together.
#[inline(always)]
pub(super) unsafe fn measure<Q: Measured>(
    p: &EncodeParams,
    place: Place,
    tile: &Tile,
    grouping: Grouping,
) -> Q::Partial {
    // SAFETY: the caller brings all threads here.
    let first = unsafe { grouping.fold(place, p.n, tile, None, FIRST, |value, _| Q::first(value)) };
    let mut again = Q::Second::NONE;
    if Q::looks_again(p) {
        let context = Some(Q::context(first));
        // SAFETY: as above; whether there is a second look is the same for all threads. The context is of the bucket that
        // the values are of.
        again = unsafe { grouping.fold(place, p.n, tile, context, second::<Q>(), |v, context| Q::second(v, context)) };
    }
    let partial = Q::partial(first, again, grouping.elements(place, p.n));
    if Q::LOOKS_THRICE {
        let context = Some(Q::statistic(p, partial)[0]);
        // SAFETY: as above, context included.
        let third =
            unsafe { grouping.fold(place, p.n, tile, context, third::<Q>(), |v, context| Q::third(p, v, context)) };
        return Q::completed(partial, third);
    }
    partial
}

/// The encoder or the decoder that lane `from` has.
///
/// # Safety
/// As [`device::shuffle`].
#[inline(always)]
pub(super) unsafe fn of_lane<W: Words>(words: &W, from: u32) -> W {
    // SAFETY: the caller brings all lanes of the warp here.
    words.handed_on(|word| unsafe { device::shuffle(word, from) })
}
