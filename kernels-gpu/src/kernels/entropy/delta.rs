//! Elias delta codes: measured, written and read.

use super::read::read_units;
use super::{Buffers, Place, before_in_warp, leave_words, lengths, load, put, write_units};
use crate::arith::elias::{class, middle, rest_bits, tail_of, unary_bits};
use crate::arith::pack::SLOTS;
use crate::device::{self, WARP};
use crate::params::EntropyParams;

/// The classes of a lane's codes.
#[inline(always)]
fn classes(exponents: &[u32; SLOTS]) -> [u32; SLOTS] {
    let mut classes = [0; SLOTS];
    for slot in 0..SLOTS {
        classes[slot] = class(exponents[slot]);
    }
    classes
}

kernel! {
    /// Leaves the words that each unit's Elias delta codes take, and their sum for each 256 units.
    ///
    /// # What
    /// As `elias_measure`, of delta codes.
    ///
    /// # Arguments
    /// As those of `elias_measure`.
    ///
    /// # Thread mapping
    /// As that of `elias_measure`.
    ///
    /// # Shared memory
    /// 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them.
    ///
    /// # Traffic
    /// The codes once; a byte per unit, and 4 for each 256.
    ///
    /// # Determinism
    /// Backend to backend: sums of integers.
    ///
    /// # Edge cases
    /// Bytes of the table's last word that no unit has are zero.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn elias_delta_measure(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        let mut own = 0;
        for k in 0..place.count(&p) {
            // SAFETY: the unit is there.
            let (_, exponents) = unsafe { load(&p, &b, place.unit() + k, place.lane) };
            let (unary, _) = lengths(&classes(&exponents));
            let (_, rests) = lengths(&exponents);
            // A middle is as long as a unary part but for its one.
            // SAFETY: the number of units is the warp's, so all of its lanes are here.
            let bits = unsafe { device::fold_sum(2 * unary - SLOTS as u32 + rests) };
            own = if place.lane == k { bits.div_ceil(32) } else { own };
        }
        // SAFETY: all threads are here.
        unsafe { leave_words(&p, &b, place, own) };
    }
}

kernel! {
    /// Writes the Elias delta codes of units that were measured.
    ///
    /// # What
    /// The words of each unit, where those of the units before it end: the unary parts of its codes, lane after lane,
    /// after them their middles, and after those their rests and signs.
    ///
    /// # Arguments
    /// As those of `elias_write`.
    ///
    /// # Thread mapping
    /// As that of `elias_write`.
    ///
    /// # Shared memory
    /// The bins, 256 words for each warp, and 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them, after `elias_delta_measure` of the same codes and
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
    fn elias_delta_write(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
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
    let classes = classes(&exponents);
    let ((unary, _), (_, rests)) = (lengths(&classes), lengths(&exponents));
    // Both sums in one: each is below 2^16.
    // SAFETY: the caller brings all lanes here.
    let (before, total) = unsafe { before_in_warp(unary | rests << 16, place.lane) };
    let (unary_before, unary_total) = (before & 0xffff, total & 0xffff);
    let codes_before = SLOTS as u32 * place.lane;
    let (mut at, mut middle_at) = (unary_before, unary_total + unary_before - codes_before);
    let mut rest_at = 2 * unary_total - SLOTS as u32 * WARP + (before >> 16);
    for slot in 0..SLOTS {
        let (q, r) = (exponents[slot], classes[slot]);
        // SAFETY: the code lies in the unit's words, which are the warp's bins.
        unsafe {
            put(place.bin(), at + r, 1);
            put(place.bin(), middle_at, middle(q));
            put(place.bin(), rest_at, tail_of(codes[slot], p.bits, q));
        }
        at += unary_bits(r);
        middle_at += r;
        rest_at += rest_bits(q);
    }
}

kernel! {
    /// Reads Elias delta codes, and writes codes of fixed width.
    ///
    /// # What
    /// The codes of each unit, whatever its words hold.
    ///
    /// # Arguments
    /// As those of `elias_read`.
    ///
    /// # Thread mapping
    /// As that of `elias_read`; from the lengths of its unary parts a lane finds where its middles are, and from those
    /// where its rests are.
    ///
    /// # Shared memory
    /// The bins, 256 words for each warp, and 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them, after `entropy_sums` of the same table and
    /// `entropy_offsets`.
    ///
    /// # Traffic
    /// The words and a byte per unit read, the codes written. Uncoalesced: where a unit's words begin within a sector.
    /// Conflicts: where lanes' codes begin in words of one bank.
    ///
    /// # Determinism
    /// Backend to backend: integers only.
    ///
    /// # Edge cases
    /// Bits after a unit's words read as ones. A class above 4 counts as 4. A level above what the width holds is the
    /// largest one that it holds.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn elias_delta_read(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        // SAFETY: all threads are here.
        unsafe { read_units::<true>(&p, &b, place) };
    }
}
