//! What the filter finds in a tile: how a lane's candidates become the block's, in their order.
//!
//! Few elements are candidates, and the work on an element is what a filter's time goes to. So each element is read, kept in
//! shared memory, and compared once, by five instructions; a lane then looks at those that passed; and the lanes of a
//! warp share out what all of them found, rank by rank, so that neighbours store beside each other.

use super::filter::{COUNTS, Job};
use super::{Buffers, Order, Raw, SLOTS, Sent, WARP_TILE, WARPS, load, prefix, sum};
use crate::arith::float::MAGNITUDE;
use crate::device::{self, TILE_ROWS, WARP};
use crate::params::{SelectParams, select_flags};

/// Reads the tile, keeps its elements in the block's shared memory, and gives a bit for each slot of the lane that may be a
/// candidate or of the key below.
///
/// # Safety
/// All lanes arrive together; the tile's elements are bound, and no other block's. No other thread uses the lane's words.
#[inline(always)]
pub(super) unsafe fn keep<const FULL: bool, const AGAIN: bool>(p: &SelectParams, b: &Buffers, job: &Job) -> u32 {
    let place = device::thread() / WARP * WARP_TILE + device::thread() % WARP;
    let first = job.extent.base + place;
    let slots = job.extent.slots(first);
    let there = |slot: usize| FULL || slots >> slot & 1 != 0;
    let raws = if AGAIN && p.has(select_flags::FEEDBACK) {
        let mut raws = [Raw(0); SLOTS];
        for slot in 0..SLOTS {
            if there(slot) {
                let at = (first - p.first) as usize + slot * WARP as usize;
                // SAFETY: a tile's elements are bound.
                raws[slot] = unsafe { b.settled(p, at) };
            }
        }
        raws
    } else {
        // SAFETY: as above, and each tile is one block's.
        unsafe { load::<FULL>(p, b, Sent::load(p, b, job.index), slots, first) }
    };
    let magnitude = p.order().magnitude;
    // A NaN may be above the key it is ordered as, so that this asks for no more than is true of all that are looked for.
    // Opaque, or the compiler finds that the bit below is a comparison, and makes it one.
    let least = device::opaque(job.floor.saturating_sub(u32::from(!AGAIN)).min(MAGNITUDE));
    let mut less = 0;
    for batch in (0..SLOTS / TILE_ROWS).rev() {
        let rows = core::array::from_fn(|k| raws[batch * TILE_ROWS + k].0);
        // SAFETY: the words are this lane's.
        unsafe { device::tile_store(place + (batch * TILE_ROWS) as u32 * WARP, rows) };
        for k in (0..TILE_ROWS).rev() {
            // Both are below 2^31: the difference's highest bit, shifted in by one instruction.
            less = less << 1 | (rows[k] & magnitude).wrapping_sub(least) >> 31;
        }
    }
    if FULL { !less } else { !less & slots }
}

/// What a lane or its warp has found.
pub(super) struct Found {
    /// The lane's candidates, a bit a slot;
    pub(super) slots: u32,
    /// and the warp's: how many they are, how many are of the band, and how many have the key below.
    pub(super) candidates: u32,
    pub(super) band: u32,
    pub(super) below: u32,
}

/// Looks at the slots of the lane that may be candidates, which are few.
///
/// # Safety
/// All lanes arrive together, behind [`keep`].
#[inline(always)]
pub(super) unsafe fn look<const AGAIN: bool>(order: Order, job: &Job, found: u32) -> Found {
    let place = device::thread() / WARP * WARP_TILE + device::thread() % WARP;
    let below_key = job.floor.wrapping_sub(1);
    let (mut slots, mut left) = (found, found);
    // Two counts in a word, as no warp has 2^16 elements.
    let (mut counts, mut below) = (0, 0);
    while left != 0 {
        let slot = left.trailing_zeros();
        left &= left - 1;
        // SAFETY: the word is this lane's.
        let key = order.key(Raw(unsafe { device::tile_load(place + slot * WARP) }));
        let is = key >= job.floor;
        slots ^= u32::from(!is) << slot;
        counts += u32::from(is && key < job.sure) << 16;
        if !AGAIN {
            below += u32::from(key == below_key);
        }
    }
    counts += slots.count_ones();
    // SAFETY: all lanes are here; most often no lane has one of the key below.
    unsafe {
        counts = sum(counts);
        if !AGAIN && device::ballot(below != 0) != 0 {
            below = sum(below);
        }
    }
    Found { slots, candidates: counts & 0xffff, band: counts >> 16, below }
}

