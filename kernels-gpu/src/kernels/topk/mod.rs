//! Top-k: what its kernels share. Where things are, and how an element becomes a key.

mod block;
mod count;
mod emit;
mod filter;
mod find;
mod histogram;
mod job;
mod narrow;
mod rest;
mod sample;
mod segments;
mod settle;
mod share;
mod sketch;
mod sums;

use crate::arith::float::{MAGNITUDE, bf16_to_f32, canonical, f16_to_f32};
use crate::arith::topk::{BF16_NAN_KEY, F16_NAN_KEY, HALF_MAGNITUDE, NAN_KEY, NO_HALF_KEY, NO_KEY, key};
use crate::device::{self, WARP};
use crate::params::{SelectParams, TILE, dtype, segment, select_flags};

/// Warps of a block.
const WARPS: u32 = 8;
/// Elements of a warp, of kernels whose block takes a tile.
const WARP_TILE: u32 = TILE / WARPS;
/// Elements of a lane, there: slot `j` of lane `i` is the warp's element `32 j + i`.
const SLOTS: usize = (WARP_TILE / WARP) as usize;

/// The kernels' buffers, in the order in which they take them.
#[derive(Clone, Copy)]
struct Buffers {
    /// The gradient, in its own type.
    input: *const u8,
    /// The residual.
    residual: *mut f32,
    /// Everything between passes.
    workspace: *mut u32,
    /// Which entries are kept.
    indices: *mut u32,
    /// The bits of their values.
    values: *mut u32,
}

/// An element as it is stored among the candidates: a half as it is, anything else as f32.
#[derive(Clone, Copy)]
struct Raw(u32);

impl Raw {
    /// As f32, with a NaN's bits kept.
    #[inline(always)]
    fn bits(self, p: &SelectParams) -> u32 {
        if p.is_half() { self.bits_of(p.dtype) } else { self.0 }
    }

    /// The same, of what is stored as a type.
    #[inline(always)]
    fn bits_of(self, stored: u32) -> u32 {
        match stored {
            dtype::F32 => self.0,
            dtype::F16 => f16_to_f32(self.0 as u16).to_bits(),
            _ => bf16_to_f32(self.0 as u16).to_bits(),
        }
    }
}

/// How elements are ordered: `arith::topk::key`, and for halves the same in 16 bits.
#[derive(Clone, Copy)]
struct Order {
    magnitude: u32,
    nan: u32,
}

impl Order {
    /// The order of what is stored as a type.
    #[inline(always)]
    fn of(stored: u32) -> Self {
        match stored {
            dtype::F32 => Self { magnitude: MAGNITUDE, nan: NAN_KEY },
            stored => {
                let nan = if stored == dtype::F16 { F16_NAN_KEY } else { BF16_NAN_KEY };
                Self { magnitude: HALF_MAGNITUDE, nan }
            }
        }
    }

    #[inline(always)]
    fn key(self, raw: Raw) -> u32 {
        (raw.0 & self.magnitude).min(self.nan)
    }
}

impl SelectParams {
    /// Whether candidates are stored as halves.
    #[inline(always)]
    fn is_half(&self) -> bool {
        self.dtype != dtype::F32 && !self.has(select_flags::FEEDBACK)
    }

    /// Bytes of an element that is filtered, as it is stored among the candidates.
    #[inline(always)]
    fn stored_bytes(&self) -> usize {
        if self.is_half() { 2 } else { 4 }
    }

    /// What is above every key.
    #[inline(always)]
    fn no_key(&self) -> u32 {
        if self.is_half() { NO_HALF_KEY } else { NO_KEY }
    }

    /// Whether the sum of each 32 bins of a histogram is kept beside it. Whoever narrows down then reads up to 6 KB
    /// less; but all tiles add to the same 64 words, and where there are many tiles that takes longer than reading. Of
    /// several segments a block's warps read a histogram each.
    #[inline(always)]
    fn keeps_sums(&self) -> bool {
        self.segments > 1 || self.all_tiles < 512
    }

    #[inline(always)]
    fn order(&self) -> Order {
        if self.is_half() { Order::of(self.dtype) } else { Order::of(dtype::F32) }
    }
}

/// What was sent last of a segment, and is yet to be taken off its residual.
#[derive(Clone, Copy)]
struct Sent {
    key: u32,
    index: u32,
}

impl Sent {
    const NOTHING: Self = Self { key: NO_KEY, index: 0 };

