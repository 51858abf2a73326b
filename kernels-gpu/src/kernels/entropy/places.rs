//! Places and levels of the codes that are not zero: measured, written and read.

use super::{Buffers, Place, before_in_block, before_in_warp};
use crate::arith::elias::level_of;
use crate::arith::pack::{PIECES, SLOTS, UNIT, cut, unit_bytes};
use crate::arith::places::{PARTS, code, count, entry, mark_at, mark_bits, piece_at, place, record, record_at, words};
use crate::device::{self, BINS, WARP};
use crate::kernels::codes::{self, WORDS};
use crate::params::{EntropyParams, THREADS};

/// Warps of a block.
const WARPS: u32 = THREADS / WARP;

/// Units of 256 codes that a warp takes.
const OWN: u32 = PARTS / WARPS;

/// As many as [`OWN`], of which the compiler knows nothing: eight copies of a loop's body would double the family's text.
#[inline(always)]
fn own_units() -> u32 {
    device::opaque(OWN)
}

/// Whether any of a lane's codes has a level that is not zero: a bit other than its sign, which is its highest.
#[inline(always)]
fn has_levels(raw: &[u32; WORDS], bits: u32) -> bool {
    if bits & 1 != 0 {
        // The sign is the piece of 1 bit.
        return raw[0] | raw[1] != 0;
    }
    if bits & 2 != 0 {
        // The sign is in the piece of 2 bits.
        return raw[0] | raw[1] & 0x5555 != 0;
    }
    // Of 4, 8 and 16 bits a code is one piece.
    let mask =
        0x7fff_7fff & if bits < 16 { 0xff7f_ff7f } else { u32::MAX } & if bits < 8 { 0xf7f7_f7f7 } else { u32::MAX };
    (raw[0] | raw[1] | raw[2] | raw[3]) & mask != 0
}

/// A lane's codes of the unit `k` of 256 of its warp, and which of them have a level that is not zero: a bit each.
///
/// # Safety
/// The codes are there.
#[inline(always)]
unsafe fn load(p: &EntropyParams, b: &Buffers, place: Place, k: u32) -> ([u32; SLOTS], u32) {
    let unit = first(place) + k;
    if unit >= p.fixed {
        return ([0; SLOTS], 0);
    }
    // SAFETY: the caller's.
    let raw = unsafe { codes::load(b.codes.add(unit as usize * unit_bytes(p.bits)), place.lane, p.bits) };
    // Most lanes have nothing but levels of zero, and most warps nothing but such lanes.
    if !has_levels(&raw, p.bits) {
        return ([0; SLOTS], 0);
    }
    let codes = codes::unpack(&raw, p.bits);
    let mut found = 0;
    for slot in 0..SLOTS {
        found |= u32::from(level_of(codes[slot], p.bits) != 0) << slot;
    }
    (codes, found)
}

/// The first unit of 256 codes of a warp.
#[inline(always)]
fn first(place: Place) -> u32 {
    device::block() * PARTS + place.warp * OWN
}

/// Sets bits from bit `at` on, of which those in the words from `window` on lie in the bins.
///
/// # Safety
/// Between two barriers the bins' bits are only set.
#[inline(always)]
unsafe fn set(window: u32, at: u32, value: u32) {
    let (index, shift) = ((at / 32).wrapping_sub(window), at % 32);
    let low = value << shift;
    let high = if shift == 0 { 0 } else { value >> (32 - shift) };
    // SAFETY: the bins are there; the rest is the caller's.
    unsafe {
        if index < BINS && low != 0 {
            device::bin_or(index, low);
        }
        if index.wrapping_add(1) < BINS && high != 0 {
            device::bin_or(index.wrapping_add(1), high);
        }
    }
}

/// Clears the bins of `left` words.
///
/// # Safety
/// All threads of the block arrive together.
#[inline(always)]
unsafe fn clear(left: u32) {
    let mut at = device::thread();
    while at < left && at < BINS {
        // SAFETY: the bin is there, and this thread's.
        unsafe { device::bin_store(at, 0) };
        at += THREADS;
    }
    // SAFETY: the caller brings all threads here.
    unsafe { device::barrier() };
}

