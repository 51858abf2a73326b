//! What a block of the filter has to do: one warp finds out and leaves it in shared memory for all.

use super::sample::guessed;
use super::{Buffers, Extent, Order, sums};
use crate::arith::float::MAGNITUDE;
use crate::arith::topk::HALF_MAGNITUDE;
use crate::device::{self, WARP};
use crate::params::{SelectParams, TILE, TILES_AGAIN, segment, select_flags, state};

/// Words of shared memory, four at a time.
const KEYS: u32 = 0;
const PLACE: u32 = 4;
const REST: u32 = 8;
/// Words of a segment that are read, and of its state.
const WORDS: u32 = 8;

/// The first word after the job's.
pub(super) const BEHIND: u32 = 12;

/// What a block has to do.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// Keys from which on elements are candidates, and are sure, in this tile;
    pub(super) floor: u32,
    pub(super) sure: u32,
    /// and the lowest one that the last kept one may have, in the whole segment.
    pub(super) base: u32,
    /// The segment.
    pub(super) index: u32,
    /// The element that has place 0.
    pub(super) first: u32,
    /// Bits, as below.
    is: u32,
    /// What is added to twice an element, so that it carries if that is looked for: a candidate, or of the key below.
    pub(super) less: u32,
    /// How elements are ordered.
    pub(super) nan: u32,
}

/// The tile is filtered in this pass.
const WANTED: u32 = 1;
/// Its elements are halves.
const HALF: u32 = 2;
/// It can be copied as it is, 16 bytes at a time.
const WHOLE: u32 = 4;
/// The segment's floor was fixed.
const FIXED: u32 = 8;
/// Everything is looked for.
const ALL: u32 = 1 << 31;

/// 16 bytes, as they are read together.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Chunk(pub(super) [u32; 4]);

impl Job {
    /// Finds out what is to be done with a tile.
    ///
    /// # Safety
    /// All lanes of one warp arrive together, a barrier after the last use of the words. Table and guesses are there;
    /// with `AGAIN` states, counts and their sums.
    #[inline(always)]
    pub(super) unsafe fn find<const AGAIN: bool>(p: &SelectParams, b: &Buffers, tile: u32) {
        let lane = device::thread() % WARP;
        // SAFETY: the caller's. A few sectors, read once a block.
        unsafe {
            let index = if p.segments > 1 { b.segment_of(p, tile) } else { 0 };
            // A lane a word of the table, and a lane a word of the state, where there is one already. No more: other
            // blocks add to the second half of the state.
            let mut word = 0;
            if lane < WORDS {
                word = *b.word(index * segment::WORDS + lane);
            } else if AGAIN && lane < 2 * WORDS {
                word = *b.word(p.states + index * state::WORDS + (lane - WORDS));
            }
            let table = |at: u32| device::shuffle(word, at);
            let state = |at: u32| device::shuffle(word, WORDS + at);
            let [low, high] = if AGAIN { [state(state::FLOOR), state(state::SURE)] } else { guessed(p, b, index) };
            let is_fixed = table(segment::FIXED);
            let mut floor = if is_fixed != 0 { table(segment::FLOOR) } else { !low };
            let mut sure = if is_fixed != 0 { floor } else { high.max(floor) };
            let (start, elements) = (table(segment::START), table(segment::ELEMENTS));
            let of_segment = tile - table(segment::FIRST_TILE);
            let left = (start % WARP + elements).div_ceil(TILE) - of_segment;
            let is_wanted = if AGAIN { state(state::AGAIN) == 1 } else { table(segment::UNSAMPLED) == 0 };
            let (base, top) = (floor, sure);
            if AGAIN && is_wanted {
                // As the sketch has it, the tile's own keys. Entries of it in the segment's tiles: up to this one, of
                // the higher rank's key, and before it, of the lower's.
                let own = p.states + index * state::WORDS;
                let [high, low] = sums::between(p, b, true, tile - of_segment, tile);
                let high = high + *b.word(p.counts + 2 * tile);
                floor = base + u32::from(low >= *b.word(own + state::TIES));
                sure = (top - u32::from(high <= *b.word(own + state::HIGH_RANK))).max(floor);
            }
            let extent = Extent::new(start, elements, of_segment);
            // What is below this is neither a candidate nor of the key below. Exact, as every NaN has the highest key:
            // where that is below it, nothing is looked for.
            let least = floor.saturating_sub(u32::from(!AGAIN));
            let order = p.order();
            let less = if least > order.nan { 0 } else { (least << order.magnitude.leading_zeros()).wrapping_neg() };
            // What is summed up on the way, a lane takes one by one.
            let at = b.filtered::<AGAIN>(p).addr() + (extent.base.wrapping_sub(p.first) as usize * p.stored_bytes());
            let is_whole =
                extent.is_full() && (AGAIN || !p.has(select_flags::FEEDBACK)) && at.is_multiple_of(align_of::<Chunk>());
            let flag = |is: bool, flag: u32| if is { flag } else { 0 };
            let is = flag(is_wanted, WANTED)
                | flag(p.is_half(), HALF)
                | flag(is_whole, WHOLE)
                | flag(is_fixed != 0, FIXED)
                | flag(least == 0, ALL);
            if lane == 0 {
                device::shared_store_four::<KEYS>([floor, sure, base, index]);
                device::shared_store_four::<PLACE>([extent.base, is, less, order.nan]);
                device::shared_store_four::<REST>([extent.start, extent.end, left, top]);
            }
        }
    }

