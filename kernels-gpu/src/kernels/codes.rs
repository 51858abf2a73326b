//! A unit's codes as they lie on the wire: see [`crate::arith::pack`].
//!
//! A width's pieces follow from its binary digits. Widths are 1 to 8 and 16, so a piece of 16, 8 or 4 bits is the first
//! of its code, one of 2 bits can only follow one of 4, and one of 1 bit those two.

use crate::arith::pack::{LANES, SLOTS, cut, unit_bytes};

/// Words of a lane that hold the widest code.
pub(super) const WORDS: usize = 4;

/// Where the pieces of 2 bits and of 1 bit of a unit start, in bytes: after those before them.
#[inline(always)]
fn behind(done: u32) -> usize {
    unit_bytes(done)
}

/// A piece of each code, in one word.
#[inline(always)]
fn join<const PIECE: u32>(codes: &[u32], done: u32) -> u32 {
    let mut word = 0;
    for (k, code) in codes.iter().enumerate() {
        word |= cut(*code, done, PIECE) << (k as u32 * PIECE);
    }
    word
}

/// As [`join`], of `N` codes that are no wider than the piece, from the `first` on; `N` is a power of two.
#[inline(always)]
fn join_whole<const PIECE: u32, const N: usize>(codes: &[u32; SLOTS], first: usize) -> u32 {
    let mut words = [0; N];
    words.copy_from_slice(&codes[first..first + N]);
    // Sums, because a machine that multiplies and adds in one instruction shifts and adds in one as well. In pairs,
    // so that they do not wait for one another.
    let (mut left, mut width) = (N, PIECE);
    while left > 1 {
        left /= 2;
        for k in 0..left {
            words[k] = words[2 * k].wrapping_add(words[2 * k + 1] << width);
        }
        width *= 2;
    }
    words[0]
}

/// Writes this lane's codes of a unit.
///
/// # Safety
/// `unit` points at the `unit_bytes(bits)` bytes of the unit, aligned to 4; `bits` is 1 to 8, or 16.
#[inline(always)]
pub(super) unsafe fn store(unit: *mut u8, lane: u32, bits: u32, codes: &[u32; SLOTS]) {
    let lane = lane as usize;
    let words = unit.cast::<u32>();
    if bits == 16 {
        for r in 0..4 {
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            unsafe { *words.add(r * LANES + lane) = join_whole::<16, 2>(codes, 2 * r) };
        }
    } else if bits == 8 {
        for r in 0..2 {
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            unsafe { *words.add(r * LANES + lane) = join_whole::<8, 4>(codes, 4 * r) };
        }
    } else if bits == 4 {
        // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
        unsafe { *words.add(lane) = join_whole::<4, 8>(codes, 0) };
    } else {
        if bits & 4 != 0 {
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            unsafe { *words.add(lane) = join::<4>(codes, 0) };
        }
        if bits & 2 != 0 {
            let done = bits & 4;
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            unsafe { *unit.add(behind(done)).cast::<u16>().add(lane) = join::<2>(codes, done) as u16 };
        }
        if bits & 1 != 0 {
            let done = bits & 6;
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            unsafe { *unit.add(behind(done)).add(lane) = join::<1>(codes, done) as u8 };
        }
    }
}

/// Writes this lane's codes of a unit, each in the highest bits of a word above others of no meaning.
///
/// # Safety
/// As [`store`], and `BITS` is 4 or 8.
#[inline(always)]
pub(super) unsafe fn store_high<const BITS: u32>(unit: *mut u8, lane: u32, high: &[u32; SLOTS]) {
    const { assert!(BITS == 4 || BITS == 8) };
    let each = 32 / BITS as usize;
    for r in 0..SLOTS / each {
        let mut word = 0;
        // Each step shifts a code in from the right of what is there: an instruction that shifts two words as one.
        for k in 0..each {
            word = word << BITS | high[r * each + each - 1 - k] >> (32 - BITS);
        }
        // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
        unsafe { *unit.cast::<u32>().add(r * LANES + lane as usize) = word };
    }
}

/// Reads this lane's words of a unit, as [`unpack`] takes them.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub(super) unsafe fn load(unit: *const u8, lane: u32, bits: u32) -> [u32; WORDS] {
    let lane = lane as usize;
    let words = unit.cast::<u32>();
    let mut raw = [0; WORDS];
    if bits == 16 {
        for r in 0..4 {
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            raw[r] = unsafe { *words.add(r * LANES + lane) };
        }
    } else if bits == 8 {
        for r in 0..2 {
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            raw[r] = unsafe { *words.add(r * LANES + lane) };
        }
    } else {
        if bits & 4 != 0 {
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            raw[0] = unsafe { *words.add(lane) };
        }
        if bits & 2 != 0 {
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            raw[1] = unsafe { *unit.add(behind(bits & 4)).cast::<u16>().add(lane) }.into();
        }
        if bits & 1 != 0 {
            // SAFETY: the piece lies in the unit's bytes, and a lane is below 32.
            raw[2] = unsafe { *unit.add(behind(bits & 6)).add(lane) }.into();
        }
    }
    raw
}

/// The codes that a lane's words hold, each with bits of no meaning above its own.
#[inline(always)]
pub(super) fn unpack(raw: &[u32; WORDS], bits: u32) -> [u32; SLOTS] {
    let mut codes = [0; SLOTS];
    if bits == 16 {
        for slot in 0..SLOTS {
            codes[slot] = raw[slot / 2] >> (slot % 2 * 16);
        }
    } else if bits == 8 {
        for slot in 0..SLOTS {
            codes[slot] = raw[slot / 4] >> (slot % 4 * 8);
        }
    } else if bits == 4 {
        for slot in 0..SLOTS {
            codes[slot] = raw[0] >> (slot * 4);
        }
    } else {
        // A piece that the width does not have was read as zero.
        for slot in 0..SLOTS {
            let k = slot as u32;
            codes[slot] = cut(raw[0], k * 4, 4) | cut(raw[1], k * 2, 2) << (bits & 4) | cut(raw[2], k, 1) << (bits & 6);
        }
    }
    codes
}
