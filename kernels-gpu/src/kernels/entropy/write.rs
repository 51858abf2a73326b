//! Writing Elias codes.

use super::{Buffers, Place, before_in_warp, lengths, load, put, write_units};
use crate::arith::elias::{rest_bits, tail_of, unary_bits};
use crate::arith::pack::SLOTS;
use crate::params::EntropyParams;

kernel! {
    /// Writes the Elias codes of units that were measured.
    ///
    /// # What
    /// The words of each unit, where those of the units before it end: the unary parts of its codes, lane after lane,
    /// and after them their rests and signs.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.units` units of codes of `p.bits` bits. Read.
    /// * `values`: the table, `p.table` words, read; and after it the words that it names, written.
    /// * `workspace`: where the words of each 256 units begin. Read.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes 256 units, a warp 32 of them in turn, a lane 8 codes of each.
    ///
    /// # Shared memory
    /// The bins, 256 words for each warp, and 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them, after `elias_measure` of the same codes and
    /// `entropy_offsets`.
    ///
    /// # Traffic
    /// The codes and a byte per unit read, the words written. Uncoalesced: where a unit's words begin within a sector.
    /// Conflicts: codes of several lanes are put into one word.
    ///
    /// # Determinism
    /// Backend to backend: no two codes share a bit, so that their sum in a word does not depend on order.
    ///
    /// # Edge cases
    /// None.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn elias_write(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        // SAFETY: all lanes of the warp are here, and the unit is there.
        let put_unit = |unit| unsafe { put_unit(&p, &b, place, unit) };
        // SAFETY: all threads are here; the units were measured.
        unsafe { write_units(&p, &b, place, put_unit) };
    }
}

/// Puts a unit's codes together in the warp's bins, which are zero.
///
/// # Safety
/// All lanes of the warp arrive together; the unit is there.
#[inline(always)]
unsafe fn put_unit(p: &EntropyParams, b: &Buffers, place: Place, unit: u32) {
    // SAFETY: the caller's.
    let (codes, exponents) = unsafe { load(p, b, unit, place.lane) };
    let (unary, rests) = lengths(&exponents);
    // Both sums in one: each is below 2^16.
    // SAFETY: the caller brings all lanes here.
    let (before, total) = unsafe { before_in_warp(unary | rests << 16, place.lane) };
    let (mut at, mut rest_at) = (before & 0xffff, (total & 0xffff) + (before >> 16));
    for slot in 0..SLOTS {
        let q = exponents[slot];
        // SAFETY: the code lies in the unit's words, which are the warp's bins.
        unsafe {
            put(place.bin(), at + q, 1);
            put(place.bin(), rest_at, tail_of(codes[slot], p.bits, q));
        }
        at += unary_bits(q);
        rest_at += rest_bits(q);
    }
}
