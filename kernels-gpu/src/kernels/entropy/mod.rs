//! Elias codes: of codes of fixed width, and back.
//!
//! A block takes 256 units of 256 codes. A warp takes 32 of them in turn, a lane 8 codes; what a whole unit needs comes from sums
//! over the warp.

mod measure;
mod offsets;
mod read;
mod sums;
mod write;

use super::codes;
use crate::arith::elias::{BLOCK_UNITS, exponent, level_of, rest_bits, unary_bits};
use crate::arith::pack::{SLOTS, unit_bytes};
use crate::device::{self, WARP};
use crate::params::EliasParams;

/// Words of a unit's Elias codes, at most: as many as a warp has of the block's bins.
const UNIT_WORDS: u32 = 256;

const _: () = assert!(UNIT_WORDS * BLOCK_UNITS / WARP == device::BINS, "each of eight warps has a unit's words");

/// The buffers of the kernels.
#[derive(Clone, Copy)]
struct Buffers {
    codes: *mut u8,
    values: *mut u32,
    workspace: *mut u32,
    status: *mut u32,
}

/// A thread's place, and the units of its warp.
#[derive(Clone, Copy)]
struct Place {
    lane: u32,
    warp: u32,
    /// The block's first unit.
    first: u32,
}

impl Place {
    #[inline(always)]
    fn here() -> Self {
        let thread = device::thread();
        Self { lane: thread % WARP, warp: thread / WARP, first: device::block() * BLOCK_UNITS }
    }

    /// The warp's first unit.
    #[inline(always)]
    fn unit(self) -> u32 {
        self.first + self.warp * WARP
    }

    /// How many of the warp's units there are.
    #[inline(always)]
    fn count(self, p: &EliasParams) -> u32 {
        let left = p.units.saturating_sub(self.unit());
        if left < WARP { left } else { WARP }
    }

    /// The first of the warp's bins.
    #[inline(always)]
    fn bin(self) -> u32 {
        self.warp * UNIT_WORDS
    }
}

/// What the lanes before this one give, and what all of them do.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn before_in_warp(value: u32, lane: u32) -> (u32, u32) {
    let mut sum = value;
    for step in 0..5 {
        let by = 1 << step;
        // SAFETY: the caller brings all lanes here.
        let other = unsafe { device::shuffle_up(sum, by) };
        sum = sum.wrapping_add(if lane >= by { other } else { 0 });
    }
    // SAFETY: as above.
    (sum.wrapping_sub(value), unsafe { device::shuffle(sum, WARP - 1) })
}

/// What the threads before this one give, and what all of them do.
///
/// # Safety
/// All threads of the block arrive together.
#[inline(always)]
unsafe fn before_in_block(value: u32, place: Place) -> (u32, u32) {
    // SAFETY: the caller brings all lanes of every warp here.
    let (own, total) = unsafe { before_in_warp(value, place.lane) };
    // SAFETY: the caller brings every thread here; a warp's word is written by one lane, between two barriers.
    unsafe {
        // What an earlier call left was read by all.
        device::barrier();
        if place.lane == 0 {
            device::shared_store(place.warp, total);
        }
        device::barrier();
    }
    let (mut before, mut all) = (0u32, 0u32);
    for warp in 0..BLOCK_UNITS / WARP {
        // SAFETY: it was written before the barrier.
        let words = unsafe { device::shared_load(warp) };
        before = before.wrapping_add(if warp < place.warp { words } else { 0 });
        all = all.wrapping_add(words);
    }
    (before.wrapping_add(own), all)
}

/// Words of this thread's unit, as the table has them; none behind the last unit.
///
/// # Safety
/// The values hold the table.
#[inline(always)]
unsafe fn own_words(p: &EliasParams, b: &Buffers, unit: u32) -> u32 {
    // SAFETY: the table has a byte per unit.
    if unit < p.units { u32::from(unsafe { *b.values.cast::<u8>().add(unit as usize) }) + 1 } else { 0 }
}

/// Words of this thread's unit, and where they begin among the values.
///
/// # Safety
/// All threads of the block arrive together; the values hold the table, and the workspace where each block's words begin.
#[inline(always)]
unsafe fn own_extent(p: &EliasParams, b: &Buffers, place: Place) -> (u32, u32) {
    // SAFETY: the caller's.
    unsafe {
        let words = own_words(p, b, place.unit() + place.lane);
        let (before, _) = before_in_block(words, place);
        (words, p.table + *b.workspace.add(device::block() as usize) + before)
    }
}

/// This lane's codes of a unit and their exponents.
///
/// # Safety
/// The unit's codes are there.
#[inline(always)]
unsafe fn load(p: &EliasParams, b: &Buffers, unit: u32, lane: u32) -> ([u32; SLOTS], [u32; SLOTS]) {
    // SAFETY: the caller's.
    let raw = unsafe { codes::load(unit_at(p, b, unit), lane, p.bits) };
    let codes = codes::unpack(&raw, p.bits);
    let mut exponents = [0; SLOTS];
    for slot in 0..SLOTS {
        exponents[slot] = exponent(level_of(codes[slot], p.bits));
    }
    (codes, exponents)
}

/// Where a unit's codes of fixed width are.
///
/// # Safety
/// They are there.
#[inline(always)]
unsafe fn unit_at(p: &EliasParams, b: &Buffers, unit: u32) -> *mut u8 {
    // SAFETY: the caller's.
    unsafe { b.codes.add(unit as usize * unit_bytes(p.bits)) }
}

/// Bits of a lane's unary parts, and of what is behind them.
#[inline(always)]
fn lengths(exponents: &[u32; SLOTS]) -> (u32, u32) {
    let (mut unary, mut rests) = (0, 0);
    for slot in 0..SLOTS {
        unary += unary_bits(exponents[slot]);
        rests += rest_bits(exponents[slot]);
    }
    (unary, rests)
}