    /// # Safety
    /// The segment is in the table.
    #[inline(always)]
    unsafe fn load(p: &SelectParams, b: &Buffers, index: u32) -> Self {
        let mut sent = Self::NOTHING;
        if p.has(select_flags::LAZY) {
            let table = index * segment::WORDS;
            // SAFETY: the caller ensures that the segment is in the table.
            unsafe {
                sent.key = *b.word(table + segment::SENT_KEY);
                sent.index = *b.word(table + segment::SENT_INDEX);
            }
        }
        sent
    }

    /// What is left of an element of the residual.
    #[inline(always)]
    fn taken_off(self, residual: f32, element: u32) -> f32 {
        let key = key(residual.to_bits());
        if key > self.key || (key == self.key && element <= self.index) { 0.0 } else { residual }
    }
}

impl Buffers {
    /// An element of the gradient; with feedback, of the sum that is to be.
    ///
    /// # Safety
    /// `at` is below `p.bound`.
    #[inline(always)]
    unsafe fn fresh(&self, p: &SelectParams, sent: Sent, at: usize) -> Raw {
        let raw = if p.dtype == dtype::F32 {
            // SAFETY: the caller ensures that `at` is below `p.bound`.
            unsafe { *self.input.cast::<u32>().add(at) }
        } else {
            // SAFETY: the caller ensures that `at` is below `p.bound`.
            u32::from(unsafe { *self.input.cast::<u16>().add(at) })
        };
        if !p.has(select_flags::FEEDBACK) {
            return Raw(raw);
        }
        // SAFETY: the caller ensures that `at` is below `p.bound`.
        self.summed(p, sent, at as u32, raw, unsafe { *self.residual.add(at) })
    }

    /// The sum that is to be, of an element as it is stored and its residual.
    #[inline(always)]
    fn summed(&self, p: &SelectParams, sent: Sent, at: u32, raw: u32, mut residual: f32) -> Raw {
        let value = match p.dtype {
            dtype::F32 => f32::from_bits(raw),
            dtype::F16 => device::half_to_f32(raw as u16),
            _ => bf16_to_f32(raw as u16),
        };
        if p.has(select_flags::LAZY) {
            residual = sent.taken_off(residual, p.first + at);
        }
        Raw(canonical(value + residual).to_bits())
    }

    /// What is filtered where it is read as it is: with feedback, what is filtered again is the sum that the residual
    /// holds.
    #[inline(always)]
    fn filtered<const AGAIN: bool>(&self, p: &SelectParams) -> *const u8 {
        if AGAIN && p.has(select_flags::FEEDBACK) { self.residual.cast_const().cast() } else { self.input }
    }

    /// An element after the filter: with feedback, the residual holds the sum.
    ///
    /// # Safety
    /// As [`Buffers::fresh`].
    #[inline(always)]
    unsafe fn settled(&self, p: &SelectParams, at: usize) -> Raw {
        if p.has(select_flags::FEEDBACK) {
            // SAFETY: the caller ensures that `at` is below `p.bound`.
            return Raw(unsafe { *self.residual.add(at) }.to_bits());
        }
        // SAFETY: the caller's; without feedback there is no other element.
        unsafe { self.fresh(p, Sent::NOTHING, at) }
    }

    /// A word of the workspace.
    ///
    /// # Safety
    /// It is there.
    #[inline(always)]
    unsafe fn word(&self, at: u32) -> *mut u32 {
        // SAFETY: the caller ensures that the word is there.
        unsafe { self.workspace.add(at as usize) }
    }

    /// A candidate, of the array that begins at word `array`.
    ///
    /// # Safety
    /// It is there, and was stored.
    #[inline(always)]
    unsafe fn stored(&self, p: &SelectParams, array: u32, at: u32) -> Raw {
        // SAFETY: the caller's; a half takes half a word.
        unsafe {
            let array = self.word(array);
            if p.is_half() {
                Raw(u32::from(*array.cast::<u16>().add(at as usize)))
            } else {
                Raw(*array.add(at as usize))
            }
        }
    }

    /// The segment that a tile belongs to: the last one whose first tile is not after it.
    ///
    /// # Safety
    /// The table is there.
    #[inline(always)]
    unsafe fn segment_of(&self, p: &SelectParams, tile: u32) -> u32 {
        let (mut first, mut behind) = (0, p.segments);
        while behind - first > 1 {
            let middle = (first + behind) / 2;
            // SAFETY: `middle` is below the number of segments.
            if unsafe { *self.word(middle * segment::WORDS + segment::FIRST_TILE) } <= tile {
                first = middle;
            } else {
                behind = middle;
            }
        }
        first
    }
}