/// What the block has found, and the warps before this one.
pub(super) struct Counts {
    pub(super) candidates: u32,
    pub(super) band: u32,
    pub(super) below: u32,
    pub(super) candidates_before: u32,
    pub(super) band_before: u32,
}

/// Tells the other warps what this one has found, and is told.
///
/// # Safety
/// All threads of the block arrive together; the words of shared memory were used a barrier ago.
#[inline(always)]
pub(super) unsafe fn share(own: &Found) -> Counts {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    // SAFETY: the caller's; nothing writes the words between the barrier and the next.
    unsafe {
        if lane == 0 {
            device::shared_store(COUNTS + warp, own.candidates | own.band << 16);
            device::shared_store(COUNTS + WARPS + warp, own.below);
        }
        device::barrier();
        let other = lane % WARPS;
        let mut all = device::shared_load(COUNTS + other);
        let mut below = device::shared_load(COUNTS + WARPS + other);
        let mut before = if other < warp { all } else { 0 };
        for step in 0..WARPS.trailing_zeros() {
            all += device::shuffle_xor(all, 1 << step);
            before += device::shuffle_xor(before, 1 << step);
            below += device::shuffle_xor(below, 1 << step);
        }
        Counts {
            candidates: all & 0xffff,
            band: all >> 16,
            below,
            candidates_before: before & 0xffff,
            band_before: before >> 16,
        }
    }
}

/// A warp's candidates by slot, in which order their elements come: each lane holds a slot's.
pub(super) struct Rows {
    /// A bit a lane;
    lanes: u32,
    /// and how many there are in this slot and before it.
    behind: u32,
}

impl Rows {
    /// From a bit a slot of each lane.
    ///
    /// # Safety
    /// All lanes arrive together.
    #[inline(always)]
    pub(super) unsafe fn new(slots: u32) -> Self {
        let lane = device::opaque(device::thread() % WARP);
        let mut lanes = slots;
        // A matrix of bits changes its rows for its columns: in squares of 32, two of the four squares of half the side change
        // places, and in each of the four the same is done.
        let mut kept = !0;
        for half in 1..6 {
            let step = WARP >> half;
            kept ^= kept << step;
            let is_lower = lane & step == 0;
            // SAFETY: the caller's.
            let other = unsafe { device::shuffle_xor(lanes, step) };
            // To the left by the step, or to the right: what goes round lands among the bits that are kept.
            let moved = other.rotate_left(if is_lower { step } else { WARP - step });
            let kept = if is_lower { kept } else { !kept };
            lanes = lanes & kept | moved & !kept;
        }
        // SAFETY: the caller's.
        let behind = unsafe { prefix(lanes.count_ones()) };
        Self { lanes, behind }
    }

    /// The place, in the warp's part of the tile, of the candidate before which there are `rank`; any place, if there is none.
    ///
    /// # Safety
    /// All lanes arrive together.
    #[inline(always)]
    pub(super) unsafe fn find(&self, rank: u32) -> u32 {
        let mut slot = 0;
        for half in 1..6 {
            let step = WARP >> half;
            // SAFETY: the caller's.
            let behind = unsafe { device::shuffle(self.behind, slot + step - 1) };
            slot += if behind <= rank { step } else { 0 };
        }
        // SAFETY: the caller's.
        let (lanes, behind) = unsafe { (device::shuffle(self.lanes, slot), device::shuffle(self.behind, slot)) };
        let of_slot = rank + lanes.count_ones() - behind;
        // The last bit with no more bits below it than that: what is shifted out is not below.
        let mut out = WARP;
        for half in 1..6 {
            let step = WARP >> half;
            let below = lanes << ((out - step) % WARP);
            out -= if below.count_ones() <= of_slot { step } else { 0 };
        }
        slot * WARP + WARP - out
    }
}