/// Writes the bins of `left` words, whose bits were set.
///
/// # Safety
/// All threads of the block arrive together; the words are there, and the block's.
#[inline(always)]
unsafe fn leave(to: *mut u32, left: u32) {
    // SAFETY: the caller brings all threads here.
    unsafe { device::barrier() };
    let mut at = device::thread();
    while at < left && at < BINS {
        // SAFETY: the bin is there and no longer written; the word is there, and this thread's.
        unsafe { *to.add(at as usize) = device::bin_load(at) };
        at += THREADS;
    }
    // SAFETY: as above.
    unsafe { device::barrier() };
}

kernel! {
    /// Leaves the entry of each unit, and its words.
    ///
    /// # What
    /// Word `u` of the table is the entry of unit `u`; `workspace[u]` is how many words the unit takes.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.fixed` units of 256 codes of `p.bits` bits. Read.
    /// * `values`: the table, `p.table` words. Written.
    /// * `workspace`: a word per unit. Written.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes a unit, a warp 8 units of 256 codes, a lane 8 codes of each.
    ///
    /// # Shared memory
    /// 16 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `p.units` of them.
    ///
    /// # Traffic
    /// The codes once; 8 bytes per unit.
    ///
    /// # Determinism
    /// Backend to backend: integers only.
    ///
    /// # Edge cases
    /// Codes after the last unit of fixed width count as zeros. A code of level zero with a sign counts as zero.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn entropy_places_measure(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        let (mut own, mut most) = (0, 0);
        for k in 0..own_units() {
            // SAFETY: codes that are not there are not read.
            let (codes, found) = unsafe { load(&p, &b, place, k) };
            own += found.count_ones();
            if found != 0 {
                for slot in 0..SLOTS {
                    let level = level_of(codes[slot], p.bits);
                    most = if level > most { level } else { most };
                }
            }
        }
        // SAFETY: all threads are here; a warp's words are written by one lane and read after the barrier. The words of
        // table and workspace are the block's.
        unsafe {
            let (own, most) = (device::fold_sum(own), device::fold_max(most));
            if place.lane == 0 {
                device::shared_store(place.warp, own);
                device::shared_store(WARPS + place.warp, most);
            }
            device::barrier();
            if device::thread() == 0 {
                let (mut all, mut most) = (0, 0);
                for warp in 0..WARPS {
                    all += device::shared_load(warp);
                    let own = device::shared_load(WARPS + warp);
                    most = if own > most { own } else { most };
                }
                let unit = device::block() as usize;
                *b.values.add(unit) = entry(all, most);
                *b.workspace.add(unit) = words(entry(all, most));
            }
        }
    }
}

kernel! {
    /// Leaves how many words each unit of a table takes.
    ///
    /// # What
    /// `workspace[u]` is how many words the unit `u` takes.
    ///
    /// # Arguments
    /// * `p`; `codes`: not used.
    /// * `values`: the table, `p.table` words. Read.
    /// * `workspace`: a word per unit. Written.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// A thread takes a unit.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them.
    ///
    /// # Traffic
    /// 8 bytes per unit.
    ///
    /// # Determinism
    /// Backend to backend: integers only.
    ///
    /// # Edge cases
    /// None.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn entropy_places_sums(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let unit = device::block() * THREADS + device::thread();
        if unit < p.units {
            // SAFETY: table and workspace have a word per unit, and this one is the thread's.
            unsafe { *b.workspace.add(unit as usize) = words(*b.values.add(unit as usize)) };
        }
    }
}

