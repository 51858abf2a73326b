//! A segment with its state, and the tiles that a warp goes over.

use super::{Buffers, Extent, WARPS, narrow};
use crate::device::{self, WARP};
use crate::params::{SelectParams, TILE, segment, state};

/// Where a block shares a segment: its words of table and state, then its number.
const INDEX: u32 = WARP;

/// A segment with its state, as a warp knows it.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) index: u32,
    pub(super) start: u32,
    pub(super) elements: u32,
    pub(super) first_tile: u32,
    pub(super) output: u32,
    pub(super) floor: u32,
    pub(super) sure: u32,
    pub(super) again: u32,
    pub(super) source: u32,
    pub(super) base: u32,
    pub(super) span: u32,
    pub(super) left: u32,
    pub(super) cut: u32,
    pub(super) ties: u32,
    pub(super) high_base: u32,
    pub(super) high_span: u32,
}

const _: () = assert!(segment::WORDS == state::WORDS && segment::WORDS + state::WORDS == WARP);

impl Segment {
    /// The segment of a tile, as the last pass left it. What was sent of it is not read: the kernel that asks writes
    /// that.
    ///
    /// # Safety
    /// All lanes arrive together, with one tile. Table and states are there.
    #[inline(always)]
    pub(super) unsafe fn load(p: &SelectParams, b: &Buffers, tile: u32) -> Self {
        let lane = device::thread() % WARP;
        // SAFETY: the caller brings all lanes here, and table and states are there.
        unsafe {
            let index = b.segment_of(p, tile);
            let mut own = 0;
            if !(segment::SENT_KEY..segment::WORDS).contains(&lane) {
                own = word(p, b, index);
            }
            Self::of_word(index, own)
        }
    }

    /// The segment of a tile, narrowed down as this pass has it. Where the tile is its first, that is left for the
    /// next.
    ///
    /// # Safety
    /// As [`Segment::load`]; no other warp takes the tile.
    #[inline(always)]
    pub(super) unsafe fn now(p: &SelectParams, b: &Buffers, tile: u32) -> Self {
        // SAFETY: the caller brings all lanes here, table and states are there, and no other warp takes the tile.
        unsafe {
            let index = b.segment_of(p, tile);
            let before = word(p, b, index);
            let leaves = device::shuffle(before, segment::FIRST_TILE) == tile;
            Self::of_word(index, narrow::now::<true>(p, b, index, before, leaves))
        }
    }

    /// As [`Segment::now`], for a block. Without `NARROWS` its source alone is as this pass has it, and nothing is left
    /// for the next.
    ///
    /// # Safety
    /// All threads of the block arrive together, with one tile. The first 33 words of shared memory are free. With
    /// `NARROWS` no other block takes the tile.
    #[inline(always)]
    pub(super) unsafe fn of_block<const NARROWS: bool>(p: &SelectParams, b: &Buffers, tile: u32) -> Self {
        let lane = device::thread() % WARP;
        // SAFETY: the caller's. A warp is as good as another.
        unsafe {
            // What the words held before was read.
            device::barrier();
            if device::thread() < WARP {
                let index = b.segment_of(p, tile);
                let before = word(p, b, index);
                let leaves = NARROWS && device::shuffle(before, segment::FIRST_TILE) == tile;
                device::shared_store(lane, narrow::now::<NARROWS>(p, b, index, before, leaves));
                if lane == 0 {
                    device::shared_store(INDEX, index);
                }
            }
            device::barrier();
            Self::of_word(device::shared_load(INDEX), device::shared_load(lane))
        }
    }

    /// The segment of a warp's first tile, where that of its block's is known.
    ///
    /// # Safety
    /// As [`Segment::now`].
    #[inline(always)]
    pub(super) unsafe fn of_warp(self, p: &SelectParams, b: &Buffers, tile: u32) -> Self {
        if self.has(tile) {
            return self;
        }
        // SAFETY: the caller keeps the contract of `now`.
        unsafe { Self::now(p, b, tile) }
    }

