//! Folding the values of a bucket over the lanes of a warp and the warps of a block.

use super::tile::{Place, Tile, UNITS};
use crate::arith::fold::{Fold, Max, Min, Sum, high, join, low};
use crate::arith::pack::SLOTS;
use crate::device;

/// Rows of a warp.
const ROWS: usize = UNITS * SLOTS;

/// A fold that lanes and warps can hand to one another.
pub(super) trait Statistic: Fold {
    /// Words that it takes in shared memory.
    const WORDS: u32;

    /// What lane `lane ^ mask` gives.
    ///
    /// # Safety
    /// As [`device::shuffle_xor`].
    unsafe fn shuffle_xor(self, mask: u32) -> Self;

    /// Lane `i` gets the statistic of all lanes' `value(i % N)`. `N` is 1, 4 or 32.
    ///
    /// # Safety
    /// All lanes of the warp arrive together.
    #[inline(always)]
    unsafe fn fold_lanes<const N: usize>(lane: u32, value: impl Fn(usize) -> Self) -> Self {
        // SAFETY: the caller brings all lanes of the warp here.
        unsafe { exchange::<Self, N>(lane, value) }
    }

    /// Writes it to shared memory.
    ///
    /// # Safety
    /// As [`device::shared_store`] of `WORDS` words from `index` on.
    unsafe fn put(self, index: u32);

    /// Reads it from shared memory.
    ///
    /// # Safety
    /// As [`device::shared_load`] of `WORDS` words from `index` on.
    unsafe fn get(index: u32) -> Self;
}

/// What [`Statistic::fold_lanes`] does, by shuffles.
///
/// Two values become one by giving away one and folding the other, so that N values take N - 1 shuffles, and those that
/// the last one left takes, where N folds of one value each would take 5 N. Values are made when their turn comes, and
/// folded as soon as there are two of a kind: no more than one of each kind waits in registers.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn exchange<S: Statistic, const N: usize>(lane: u32, value: impl Fn(usize) -> S) -> S {
    let mut waiting = [S::NONE; 6];
    for k in 0..N {
        let mut folded = value(k);
        let mut kind = 0;
        while k >> kind & 1 != 0 {
            let (even, odd) = (waiting[kind], folded);
            let (keep, give) = if lane >> kind & 1 != 0 { (odd, even) } else { (even, odd) };
            // SAFETY: the caller brings all lanes here.
            folded = keep.merge(unsafe { give.shuffle_xor(1 << kind) });
            kind += 1;
        }
        waiting[kind] = folded;
    }
    let steps = N.trailing_zeros();
    let mut folded = waiting[steps as usize];
    for step in steps..5 {
        // SAFETY: as above.
        folded = folded.merge(unsafe { folded.shuffle_xor(1 << step) });
    }
    folded
}

/// What [`Statistic::fold_lanes`] does, where a warp folds a value in one instruction.
#[inline(always)]
fn select<S: Statistic, const N: usize>(lane: u32, folded: impl Fn(usize) -> S) -> S {
    let mut mine = folded(0);
    for k in 1..N {
        let other = folded(k);
        mine = if lane % N as u32 == k as u32 { other } else { mine };
    }
    mine
}

/// How buckets lie in a block.
#[derive(Clone, Copy)]
pub(super) struct Grouping {
    log2: u32,
}

impl Grouping {
    /// A block's span is one bucket.
    pub(super) const BLOCK: Self = Self { log2: 13 };

    /// Buckets of `1 << log2` elements, 32 to 8192.
    #[inline(always)]
    pub(super) fn new(log2: u32) -> Self {
        Self { log2 }
    }

    /// Whether a unit holds several buckets. Then lane `r` *owns* row `r` of its warp, and else unit `r % 4`.
    #[inline(always)]
    pub(super) fn is_small(self) -> bool {
        self.log2 < 8
    }

