//! Reading Elias codes.

use super::{Buffers, Place, before_in_warp, lengths, own_extent, unit_at};
use crate::arith::elias::{behind, exponent_of, middle_bits, read, rest_bits, unary_bits, window, zeros};
use crate::arith::pack::SLOTS;
use crate::device::{self, WARP};
use crate::kernels::codes;
use crate::params::EntropyParams;

kernel! {
    /// Reads Elias codes, and writes codes of fixed width.
    ///
    /// # What
    /// The codes of each unit, whatever its words hold.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.units` units of codes of `p.bits` bits. Written.
    /// * `values`: the table, `p.table` words, and after it the words that it names. Read.
    /// * `workspace`: where the words of each 256 units begin. Read.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes 256 units, a warp 32 of them in turn, a lane 8 codes of each. Each lane counts the ones of its
    /// part of the unit's words; from the counts it finds where its codes' unary parts begin, and from their lengths
    /// where its rests do.
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
    /// Bits after a unit's words read as ones. A level above what the width holds is the largest one that it holds.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn elias_read(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        // SAFETY: all threads are here.
        unsafe { read_units::<false>(&p, &b, place) };
    }
}

/// Reads the codes, gamma or delta, of the warp's units, one after the other.
///
/// # Safety
/// All threads of the block arrive together; the buffers are as in `elias_read`.
#[inline(always)]
pub(super) unsafe fn read_units<const DELTA: bool>(p: &EntropyParams, b: &Buffers, place: Place) {
    // SAFETY: the caller brings all threads here.
    let (own_words, own_begin) = unsafe { own_extent(p, b, place) };
    for k in 0..place.count(p) {
        // SAFETY: the number of units is the warp's, so all of its lanes are here; the unit is there, and its words.
        unsafe {
            let (words, begin) = (device::shuffle(own_words, k), device::shuffle(own_begin, k));
            let mut at = place.lane;
            while at < words {
                device::bin_store(place.bin() + at, *b.values.add((begin + at) as usize));
                at += WARP;
            }
            device::warp_barrier();
            let own = read_lane::<DELTA>(p, place, words);
            codes::store(unit_at(p, b, place.unit() + k), place.lane, p.bits, &own);
            // The next unit's words take the place of these.
            device::warp_barrier();
        }
    }
}

/// This lane's codes, gamma or delta, of the unit whose words are in the warp's bins.
///
/// # Safety
/// All lanes of the warp arrive together; `words` is the same in each.
#[inline(always)]
unsafe fn read_lane<const DELTA: bool>(p: &EntropyParams, place: Place, words: u32) -> [u32; SLOTS] {
    let word = |index: u32| {
        // SAFETY: the bin is the warp's, and was written before its barrier.
        if index < words { unsafe { device::bin_load(place.bin() + index) } } else { u32::MAX }
    };
    // Words of a lane: 1 to 8.
    let each = words.div_ceil(WARP);
    let mut ones = 0;
    for k in 0..each {
        ones += word(place.lane * each + k).count_ones();
    }
    // SAFETY: the caller brings all lanes here.
    let (ones_before, _) = unsafe { before_in_warp(ones, place.lane) };
    let ones_up_to = ones_before + ones;
    // The ones before this lane's codes: 8 of each lane before it. The last one of them is looked for.
    let rank = (SLOTS as u32 * place.lane).saturating_sub(1);
    let mut lanes = 0;
    for step in 0..5 {
        let by = 16 >> step;
        // SAFETY: as above.
        let up_to = unsafe { device::shuffle(ones_up_to, lanes + by - 1) };
        lanes += if up_to <= rank { by } else { 0 };
    }
    // SAFETY: as above.
    let left = rank - unsafe { device::shuffle(ones_before, lanes) };
    let mut at = if place.lane == 0 { 0 } else { behind(word, lanes * each, left) };
    let mut exponents = [0; SLOTS];
    for slot in 0..SLOTS {
        exponents[slot] = zeros(word, at);
        at += unary_bits(exponents[slot]);
    }
    if DELTA {
        // SAFETY: as above.
        at = unsafe { read_middles(word, place, at, &mut exponents) };
    }
    let (_, rests) = lengths(&exponents);
    // SAFETY: as above.
    let (before, unary_end) = unsafe { (before_in_warp(rests, place.lane).0, device::shuffle(at, WARP - 1)) };
    let mut rest_at = unary_end + before;
    let mut own = [0; SLOTS];
    for slot in 0..SLOTS {
        own[slot] = read(word, rest_at, exponents[slot], p.bits);
        rest_at += rest_bits(exponents[slot]);
    }
    own
}

/// Makes exponents of the classes of this lane's codes, whose unary parts end at bit `at`. In the last lane, that bit
/// becomes the one after all middles.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn read_middles(word: impl Fn(u32) -> u32 + Copy, place: Place, at: u32, exponents: &mut [u32; SLOTS]) -> u32 {
    let mut middles = 0;
    for slot in 0..SLOTS {
        middles += middle_bits(exponents[slot]);
    }
    // SAFETY: the caller brings all lanes here.
    let (before, unary_end) = unsafe { (before_in_warp(middles, place.lane).0, device::shuffle(at, WARP - 1)) };
    let mut at = unary_end + before;
    for slot in 0..SLOTS {
        let class = exponents[slot];
        exponents[slot] = exponent_of(class, window(word, at));
        at += middle_bits(class);
    }
    at
}
