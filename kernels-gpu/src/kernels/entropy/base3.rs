//! Packing codes of 2 bits in base 3, and unpacking them.

use super::{Buffers, Place, before_in_warp, leave_words, own_extent, put, write_units};
use crate::arith::base3::{MOST_WORDS, PART_WORDS, PARTS, PLAIN, codes, digits, encoded, length, spread, third};
use crate::device::{self, WARP};
use crate::params::EntropyParams;

/// Plain bytes of a lane.
const BYTES: usize = (PLAIN / WARP) as usize;

/// One of a lane's bytes.
#[inline(always)]
fn byte(bytes: [u32; 2], at: usize) -> u32 {
    bytes[at / 4] >> (8 * (at as u32 % 4)) & 0xff
}

/// Where one of five words of a unit is, if it is there.
#[inline(always)]
fn word_at(p: &EntropyParams, unit: u32, five: u32, part: usize) -> Option<usize> {
    let word = (unit * PART_WORDS + five) * PARTS as u32 + part as u32;
    if word < p.fixed * PART_WORDS { Some(word as usize) } else { None }
}

/// A lane's plain bytes of a unit.
///
/// # Safety
/// The unit's codes are there.
#[inline(always)]
unsafe fn plain(p: &EntropyParams, b: &Buffers, unit: u32, lane: u32) -> [u32; 2] {
    let (five, first) = (lane / 2, 2 * (lane % 2));
    let (mut bytes, mut power) = ([0; 2], 1);
    for part in 0..PARTS {
        let own = match word_at(p, unit, five, part) {
            // SAFETY: the caller's.
            Some(at) => digits(unsafe { *b.codes.cast::<u32>().add(at) }),
            None => 0,
        };
        bytes[0] += power * spread(own, first);
        bytes[1] += power * spread(own, first + 1);
        power *= 3;
    }
    bytes
}

/// The largest value of the lanes before this one, and at least 0.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn largest_before(value: u32, lane: u32) -> u32 {
    let mut most = value;
    for step in 0..5 {
        let by = 1 << step;
        // SAFETY: the caller brings all lanes here.
        let other = unsafe { device::shuffle_up(most, by) };
        most = if lane >= by && other > most { other } else { most };
    }
    // SAFETY: as above.
    let before = unsafe { device::shuffle_up(most, 1) };
    if lane == 0 { 0 } else { before }
}

/// What becomes of a lane's plain bytes, in order: each byte's encoded one, if one ends there.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn encode(bytes: [u32; 2], lane: u32) -> [(u32, bool); BYTES] {
    let first = BYTES as u32 * lane;
    let mut end = 0;
    for at in 0..BYTES {
        end = if byte(bytes, at) != 0 { first + at as u32 + 1 } else { end };
    }
    // SAFETY: the caller brings all lanes here.
    let (mut begin, behind) =
        unsafe { (largest_before(end, lane), device::shuffle(bytes[0] & 0xff, (lane + 1) % WARP)) };
    let mut all = [(0, false); BYTES];
    for at in 0..BYTES {
        let (own, place) = (byte(bytes, at), first + at as u32);
        let next = if at + 1 < BYTES { byte(bytes, at + 1) } else { behind };
        all[at] = encoded(own, place, begin, next != 0 || place + 1 == PLAIN);
        begin = if own != 0 { place + 1 } else { begin };
    }
    all
}

/// How many encoded bytes there are.
#[inline(always)]
fn count(all: &[(u32, bool); BYTES]) -> u32 {
    let mut count = 0;
    for at in 0..BYTES {
        count += u32::from(all[at].1);
    }
    count
}

kernel! {
    /// Leaves the words that each unit takes in base 3, and their sum for each 256 units.
    ///
    /// # What
    /// Byte `u` of the table is the number of words of unit `u`, minus 1; `workspace[i]` is the sum of the words of
    /// units `256 i` to `256 i + 255`.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.fixed` units of 256 codes of 2 bits. Read.
    /// * `values`: the table, `p.table` words. Written.
    /// * `workspace`: a word per block. Written.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes 256 units, a warp 32 of them in turn, a lane 8 plain bytes of each, which are 40 codes.
    ///
    /// # Shared memory
    /// 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them.
    ///
    /// # Traffic
    /// The codes once; a byte per unit, and 4 for each 256. Uncoalesced: a lane loads five words of its own, so that
    /// each load takes a fifth of its sectors; the cache has them for the next.
    ///
    /// # Determinism
    /// Backend to backend: integers only.
    ///
    /// # Edge cases
    /// Codes after the last unit of fixed width count as zeros. Bytes of the table's last word that no unit has are
    /// zero.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn base3_measure(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        let mut own = 0;
        for k in 0..place.count(&p) {
            // SAFETY: the number of units is the warp's, so all of its lanes are here; the unit is there.
            let bytes = unsafe { device::fold_sum(count(&encode(plain(&p, &b, place.unit() + k, place.lane), place.lane))) };
            own = if place.lane == k { bytes.div_ceil(4) } else { own };
        }
        // SAFETY: all threads are here.
        unsafe { leave_words(&p, &b, place, own) };
    }
}