kernel! {
    /// Writes places and levels of units that were measured.
    ///
    /// # What
    /// The words of each unit, where those of the units before it end: the marks of its codes whose level is not zero,
    /// and their records.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.fixed` units of 256 codes of `p.bits` bits. Read.
    /// * `values`: the table, `p.table` words, read; and after it the words that it names, written.
    /// * `workspace`: where the words of each unit begin. Read.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// As `entropy_places_measure`.
    ///
    /// # Shared memory
    /// The bins, 2048 words, and 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `p.units` of them, after `entropy_places_measure` and `entropy_offsets` over the same
    /// codes.
    ///
    /// # Traffic
    /// The codes read twice, and once more for each 2048 words of a unit after the first; 8 bytes per unit read, the
    /// words written. Uncoalesced: where a unit's words begin within a sector. Conflicts: bits of several codes are put
    /// into one word.
    ///
    /// # Determinism
    /// Backend to backend: no two codes share a bit.
    ///
    /// # Edge cases
    /// What is left of a unit's last word is zero. A unit of zeros takes no words.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn entropy_places_write(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        let unit = device::block() as usize;
        // SAFETY: table and workspace have a word per unit; all threads are here, and codes that are not there are not
        // read. The words are there, since they were measured.
        unsafe {
            let entry = *b.values.add(unit);
            let to = b.values.add((p.table + *b.workspace.add(unit)) as usize);
            let mut own = 0;
            for k in 0..own_units() {
                own += load(&p, &b, place, k).1.count_ones();
            }
            // The codes of the warps before this one.
            let (before, _) = before_in_block(own, place);
            let first = device::shuffle(before, 0);
            let mut window = 0;
            while window < words(entry) {
                clear(words(entry) - window);
                let mut index = first;
                for k in 0..own_units() {
                    let (codes, found) = load(&p, &b, place, k);
                    // Most often there is none: the same for all lanes of the warp.
                    if device::ballot(found != 0) != 0 {
                        let (before, all) = before_in_warp(found.count_ones(), place.lane);
                        put_lane(&p, entry, window, place, k, index + before, &codes, found);
                        index += all;
                    }
                }
                leave(to.add(window as usize), words(entry) - window);
                window += BINS;
            }
        }
    }
}

/// Sets the bits of a lane's codes, the first of which is the code `index` of the unit.
///
/// # Safety
/// Between two barriers the bins' bits are only set.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "a lane of a unit of 256 codes, and where its bits go")]
unsafe fn put_lane(
    p: &EntropyParams,
    entry: u32,
    window: u32,
    place: Place,
    k: u32,
    index: u32,
    codes: &[u32; SLOTS],
    found: u32,
) {
    let at = ((place.warp * OWN + k) * WARP + place.lane) * SLOTS as u32;
    let mut index = index;
    for slot in 0..SLOTS {
        if found >> slot & 1 == 1 {
            let at = at + slot as u32;
            // SAFETY: the caller's.
            unsafe {
                set(window, mark_at(entry, index, at), 1);
                set(window, record_at(entry, index), record(entry, at, codes[slot], p.bits));
            }
            index += 1;
        }
    }
}

kernel! {
    /// Reads places and levels, and writes codes of fixed width.
    ///
    /// # What
    /// The codes of each unit, whatever its words hold.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.fixed` units of 256 codes of `p.bits` bits. Written.
    /// * `values`: the table, `p.table` words, and after it the words that it names. Read.
    /// * `workspace`: where the words of each unit begin. Read.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes a unit. A thread takes up to 4 words of marks, and the codes that they mark.
    ///
    /// # Shared memory
    /// The bins, 2048 words, and 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `p.units` of them, after `entropy_places_sums` of the same table and `entropy_offsets`.
    ///
    /// # Traffic
    /// The words and 8 bytes per unit read, and read once more for each 2048 words of its codes after the first; the
    /// codes written. Uncoalesced: a thread's words of marks, and records. Conflicts: codes of several threads are put
    /// into one word.
    ///
    /// # Determinism
    /// Backend to backend: bits are set, whatever the order.
    ///
    /// # Edge cases
    /// Marks after the unit's last code, and places after its codes, are left out. Codes of one place are joined by or.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn entropy_places_read(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        let unit = device::block();
        // SAFETY: table and workspace have a word per unit; all threads are here; the words of unit and codes are there.
        unsafe {
            let entry = *b.values.add(unit as usize);
            let from = b.values.add((p.table + *b.workspace.add(unit as usize)) as usize);
            let marks = Marks::of_thread(from, entry);
            let mut own = 0;
            for k in 0..marks.each {
                own += marks.word(k).count_ones();
            }
            let (before, _) = before_in_block(own, place);
            let left = p.fixed - unit * PARTS;
            let parts = if left < PARTS { left } else { PARTS };
            let each = unit_bytes(p.bits) as u32 / 4;
            let to = b.codes.cast::<u32>().add((unit * PARTS * each) as usize);
            let mut window = 0;
            while window < parts * each {
                clear(parts * each - window);
                marks.read(&p, window, before, parts * UNIT as u32);
                leave(to.add(window as usize), parts * each - window);
                window += BINS;
            }
        }
    }
}