    /// Whether what this lane owns starts a bucket that has an element, and the bucket's index in the launch. One lane
    /// answers for each bucket.
    #[inline(always)]
    pub(super) fn leads(self, place: Place, n: u32) -> Option<u32> {
        let owned = if self.is_small() { place.lane * 32 } else { place.lane * 256 };
        let first = place.first + owned;
        let leads = (self.is_small() || place.lane < UNITS as u32) && first & ((1 << self.log2) - 1) == 0 && first < n;
        leads.then_some(first >> self.log2)
    }

    /// Elements of the bucket that what this lane owns lies in.
    #[inline(always)]
    pub(super) fn elements(self, place: Place, n: u32) -> u32 {
        let owned = if self.is_small() { place.lane * 32 } else { place.lane % UNITS as u32 * 256 };
        let first = (place.first + owned) >> self.log2 << self.log2;
        n.saturating_sub(first).min(1 << self.log2)
    }

    /// Each lane gets the statistic of the bucket that what it owns lies in.
    ///
    /// `of(value, context)` is one value's statistic, where `context` is the word that the owner of the value's row
    /// has. `shared` is the first of 8 statistics' words of shared memory, which nothing else uses. A warp that has
    /// none of the `n` elements counts as no value, whatever its tile holds.
    ///
    /// # Safety
    /// All threads of the block arrive together.
    #[inline(always)]
    pub(super) unsafe fn fold<S: Statistic>(
        self,
        place: Place,
        n: u32,
        tile: &Tile,
        context: Option<u32>,
        shared: u32,
        of: impl Fn(u32, u32) -> S,
    ) -> S {
        let context = |owner: usize| match context {
            // SAFETY: whether there is a context, and the grouping, are the same for all threads.
            Some(word) => unsafe { device::shuffle(word, owner as u32) },
            None => 0,
        };
        if self.is_small() {
            let row = |row: usize| of(tile[row / SLOTS][row % SLOTS], context(row));
            // SAFETY: all lanes are here, and the number of steps is the same in each.
            return unsafe { merge_neighbours(S::fold_lanes::<ROWS>(place.lane, row), self.log2 - 5) };
        }
        let unit = |unit: usize| {
            let context = context(unit);
            let mut folded = S::NONE;
            for slot in 0..SLOTS {
                folded = folded.merge(of(tile[unit][slot], context));
            }
            folded
        };
        // SAFETY: as above.
        let warp = unsafe { merge_neighbours(S::fold_lanes::<UNITS>(place.lane, unit), self.log2.min(10) - 8) };
        if self.log2 <= 10 {
            return warp;
        }
        let warp = if place.is_empty(n) { S::NONE } else { warp };
        // SAFETY: all threads are here, and the grouping is the same for all.
        unsafe { across_warps(place, self.log2 - 10, shared, warp) }
    }
}

/// Merges what the `1 << steps` lanes around each lane have.
///
/// # Safety
/// All lanes of the warp arrive together, with the same `steps`.
#[inline(always)]
unsafe fn merge_neighbours<S: Statistic>(mut value: S, steps: u32) -> S {
    // Written out, since a loop of one or two turns costs more than it does.
    if steps > 0 {
        // SAFETY: the caller brings all lanes here.
        value = value.merge(unsafe { value.shuffle_xor(1) });
    }
    if steps > 1 {
        // SAFETY: as above.
        value = value.merge(unsafe { value.shuffle_xor(2) });
    }
    value
}

/// Merges what the `1 << steps` warps around each warp have; in each of them, all lanes have the same.
///
/// # Safety
/// All threads of the block arrive together, with the same `steps`, at most 3; `shared` is as in [`Grouping::fold`].
#[inline(always)]
pub(super) unsafe fn across_warps<S: Statistic>(place: Place, steps: u32, shared: u32, value: S) -> S {
    if place.lane == 0 {
        // SAFETY: each warp has its own place, below the eighth.
        unsafe { value.put(shared + place.warp * S::WORDS) };
    }
    // SAFETY: the caller brings all threads here.
    unsafe { device::barrier() };
    let first = place.warp >> steps << steps;
    // SAFETY: it was written before the barrier, and the word is not used again.
    let mut value = unsafe { S::get(shared + first * S::WORDS) };
    let mut warp = 1;
    while warp < 1 << steps {
        // SAFETY: it was written before the barrier, and the word is not used again.
        value = value.merge(unsafe { S::get(shared + (first + warp) * S::WORDS) });
        warp += 1;
    }
    value
}