    /// From a lane's word: one of the table, of the lower lanes, and one of the state.
    ///
    /// # Safety
    /// All lanes arrive together, with one segment.
    #[inline(always)]
    unsafe fn of_word(index: u32, word: u32) -> Self {
        // SAFETY: the caller brings all lanes here.
        let [table, state] =
            [0, segment::WORDS].map(|first| move |at: u32| unsafe { device::shuffle(word, first + at) });
        let floor = !state(state::FLOOR);
        Self {
            index,
            start: table(segment::START),
            elements: table(segment::ELEMENTS),
            first_tile: table(segment::FIRST_TILE),
            output: table(segment::OUTPUT),
            floor,
            sure: state(state::SURE).max(floor),
            again: state(state::AGAIN),
            source: state(state::SOURCE),
            base: state(state::BASE),
            span: state(state::SPAN),
            left: state(state::LEFT),
            cut: state(state::CUT),
            ties: state(state::TIES),
            high_base: state(state::HIGH_BASE),
            high_span: state(state::HIGH_SPAN),
        }
    }

    /// Whether a tile is its, that lies no further to the front than one that is.
    #[inline(always)]
    pub(super) fn has(&self, tile: u32) -> bool {
        self.extent(tile).base < self.start + self.elements
    }

    /// Tiles from this one on to the segment's end.
    #[inline(always)]
    pub(super) fn tiles_from(&self, tile: u32) -> u32 {
        (self.start % WARP + self.elements).div_ceil(TILE) - (tile - self.first_tile)
    }

    #[inline(always)]
    pub(super) fn extent(&self, tile: u32) -> Extent {
        Extent::new(self.start, self.elements, tile - self.first_tile)
    }
}

/// A lane's word of a segment: of the table in the lower lanes, of the state in the upper.
///
/// # Safety
/// The segment is in the table.
#[inline(always)]
unsafe fn word(p: &SelectParams, b: &Buffers, index: u32) -> u32 {
    let lane = device::thread() % WARP;
    let from = if lane < segment::WORDS { 0 } else { p.states - segment::WORDS };
    // SAFETY: the caller ensures that the segment is in the table.
    unsafe { *b.word(from + index * segment::WORDS + lane) }
}

/// What the filter left of a tile.
#[derive(Clone, Copy)]
pub(super) struct Info {
    /// Its first candidate, or nowhere.
    pub(super) first: u32,
    pub(super) candidates: u32,
    pub(super) band: u32,
    /// Elements of the key below the candidates'; of a tile that was filtered again, whether those of the highest key
    /// that the last kept one may be are sure.
    pub(super) below: u32,
}

/// The first of a block's tiles that is this warp's, counted from the launch's first, where a warp takes `each` of
/// them.
#[inline(always)]
pub(super) fn first_of_warp(block: u32, each: u32) -> u32 {
    (block * WARPS + device::thread() / WARP) * each
}

/// Calls `work` for the tiles of a block that are this warp's, `each` of them and 8 at most, one after another, from
/// the first one on, whose segment is `segment`. With `NOW` the segments are narrowed down.
///
/// # Safety
/// As [`Segment::load`], or [`Segment::now`]; the filter ran over the tiles.
#[inline(always)]
pub(super) unsafe fn each_tile<const NOW: bool>(
    p: &SelectParams,
    b: &Buffers,
    block: u32,
    each: u32,
    mut segment: Segment,
    mut work: impl FnMut(&Segment, u32, Info),
) {
    let lane = device::thread() % WARP;
    let first = first_of_warp(block, each);
    if first >= p.tiles {
        return;
    }
    let count = (p.tiles - first).min(each);
    // SAFETY: the caller's; 4 words per tile, and no more tiles than there are.
    let words = unsafe {
        let at = lane.min(4 * count - 1);
        *b.word(p.info + 4 * (p.first_tile + first) + at)
    };
    let mut at = 0;
    while at < count {
        let tile = p.first_tile + first + at;
        // Tiles of a segment follow one another; most often there is one segment.
        if !segment.has(tile) {
            // SAFETY: the caller's: the tile is the same in all lanes.
            segment = unsafe { if NOW { Segment::now(p, b, tile) } else { Segment::load(p, b, tile) } };
        }
        // SAFETY: all lanes are here.
        let info = unsafe {
            Info {
                first: device::shuffle(words, 4 * at),
                candidates: device::shuffle(words, 4 * at + 1),
                band: device::shuffle(words, 4 * at + 2),
                below: device::shuffle(words, 4 * at + 3),
            }
        };
        work(&segment, tile, info);
        at += 1;
    }
}