kernel! {
    /// Writes the bytes of units that were measured.
    ///
    /// # What
    /// The words of each unit, where those of the units before it end.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.fixed` units of 256 codes of 2 bits. Read.
    /// * `values`: the table, `p.table` words, read; and after it the words that it names, written.
    /// * `workspace`: where the words of each 256 units begin. Read.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// As `base3_measure`.
    ///
    /// # Shared memory
    /// The bins, 256 words for each warp, and 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them, after `base3_measure` and `entropy_offsets` over the same
    /// codes.
    ///
    /// # Traffic
    /// The codes and a byte per unit read, the words written. Uncoalesced: codes, as `base3_measure`. Conflicts: bytes
    /// of several lanes are put into one word.
    ///
    /// # Determinism
    /// Backend to backend: no two bytes share a bit, so that their sum in a word does not depend on order.
    ///
    /// # Edge cases
    /// What is left of a unit's last word is zero.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn base3_write(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        let put_unit = |unit| {
            // SAFETY: all lanes of the warp are here, and the unit is there; its bytes lie in the warp's bins.
            unsafe {
                let all = encode(plain(&p, &b, unit, place.lane), place.lane);
                let (mut at, _) = before_in_warp(count(&all), place.lane);
                for k in 0..BYTES {
                    if all[k].1 {
                        put(place.bin(), 8 * at, all[k].0);
                        at += 1;
                    }
                }
            }
        };
        // SAFETY: all threads are here; the units were measured.
        unsafe { write_units(&p, &b, place, put_unit) };
    }
}

kernel! {
    /// Reads codes in base 3, and writes codes of fixed width.
    ///
    /// # What
    /// The codes of each unit, whatever its words hold.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.fixed` units of 256 codes of 2 bits. Written.
    /// * `values`: the table, `p.table` words, and after it the words that it names. Read.
    /// * `workspace`: where the words of each 256 units begin. Read.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes 256 units, a warp 32 of them in turn. A lane takes 8 encoded bytes of each, and puts what they
    /// stand for where the lengths before them say; then two lanes take the five words of codes that 16 plain bytes
    /// make.
    ///
    /// # Shared memory
    /// The bins, 256 words for each warp, and 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them, after `entropy_sums` of the same table and
    /// `entropy_offsets`.
    ///
    /// # Traffic
    /// The words and a byte per unit read, the codes written. Uncoalesced: codes are stored as `base3_measure` loads
    /// them. Conflicts: bytes of several lanes are put into one word.
    ///
    /// # Determinism
    /// Backend to backend: integers only.
    ///
    /// # Edge cases
    /// Bytes after a unit's words are zeros. Plain bytes after the unit's 256th, and words after its 64th, are not
    /// looked at.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn base3_read(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        // SAFETY: all threads are here.
        let (own_words, own_begin) = unsafe { own_extent(&p, &b, place) };
        for k in 0..place.count(&p) {
            // SAFETY: the number of units is the warp's, so all of its lanes are here; the unit is there, and its
            // words.
            unsafe {
                let (words, begin) = (device::shuffle(own_words, k), device::shuffle(own_begin, k));
                let mut at = place.lane;
                while at < MOST_WORDS {
                    device::bin_store(place.bin() + at, if at < words { *b.values.add((begin + at) as usize) } else { 0 });
                    device::bin_store(place.bin() + MOST_WORDS + at, 0);
                    at += WARP;
                }
                device::warp_barrier();
                spread_lane(place);
                device::warp_barrier();
                store_lane(&p, &b, place, place.unit() + k);
                // The next unit's words take the place of these.
                device::warp_barrier();
            }
        }
    }
}

/// Puts what a lane's encoded bytes stand for among the plain bytes, which are zero.
///
/// # Safety
/// All lanes of the warp arrive together; the encoded bytes are in the first of the warp's bins.
#[inline(always)]
unsafe fn spread_lane(place: Place) {
    let first = place.bin() + 2 * place.lane;
    // SAFETY: the bins are the warp's, and were written before its barrier.
    let bytes = unsafe { [device::bin_load(first), device::bin_load(first + 1)] };
    let mut all = 0;
    for at in 0..BYTES {
        all += length(byte(bytes, at));
    }
    // SAFETY: the caller brings all lanes here.
    let (mut to, _) = unsafe { before_in_warp(all, place.lane) };
    for at in 0..BYTES {
        let own = byte(bytes, at);
        if to < PLAIN && length(own) == 1 {
            // SAFETY: the byte is one of the warp's plain ones, and this lane's.
            unsafe { put(place.bin() + MOST_WORDS, 8 * to, own) };
        }
        to += length(own);
    }
}

/// Stores codes of fixed width that plain bytes hold.
///
/// # Safety
/// The plain bytes are in the warp's bins.
#[inline(always)]
unsafe fn store_lane(p: &EntropyParams, b: &Buffers, place: Place, unit: u32) {
    let (five, second) = (place.lane / 2, place.lane % 2 == 1);
    let mut rest = [0; 4];
    for k in 0..4 {
        // SAFETY: the bins are the warp's, and were written before its barrier.
        rest[k] = unsafe { device::bin_load(place.bin() + MOST_WORDS + 4 * five + k as u32) };
    }
    for part in 0..PARTS {
        let mut own = 0;
        for k in 0..4 {
            let next = third(rest[k]);
            own |= codes(rest[k] - 3 * next) << (2 * k);
            rest[k] = next;
        }
        if let Some(at) = word_at(p, unit, five, part)
            && second == (part > 2)
        {
            // SAFETY: the word is there, and this lane's.
            unsafe { *b.codes.cast::<u32>().add(at) = own };
        }
    }
}