macro_rules! extreme {
    ($name:ident, $fold:path) => {
        impl Statistic for $name {
            const WORDS: u32 = 1;

            #[inline(always)]
            unsafe fn shuffle_xor(self, mask: u32) -> Self {
                // SAFETY: the caller brings all lanes of the warp here.
                Self(unsafe { device::shuffle_xor(self.0, mask) })
            }

            #[inline(always)]
            unsafe fn fold_lanes<const N: usize>(lane: u32, value: impl Fn(usize) -> Self) -> Self {
                // SAFETY: the caller brings all lanes here.
                unsafe {
                    if device::FOLDS {
                        select::<Self, N>(lane, |k| Self($fold(value(k).0)))
                    } else {
                        exchange::<Self, N>(lane, value)
                    }
                }
            }

            #[inline(always)]
            unsafe fn put(self, index: u32) {
                // SAFETY: the caller names words of shared memory that are this thread's.
                unsafe { device::shared_store(index, self.0) }
            }

            #[inline(always)]
            unsafe fn get(index: u32) -> Self {
                // SAFETY: the caller names words of shared memory that were written, a barrier ago.
                Self(unsafe { device::shared_load(index) })
            }
        }
    };
}

extreme!(Max, device::fold_max);
extreme!(Min, device::fold_min);

impl Statistic for Sum {
    const WORDS: u32 = 2;

    #[inline(always)]
    unsafe fn shuffle_xor(self, mask: u32) -> Self {
        // SAFETY: the caller brings all lanes of the warp here.
        Self(unsafe { join([low(self.0), high(self.0)].map(|word| device::shuffle_xor(word, mask))) })
    }

    #[inline(always)]
    unsafe fn put(self, index: u32) {
        // SAFETY: the caller names words of shared memory that are this thread's.
        unsafe {
            device::shared_store(index, low(self.0));
            device::shared_store(index + 1, high(self.0));
        }
    }

    #[inline(always)]
    unsafe fn get(index: u32) -> Self {
        // SAFETY: the caller names words of shared memory that were written, a barrier ago.
        Self(unsafe { join([device::shared_load(index), device::shared_load(index + 1)]) })
    }
}

impl Statistic for () {
    const WORDS: u32 = 0;

    #[inline(always)]
    unsafe fn shuffle_xor(self, _mask: u32) {}

    #[inline(always)]
    unsafe fn put(self, _index: u32) {}

    #[inline(always)]
    unsafe fn get(_index: u32) {}
}

/// Two folds of the same values.
impl<A: Statistic, B: Statistic> Statistic for (A, B) {
    const WORDS: u32 = A::WORDS + B::WORDS;

    #[inline(always)]
    unsafe fn shuffle_xor(self, mask: u32) -> Self {
        // SAFETY: the caller brings all lanes of the warp here.
        unsafe { (self.0.shuffle_xor(mask), self.1.shuffle_xor(mask)) }
    }

    #[inline(always)]
    unsafe fn fold_lanes<const N: usize>(lane: u32, value: impl Fn(usize) -> Self) -> Self {
        // SAFETY: the caller brings all lanes of the warp here.
        unsafe { (A::fold_lanes::<N>(lane, |k| value(k).0), B::fold_lanes::<N>(lane, |k| value(k).1)) }
    }

    #[inline(always)]
    unsafe fn put(self, index: u32) {
        // SAFETY: the caller names words of shared memory that are this thread's.
        unsafe {
            self.0.put(index);
            self.1.put(index + A::WORDS);
        }
    }

    #[inline(always)]
    unsafe fn get(index: u32) -> Self {
        // SAFETY: the caller names words of shared memory that were written, a barrier ago.
        unsafe { (A::get(index), B::get(index + A::WORDS)) }
    }
}
