//! Packing codes of fixed width, as Elias codes, in base 3 and as places, and unpacking them.
//!
//! A block takes 256 units, but for places. A warp takes 32 of them in turn; what a whole unit needs comes from sums over the warp.

mod base3;
mod delta;
mod measure;
mod offsets;
mod places;
mod read;
mod sums;
mod write;

use super::codes;
use crate::arith::elias::{BLOCK_UNITS, exponent, level_of, rest_bits, unary_bits};
use crate::arith::pack::{SLOTS, unit_bytes};
use crate::device::{self, WARP};
use crate::params::EntropyParams;

/// Words of a unit, at most: as many as a warp has of the block's bins.
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
    fn count(self, p: &EntropyParams) -> u32 {
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

/// Words of this thread's unit, as the table has them; none after the last unit.
///
/// # Safety
/// The values hold the table.
#[inline(always)]
unsafe fn own_words(p: &EntropyParams, b: &Buffers, unit: u32) -> u32 {
    // SAFETY: the table has a byte per unit.
    if unit < p.units { u32::from(unsafe { *b.values.cast::<u8>().add(unit as usize) }) + 1 } else { 0 }
}

/// Words of this thread's unit, and where they begin among the values.
///
/// # Safety
/// All threads of the block arrive together; the values hold the table, and the workspace where each block's words
/// begin.
#[inline(always)]
unsafe fn own_extent(p: &EntropyParams, b: &Buffers, place: Place) -> (u32, u32) {
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
unsafe fn load(p: &EntropyParams, b: &Buffers, unit: u32, lane: u32) -> ([u32; SLOTS], [u32; SLOTS]) {
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
unsafe fn unit_at(p: &EntropyParams, b: &Buffers, unit: u32) -> *mut u8 {
    // SAFETY: the caller's.
    unsafe { b.codes.add(unit as usize * unit_bytes(p.bits)) }
}

/// Bits of a lane's unary parts, and of what is after them.
#[inline(always)]
fn lengths(exponents: &[u32; SLOTS]) -> (u32, u32) {
    let (mut unary, mut rests) = (0, 0);
    for slot in 0..SLOTS {
        unary += unary_bits(exponents[slot]);
        rests += rest_bits(exponents[slot]);
    }
    (unary, rests)
}

/// Leaves the words of this thread's unit in the table, and the sum of the block's.
///
/// # Safety
/// All threads of the block arrive together; table and sums are there.
#[inline(always)]
unsafe fn leave_words(p: &EntropyParams, b: &Buffers, place: Place, own: u32) {
    // SAFETY: the caller brings all threads here.
    let (_, sum) = unsafe { before_in_block(own, place) };
    let unit = place.unit() + place.lane;
    // SAFETY: the byte is in the table and this thread's; the word is this block's.
    unsafe {
        if unit < 4 * p.table {
            *b.values.cast::<u8>().add(unit as usize) = own.saturating_sub(1) as u8;
        }
        if device::thread() == 0 {
            *b.workspace.add(device::block() as usize) = sum;
        }
    }
}

/// Writes the words of measured units, each of which `put_unit` puts together in the warp's bins, which are zero.
///
/// # Safety
/// All threads of the block arrive together; the table and the sums are there.
#[inline(always)]
unsafe fn write_units(p: &EntropyParams, b: &Buffers, place: Place, put_unit: impl Fn(u32)) {
    // SAFETY: the caller brings all threads here.
    let (own_words, own_begin) = unsafe { own_extent(p, b, place) };
    for k in 0..place.count(p) {
        // SAFETY: the number of units is the warp's, so all of its lanes are here; the words are there.
        unsafe {
            let (words, begin) = (device::shuffle(own_words, k), device::shuffle(own_begin, k));
            let mut at = place.lane;
            while at < words {
                device::bin_store(place.bin() + at, 0);
                at += WARP;
            }
            device::warp_barrier();
            put_unit(place.unit() + k);
            device::warp_barrier();
            let mut at = place.lane;
            while at < words {
                *b.values.add((begin + at) as usize) = device::bin_load(place.bin() + at);
                at += WARP;
            }
            device::warp_barrier();
        }
    }
}

/// Adds bits to bins that are zero there.
///
/// # Safety
/// Bits that are not zero lie in the warp's bins, and no other lane has them.
#[inline(always)]
unsafe fn put(bin: u32, at: u32, value: u32) {
    let (index, shift) = (bin + at / 32, at % 32);
    let low = value << shift;
    let high = if shift == 0 { 0 } else { value >> (32 - shift) };
    // SAFETY: the caller's.
    unsafe {
        if low != 0 {
            device::bin_add(index, low);
        }
        if high != 0 {
            device::bin_add(index + 1, high);
        }
    }
}