/// A thread's words of a unit's marks.
#[derive(Clone, Copy)]
struct Marks {
    from: *const u32,
    entry: u32,
    first: u32,
    each: u32,
}

impl Marks {
    #[inline(always)]
    fn of_thread(from: *const u32, entry: u32) -> Self {
        // At most 1024 words.
        let each = mark_bits(entry).div_ceil(32).div_ceil(THREADS);
        Self { from, entry, first: device::thread() * each, each }
    }

    /// The word `k` of the thread; zeros after the last mark.
    ///
    /// # Safety
    /// The unit's words are there.
    #[inline(always)]
    unsafe fn word(self, k: u32) -> u32 {
        let (at, bits) = (self.first + k, mark_bits(self.entry));
        if 32 * at >= bits {
            return 0;
        }
        // SAFETY: the marks are within the unit's words.
        let word = unsafe { *self.from.add(at as usize) };
        if bits - 32 * at < 32 { word & ((1 << (bits % 32)) - 1) } else { word }
    }

    /// The record of a code that is within the unit's count.
    ///
    /// # Safety
    /// The unit's words are there.
    #[inline(always)]
    unsafe fn record(self, index: u32) -> u32 {
        let at = record_at(self.entry, index);
        // SAFETY: the record ends within the unit's words; a second word is read only if it reaches into it.
        unsafe {
            let low = *self.from.add((at / 32) as usize) >> (at % 32);
            let ends_in = (record_at(self.entry, index + 1) - 1) / 32;
            if ends_in > at / 32 { low | *self.from.add(ends_in as usize) << (32 - at % 32) } else { low }
        }
    }

    /// Sets the bits of the codes that this thread's words mark, the first of which is the code `index` of the unit, and
    /// whose places are below `limit`.
    ///
    /// # Safety
    /// The unit's words are there; between two barriers the bins' bits are only set.
    #[inline(always)]
    unsafe fn read(self, p: &EntropyParams, window: u32, index: u32, limit: u32) {
        let mut index = index;
        for k in 0..self.each {
            // SAFETY: the caller's.
            let mut ones = unsafe { self.word(k) };
            while ones != 0 && index < count(self.entry) {
                let mark = 32 * (self.first + k) + ones.trailing_zeros();
                ones &= ones - 1;
                // SAFETY: the caller's.
                unsafe {
                    let record = self.record(index);
                    let at = place(self.entry, index, mark, record);
                    if at < limit {
                        put_code(p, window, at, code(self.entry, record, p.bits));
                    }
                }
                index += 1;
            }
        }
    }
}

/// Sets the bits of a code of fixed width.
///
/// # Safety
/// Between two barriers the bins' bits are only set.
#[inline(always)]
unsafe fn put_code(p: &EntropyParams, window: u32, at: u32, code: u32) {
    let mut done = 0;
    for k in 0..PIECES.len() {
        let piece = 16 >> k;
        if p.bits & piece != 0 {
            // A piece is within a word.
            // SAFETY: the caller's.
            unsafe { set(window, piece_at(at, p.bits, done, piece), cut(code, done, piece)) };
            done += piece;
        }
    }
}