/// The elements of a tile. Tiles begin at multiples of 32 elements, whatever a segment begins at, so that what a warp
/// reads together lies in as few sectors as can be.
#[derive(Clone, Copy)]
struct Extent {
    /// The element that has place 0, which may lie before the segment.
    base: u32,
    /// The first element that is there.
    start: u32,
    /// The first that is not any more.
    end: u32,
}

impl Extent {
    #[inline(always)]
    fn new(start: u32, elements: u32, tile_of_segment: u32) -> Self {
        let base = start / WARP * WARP + tile_of_segment * TILE;
        let end = start + elements;
        Self { base, start: base.max(start), end: end.min(base + TILE) }
    }

    /// Whether all places are there.
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.end - self.start == TILE
    }

    /// Which slots of a lane are there whose first element is `first`: a bit a slot, which is a register for all.
    #[inline(always)]
    fn slots(&self, first: u32) -> u32 {
        let up_to = |element: u32| {
            let slots = element.saturating_sub(first).div_ceil(WARP).min(SLOTS as u32);
            ((1u64 << slots) - 1) as u32
        };
        up_to(self.end) & !up_to(self.start)
    }

    /// Which of a lane's [`SLOTS`] elements beside each other are there, from `first` on: a bit each, the first one's
    /// highest.
    #[inline(always)]
    fn bits(&self, first: u32) -> u32 {
        let up_to = |element: u32| (!0u64 << (WARP - element.saturating_sub(first).min(WARP))) as u32;
        up_to(self.end) & !up_to(self.start)
    }
}

/// This lane's elements of a tile that its block shares: slot `j` is the element `32 j` after `first`, if `slots` has
/// the bit or with `FULL`. With feedback, gradient + residual less what was sent, and the residual becomes that sum.
///
/// # Safety
/// A tile's elements are bound, and no other block's.
#[inline(always)]
unsafe fn load<const FULL: bool>(p: &SelectParams, b: &Buffers, sent: Sent, slots: u32, first: u32) -> [Raw; SLOTS] {
    let there = |slot: usize| FULL || slots >> slot & 1 != 0;
    let at = |slot: usize| (first - p.first) as usize + slot * WARP as usize;
    let mut raws = [0; SLOTS];
    // All loads stand before the first use of one, so that they are in flight together; and what depends on the type
    // stands around loops, not in them.
    if p.dtype == dtype::F32 {
        for slot in 0..SLOTS {
            if there(slot) {
                // SAFETY: the caller's, as the element is there.
                raws[slot] = unsafe { *b.input.cast::<u32>().add(at(slot)) };
            }
        }
    } else {
        for slot in 0..SLOTS {
            if there(slot) {
                // SAFETY: as above.
                raws[slot] = u32::from(unsafe { *b.input.cast::<u16>().add(at(slot)) });
            }
        }
        if p.is_half() {
            return raws.map(Raw);
        }
        if p.dtype == dtype::F16 {
            raws = raws.map(|half| device::half_to_f32(half as u16).to_bits());
        } else {
            raws = raws.map(|half| half << 16);
        }
    }
    if p.has(select_flags::FEEDBACK) {
        const AHEAD: usize = 8;
        for batch in 0..SLOTS / AHEAD {
            let mut residual = [0.0; AHEAD];
            for k in 0..AHEAD {
                if there(batch * AHEAD + k) {
                    // SAFETY: as above; a lane reads no element but its own, which it writes below.
                    residual[k] = unsafe { *b.residual.add(at(batch * AHEAD + k)) };
                }
            }
            if p.has(select_flags::LAZY) {
                for k in 0..AHEAD {
                    residual[k] = sent.taken_off(residual[k], first + ((batch * AHEAD + k) as u32) * WARP);
                }
            }
            for k in 0..AHEAD {
                let slot = batch * AHEAD + k;
                if there(slot) {
                    let sum = canonical(f32::from_bits(raws[slot]) + residual[k]);
                    raws[slot] = sum.to_bits();
                    // SAFETY: as above.
                    unsafe { *b.residual.add(at(slot)) = sum };
                }
            }
        }
    }
    raws.map(Raw)
}

/// The sum over the lanes of a warp, in every lane.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn sum(value: u32) -> u32 {
    // SAFETY: the caller brings all lanes here.
    unsafe { device::fold_sum(value) }
}

/// The sum over the lanes up to this one.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn prefix(mut value: u32) -> u32 {
    // Or what depends on the lane alone is computed once a kernel, and kept in registers all the way.
    let lane = device::opaque(device::thread() % WARP);
    for step in 0..5 {
        let by = 1 << step;
        // SAFETY: the caller brings all lanes here.
        let other = unsafe { device::shuffle_up(value, by) };
        value += if lane >= by { other } else { 0 };
    }
    value
}