    /// What was found out.
    ///
    /// # Safety
    /// It was, a barrier ago.
    #[inline(always)]
    pub(super) unsafe fn known() -> Self {
        // SAFETY: nothing writes the words before the next job.
        let ([floor, sure, base, index], [first, is, less, nan]) =
            unsafe { (device::shared_load_four::<KEYS>(), device::shared_load_four::<PLACE>()) };
        Self { floor, sure, base, index, first, is, less, nan }
    }

    /// Whether the tile is filtered in this pass.
    #[inline(always)]
    pub(super) fn is_wanted(&self) -> bool {
        self.is & WANTED != 0
    }

    /// Whether its elements are halves.
    #[inline(always)]
    pub(super) fn is_half(&self) -> bool {
        self.is & HALF != 0
    }

    /// Whether it can be copied as it is, 16 bytes at a time: all of it is there, and aligned.
    #[inline(always)]
    pub(super) fn is_whole(&self) -> bool {
        self.is & WHOLE != 0
    }

    /// Whether the segment's floor was fixed.
    #[inline(always)]
    pub(super) fn is_fixed(&self) -> bool {
        self.is & FIXED != 0
    }

    /// Whether everything is looked for.
    #[inline(always)]
    pub(super) fn is_all(&self) -> bool {
        self.is & ALL != 0
    }

    /// How its elements are ordered.
    #[inline(always)]
    pub(super) fn order<const HALVES: bool>(&self) -> Order {
        Order { magnitude: if HALVES { HALF_MAGNITUDE } else { MAGNITUDE }, nan: self.nan }
    }

    /// The key above all that the last kept one may have, in the whole segment.
    ///
    /// # Safety
    /// As [`Job::known`].
    #[inline(always)]
    pub(super) unsafe fn top(&self) -> u32 {
        // SAFETY: the caller ensures that the job was found a barrier ago.
        let [.., top] = unsafe { device::shared_load_four::<REST>() };
        top
    }

    /// The tile's elements.
    ///
    /// # Safety
    /// As [`Job::known`].
    #[inline(always)]
    pub(super) unsafe fn extent(&self) -> Extent {
        // SAFETY: the caller ensures that the job was found a barrier ago.
        let [start, end, ..] = unsafe { device::shared_load_four::<REST>() };
        Extent { base: self.first, start, end }
    }

    /// How many tiles the filter that goes over several of them is done with.
    ///
    /// # Safety
    /// As [`Job::known`].
    #[inline(always)]
    pub(super) unsafe fn done(&self) -> u32 {
        // SAFETY: the caller ensures that the job was found a barrier ago.
        let [_, _, left, _] = unsafe { device::shared_load_four::<REST>() };
        if self.is_wanted() { 1 } else { left.min(TILES_AGAIN) }
    }
}
