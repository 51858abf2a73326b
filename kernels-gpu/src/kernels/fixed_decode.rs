//! Decode kernels of presets: what `decode` and `decode_segments` do, for settings that the compiler knows.
//!
//! A code has 16 values at most, and a unit's rows lie in one bucket or in four parts that each do. So lane `i` makes what code
//! `i % 16` stands for in a part, once, and each element asks the lane that its code names. A shuffle takes the low five bits of what
//! it is given: the lanes beyond the last code answer for codes with another's bit above their own.

use super::decode::Buffers;
use super::quantizer::of_lane;
use super::tile::{UNITS, WARP_SPAN};
use crate::arith;
use crate::arith::float::NAN_BITS;
use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::arith::quantizer::{Quantizer, Words};
use crate::device;
use crate::params::{DecodeParams, SPAN, item};
use crate::presets::decode::{BITS, decode_presets};

/// Payloads whose codes are on their way at a time: with four units, or four parts of one, each lane has one decoder.
const BATCH: u32 = 8;
/// Parts of a unit that have a decoder each, where buckets are small.
const PARTS: usize = 4;

/// Where a thread stands, and what does not change while it works.
#[derive(Clone, Copy)]
struct Place {
    /// Lane of the warp.
    lane: u32,
    /// Index, in the launch, of the warp's first element.
    first: u32,
}

impl Place {
    /// Index, in the launch, of this lane's element in a slot of a unit of the warp.
    #[inline(always)]
    fn element(&self, unit: usize, slot: usize) -> u32 {
        self.first + behind(unit, slot) as u32 + self.lane
    }
}

/// Elements from a lane's first one to that in a slot of a unit of the warp. Added to an address it takes no instruction.
#[inline(always)]
fn behind(unit: usize, slot: usize) -> usize {
    unit * UNIT + slot * LANES
}

/// The parameters, with what is fixed as constants.
#[inline(always)]
fn fixed<const SMALL: bool>(p: DecodeParams, levels: u32) -> DecodeParams {
    let bucket_log2 = if SMALL { 6 | p.bucket_log2 & 1 } else { p.bucket_log2.max(UNIT.ilog2()) };
    DecodeParams { bits: BITS, levels, bucket_log2, ..p }
}

/// `arith::float::canonical` of what a sum gave: a device makes no signalling NaN, so that a comparison of numbers is enough.
#[inline(always)]
fn canonical(sum: f32) -> f32 {
    if sum.is_nan() { f32::from_bits(NAN_BITS) } else { sum }
}

/// What a block works on: its span of one tensor, or its item of many.
///
/// # Safety
/// With a table, it has an item for each block.
#[inline(always)]
unsafe fn of_item(p: &DecodeParams, b: Buffers, table: *const u32) -> (DecodeParams, Buffers) {
    let at = item::HEADER + (p.first_item + device::block()) * item::WORDS;
    // SAFETY: the caller has an item for each block, and what it says is in the buffers.
    unsafe {
        let word = |index: u32| *table.add((at + index) as usize) as usize;
        let p = DecodeParams { n: word(item::ELEMENTS) as u32, bucket_log2: p.bucket_log2 & 15, ..*p };
        let b = Buffers {
            scalars: b.scalars.add(word(item::SCALARS)),
            codes: b.codes.add(word(item::CODES) * 4),
            output: b.output.add(word(item::START)),
        };
        (p, b)
    }
}

/// This warp's place; none where no element of it is there. The same in all lanes.
#[inline(always)]
fn place(p: &DecodeParams, span: u32) -> Option<Place> {
    let (lane, warp) = (device::thread() % device::WARP, device::thread() / device::WARP);
    let first = span * SPAN + warp * WARP_SPAN;
    (first < p.n).then_some(Place { lane, first })
}

/// The scalars of the bucket that has an element, of a payload.
///
/// # Safety
/// As the kernels ask; there is such a payload.
#[inline(always)]
unsafe fn wire<Q: Quantizer>(p: &DecodeParams, b: &Buffers, element: u32, payload: u32) -> [f32; 2] {
    // A part without an element may lie in a bucket without scalars: the last one's stand in.
    let bucket = (element.min(p.n - 1) >> p.bucket_log2) as usize;
    let mut wire = [0.0; 2];
    for scalar in 0..Q::SCALARS {
        let index = payload as usize * p.scalar_stride as usize + bucket * Q::SCALARS + scalar;
        // SAFETY: the bucket has an element, so its scalars are in every payload.
        wire[scalar] = f32::from_bits(unsafe { *b.scalars.add(index) });
    }
    wire
}

/// Where this lane's codes are: of a unit of the launch, of a payload.
#[inline(always)]
fn unit_codes(p: &DecodeParams, b: &Buffers, place: Place, unit: u32, payload: u32) -> *const u32 {
    let start = b.codes.cast::<u32>().wrapping_add(payload as usize * p.code_stride as usize);
    start.wrapping_add(unit as usize * (unit_bytes(BITS) / 4) + place.lane as usize)
}

/// This lane's codes of a unit of the warp. Behind the last unit, that one's stand in.
///
/// # Safety
/// As [`wire`].
#[inline(always)]
unsafe fn codes(p: &DecodeParams, b: &Buffers, place: Place, unit: u32) -> u32 {
    let unit = (place.first / UNIT as u32 + unit).min((p.n - 1) / UNIT as u32);
    // SAFETY: the unit has an element, so its codes are in the payload.
    unsafe { *unit_codes(p, b, place, unit, 0) }
}

/// The decoders that the lanes of a warp have.
struct Decoders<Q: Quantizer> {
    /// This lane's.
    own: Q::Decoder,
    /// Whether all are plain. The same in all lanes.
    plain: bool,
}

impl<Q: Quantizer> Decoders<Q> {
    /// # Safety
    /// All lanes of the warp arrive together.
    #[inline(always)]
    unsafe fn new(p: &DecodeParams, wire: [f32; 2]) -> Self {
        let own = Q::decoder(wire, p.levels);
        // SAFETY: the caller brings all lanes here.
        let plain = unsafe { device::ballot(Q::plain_decoder(&own).is_none()) } == 0;
        Self { own, plain }
    }

    /// What this lane's code stands for by the decoder that lane `from` has, times the weight if there is one. `PLAIN` says that all
    /// decoders are.
    ///
    /// # Safety
    /// All lanes of the warp arrive together.
    #[inline(always)]
    unsafe fn table<const WEIGHTED: bool, const PLAIN: bool>(&self, p: &DecodeParams, lane: u32, from: u32) -> f32 {
        let decoder = if PLAIN {
            // SAFETY: the caller brings all lanes here.
            Q::plain_handed_on(&self.own, |word| unsafe { device::shuffle(word, from) })
        } else {
            // SAFETY: as above.
            unsafe { of_lane(&self.own, from) }
        };
        let value = Q::value(&decoder, BITS, p.levels, lane & ((1 << BITS) - 1));
        if WEIGHTED { p.weight() * value } else { value }
    }

    /// What this lane's codes of a unit stand for.
    ///
    /// # Safety
    /// As [`Decoders::table`], with the same `unit` in all lanes.
    #[inline(always)]
    unsafe fn unit<const WEIGHTED: bool, const SMALL: bool, const PLAIN: bool>(
        &self,
        p: &DecodeParams,
        lane: u32,
        unit: u32,
        raw: u32,
    ) -> [f32; SLOTS] {
        let parts = if SMALL { PARTS } else { 1 };
        let (mut table, mut values) = (0.0, [0.0; SLOTS]);
        for slot in 0..SLOTS {
            if slot % (SLOTS / parts) == 0 {
                let from = unit * parts as u32 + (slot / (SLOTS / parts)) as u32;
                // SAFETY: the caller brings all lanes here.
                table = unsafe { self.table::<WEIGHTED, PLAIN>(p, lane, from) };
            }
            // SAFETY: as above.
            values[slot] = f32::from_bits(unsafe { device::shuffle(table.to_bits(), raw >> (slot as u32 * BITS)) });
        }
        values
    }

    /// The same of one payload, whatever the decoders are.
    ///
    /// # Safety
    /// As [`Decoders::unit`].
    #[inline(always)]
    unsafe fn decode<const WEIGHTED: bool, const SMALL: bool>(
        &self,
        p: &DecodeParams,
        lane: u32,
        unit: u32,
        raw: u32,
    ) -> [f32; SLOTS] {
        // SAFETY: the caller brings all lanes here, and whether decoders are plain is the same in each.
        unsafe {
            if self.plain {
                self.unit::<WEIGHTED, SMALL, true>(p, lane, unit, raw)
            } else {
                self.unit::<WEIGHTED, SMALL, false>(p, lane, unit, raw)
            }
        }
    }
}

/// Decodes one payload: the body of the kernels that write, and of those that add.
///
/// # Safety
/// As the kernels ask; all lanes of the warp arrive together.
#[inline(always)]
unsafe fn one<Q: Quantizer, const ADD: bool, const SMALL: bool>(p: &DecodeParams, b: &Buffers, place: Place) {
    let parts = if SMALL { PARTS } else { 1 };
    let output = b.output.wrapping_add(place.element(0, 0) as usize);
    // SAFETY: the kernel's contract covers the scalars.
    let wire = || unsafe {
        let part = place.lane % (UNITS * parts) as u32;
        wire::<Q>(p, b, place.first + part * (UNIT / parts) as u32, 0)
    };
    // No sum that could wrap: `n` goes up to 2^31, and so does `first`.
    if place.first + WARP_SPAN <= p.n {
        // All loads stand before the first use of one.
        let mut raw = [0; UNITS];
        for unit in 0..UNITS {
            // SAFETY: the kernel's contract covers the codes.
            raw[unit] = unsafe { codes(p, b, place, unit as u32) };
        }
        let wire = wire();
        let mut values = [[0.0; SLOTS]; UNITS];
        if ADD {
            for unit in 0..UNITS {
                for slot in 0..SLOTS {
                    // SAFETY: the element is there.
                    values[unit][slot] = unsafe { *output.wrapping_add(behind(unit, slot)) };
                }
            }
        }
        // SAFETY: all lanes are here.
        let decoders = unsafe { Decoders::<Q>::new(p, wire) };
        for unit in 0..UNITS {
            // SAFETY: as above.
            let decoded = unsafe { decoders.decode::<ADD, SMALL>(p, place.lane, unit as u32, raw[unit]) };
            for slot in 0..SLOTS {
                let value = if ADD { canonical(values[unit][slot] + decoded[slot]) } else { decoded[slot] };
                // SAFETY: the element is there, and no other lane's.
                unsafe { *output.wrapping_add(behind(unit, slot)) = value };
            }
        }
        return;
    }
    // The last warp: a unit at a time, which takes few registers.
    // SAFETY: all lanes are here, because the warp's place is the same in each.
    let decoders = unsafe { Decoders::<Q>::new(p, wire()) };
    let units = (p.n - 1 - place.first) / UNIT as u32 + 1;
    let mut unit = 0;
    while unit < units {
        // SAFETY: all lanes are here; the element is there, and no other lane's.
        unsafe {
            let decoded = decoders.decode::<ADD, SMALL>(p, place.lane, unit, codes(p, b, place, unit));
            for slot in 0..SLOTS {
                if place.element(unit as usize, slot) < p.n {
                    let at = output.wrapping_add(behind(unit as usize, slot));
                    *at = if ADD { canonical(*at + decoded[slot]) } else { decoded[slot] };
                }
            }
        }
        // The compiler does not see how often the loop turns, and leaves it one.
        unit = device::opaque(unit + 1);
    }
}

/// What a warp that sums works on at a time: a unit, of the payloads from `batch` on.
#[derive(Clone, Copy)]
struct Turn {
    unit: u32,
    batch: u32,
}

impl Turn {
    /// Payloads from here on: those of the turn, or more.
    #[inline(always)]
    fn left(self, p: &DecodeParams) -> u32 {
        p.payloads - self.batch
    }

    /// The scalars of this lane: lane `4 k + j` has those of the `k`-th payload, in unit `j` or part `j` of the unit.
    ///
    /// # Safety
    /// As the kernels ask.
    #[inline(always)]
    unsafe fn wire<Q: Quantizer, const SMALL: bool>(self, p: &DecodeParams, b: &Buffers, place: Place) -> [f32; 2] {
        let part = place.lane % 4;
        let element = if SMALL { self.unit * UNIT as u32 + part * (UNIT / PARTS) as u32 } else { part * UNIT as u32 };
        // A batch may be short: its last payload stands in.
        let payload = (self.batch + place.lane / 4).min(p.payloads - 1);
        // SAFETY: the kernel's contract covers the scalars.
        unsafe { wire::<Q>(p, b, place.first + element, payload) }
    }

    /// The decoders of the turn, if `fresh` are its lanes' scalars.
    ///
    /// # Safety
    /// All lanes of the warp arrive together.
    #[inline(always)]
    unsafe fn decoders<Q: Quantizer>(self, p: &DecodeParams, place: Place, fresh: [f32; 2]) -> Decoders<Q> {
        // SAFETY: the caller brings all lanes here.
        let Decoders { own, plain } = unsafe { Decoders::<Q>::new(p, fresh) };
        // Payloads that stand in are worth nothing: a finite weight times zero, which changes no sum that began with +0.
        let there = place.lane / 4 < self.left(p);
        let own = own.handed_on(|word| if there { word } else { 0 });
        Decoders { own, plain: plain && p.weight().is_finite() }
    }

    /// Loads this lane's codes of four payloads. Behind the last, that one's stand in.
    ///
    /// # Safety
    /// As the kernels ask; there is such a turn.
    #[inline(always)]
    unsafe fn load<const FIRST: u32>(self, p: &DecodeParams, b: &Buffers, place: Place, raw: &mut [u32; 8]) {
        let at = unit_codes(p, b, place, place.first / UNIT as u32 + self.unit, self.batch);
        for k in FIRST..FIRST + BATCH / 2 {
            // In bytes, so that an instruction makes the address.
            let payload = u64::from((4 * k).min(4 * (self.left(p) - 1))) * u64::from(p.code_stride);
            // SAFETY: the unit has an element, so its codes are in every payload.
            raw[k as usize] = unsafe { *at.wrapping_byte_add(payload as usize) };
        }
    }

    /// Adds half of the turn's payloads to `values`.
    ///
    /// # Safety
    /// All lanes of the warp arrive together; the decoders are plain.
    #[inline(always)]
    unsafe fn add<Q: Quantizer, const SMALL: bool, const FIRST: u32>(
        self,
        p: &DecodeParams,
        lane: u32,
        decoders: &Decoders<Q>,
        raw: &[u32; BATCH as usize],
        values: &mut [f32; SLOTS],
    ) {
        // A table has the values of two decoders, one above the other: of two payloads, or of two parts.
        let high = lane / (1 << BITS);
        for pair in FIRST / 2..FIRST / 2 + BATCH / 4 {
            if !SMALL {
                // SAFETY: the caller brings all lanes here.
                let table = unsafe { decoders.table::<true, true>(p, lane, self.unit + 8 * pair + 4 * high) };
                // SAFETY: as above.
                unsafe {
                    look_up([table; 2], raw[2 * pair as usize], 0, values);
                    look_up([table; 2], raw[2 * pair as usize + 1], 0x1010_1010, values);
                }
                continue;
            }
            for k in 2 * pair..2 * pair + 2 {
                // SAFETY: as above.
                unsafe {
                    let tables = [0, 2].map(|part| decoders.table::<true, true>(p, lane, 4 * k + part + high));
                    look_up(tables, raw[k as usize], 0x1000_1000, values);
                }
            }
        }
    }
}

/// Adds what this lane's codes stand for: those of the first four slots in the first table, of the others in the second. `above` has,
/// in the bit above each code, which half of the table it is.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn look_up(tables: [f32; 2], raw: u32, above: u32, values: &mut [f32; SLOTS]) {
    const CODES: u32 = 0x0f0f_0f0f;
    let words = [raw & CODES | above, raw >> BITS & CODES | above];
    for slot in 0..SLOTS {
        // SAFETY: the caller brings all lanes here.
        let term = unsafe { device::shuffle(tables[slot / 4].to_bits(), words[slot % 2] >> (slot / 2 * 8)) };
        values[slot] += f32::from_bits(term);
    }
}

/// Decodes the sum of several payloads: a unit after the other, with the next one's codes on their way meanwhile.
///
/// # Safety
/// As [`one`].
#[inline(always)]
unsafe fn sum<Q: Quantizer, const SMALL: bool>(p: &DecodeParams, b: &Buffers, place: Place) {
    const HALF: u32 = BATCH / 2;
    let units = ((p.n - 1 - place.first) / UNIT as u32 + 1).min(UNITS as u32);
    // With one batch, the lanes have the decoders of all four units.
    let anew = SMALL || p.payloads > BATCH;
    let mut turn = Turn { unit: 0, batch: 0 };
    let mut raw = [0; BATCH as usize];
    // SAFETY: the kernel's contract covers the codes.
    unsafe {
        turn.load::<0>(p, b, place, &mut raw);
        if HALF < turn.left(p) {
            turn.load::<HALF>(p, b, place, &mut raw);
        }
    }
    // SAFETY: as above, of the scalars; all lanes are here.
    let mut decoders: Decoders<Q> = unsafe { turn.decoders(p, place, turn.wire::<Q, SMALL>(p, b, place)) };
    let mut values = [0.0; SLOTS];
    // What decides where the loop goes is the same in all lanes.
    loop {
        let last = turn.left(p) <= BATCH;
        let next = if last {
            Turn { unit: turn.unit + 1, batch: 0 }
        } else {
            Turn { unit: turn.unit, batch: turn.batch + BATCH }
        };
        let more = next.unit < units;
        let mut fresh = [0.0; 2];
        // SAFETY: the kernel's contract covers scalars and codes; all lanes are here.
        unsafe {
            if anew && more {
                fresh = next.wire::<Q, SMALL>(p, b, place);
            }
            if decoders.plain {
                turn.add::<Q, SMALL, 0>(p, place.lane, &decoders, &raw, &mut values);
                if more {
                    next.load::<0>(p, b, place, &mut raw);
                }
                if HALF < turn.left(p) {
                    turn.add::<Q, SMALL, HALF>(p, place.lane, &decoders, &raw, &mut values);
                }
                if more && HALF < next.left(p) {
                    next.load::<HALF>(p, b, place, &mut raw);
                }
            } else {
                // Read once more, because all that it takes would wait in registers.
                let decoders =
                    Decoders::<Q> { own: Q::decoder(turn.wire::<Q, SMALL>(p, b, place), p.levels), plain: false };
                for k in 0..BATCH {
                    if k < turn.left(p) {
                        let from = if SMALL { k } else { k * UNITS as u32 + turn.unit };
                        let terms = decoders.unit::<true, SMALL, false>(p, place.lane, from, raw[k as usize]);
                        for slot in 0..SLOTS {
                            values[slot] += terms[slot];
                        }
                    }
                }
                if more {
                    next.load::<0>(p, b, place, &mut raw);
                    if HALF < next.left(p) {
                        next.load::<HALF>(p, b, place, &mut raw);
                    }
                }
            }
        }
        if last {
            let element = place.element(turn.unit as usize, 0);
            let (output, left) = (b.output.wrapping_add(element as usize), p.n.saturating_sub(element));
            for slot in 0..SLOTS {
                if left > behind(0, slot) as u32 {
                    // A NaN stays one through a sum, so that one look at the end is enough.
                    // SAFETY: the element is there, and no other lane's.
                    unsafe { *output.wrapping_add(behind(0, slot)) = canonical(values[slot]) };
                }
                values[slot] = 0.0;
            }
        }
        if !more {
            return;
        }
        turn = next;
        if anew {
            // SAFETY: all lanes are here.
            decoders = unsafe { turn.decoders(p, place, fresh) };
        }
    }
}

macro_rules! body {
    (Write $formula:ty, $small:literal, $p:expr, $b:expr, $place:expr) => {
        one::<$formula, false, $small>(&$p, &$b, $place)
    };
    (Add $formula:ty, $small:literal, $p:expr, $b:expr, $place:expr) => {
        one::<$formula, true, $small>(&$p, &$b, $place)
    };
    (Sum $formula:ty, $small:literal, $p:expr, $b:expr, $place:expr) => {
        sum::<$formula, $small>(&$p, &$b, $place)
    };
}

macro_rules! entries {
    ($($one:ident, $many:ident $formula:ident $does:ident $small:literal;)*) => {$(
        kernel! {
            /// Decodes, for a preset.
            ///
            /// # What
            /// What the codec's `decode` does, to the byte.
            ///
            /// # Arguments
            /// * `p`: of `decode`, the width, levels and flags are those of the preset, whatever it holds.
            /// * All else as there.
            ///
            /// # Thread mapping
            /// A block takes 8192 elements, a warp 1024 of them as four units of 256; slot `j` of lane `i` of a unit is its element
            /// `32 j + i`, so that every access of a warp is consecutive. Lane `i` holds what code `i % 16` stands for. Of a sum,
            /// eight payloads' codes are on their way at a time, and lane `4 k + j` makes the decoder of the `k`-th of them for unit
            /// `j`; in small buckets, for part `j` of a unit.
            ///
            /// # Shared memory
            /// None.
            ///
            /// # Launch contract
            /// As there, but `ceil(n / 8192)` blocks; buckets of the preset's sizes.
            ///
            /// # Traffic
            /// As there.
            ///
            /// # Determinism
            /// Backend to backend, as there.
            ///
            /// # Edge cases
            /// As there.
            ///
            /// # Safety
            /// As there.
            fn $one(
                p: DecodeParams,
                scalars: *const u32,
                codes: *const u8,
                output: *mut f32,
            ) {
                const LEVELS: u32 = crate::codecs::CodecId::$formula.max_levels(BITS);
                let b = Buffers { scalars, codes, output };
                let p = fixed::<$small>(p, LEVELS);
                if let Some(place) = place(&p, device::block()) {
                    // SAFETY: the kernel's contract; all lanes are here.
                    unsafe { body!($does formula!($formula), $small, p, b, place) }
                }
            }
        }

        kernel! {
            /// Decodes payloads of many tensors that lie in one buffer, for a preset.
            ///
            /// # What
            /// What the codec's `decode_segments` does, to the byte.
            ///
            /// # Arguments
            /// * `p`: of `decode_segments`, the width, levels and flags are those of the preset, whatever it holds.
            /// * All else as there.
            ///
            /// # Thread mapping
            /// A block takes an item; within it as the kernel of the preset for one tensor.
            ///
            /// # Shared memory
            /// None.
            ///
            /// # Launch contract
            /// As there, but a block for each item; buckets of the preset's sizes.
            ///
            /// # Traffic
            /// As there.
            ///
            /// # Determinism
            /// Backend to backend, as there.
            ///
            /// # Edge cases
            /// As there.
            ///
            /// # Safety
            /// As there.
            fn $many(
                p: DecodeParams,
                scalars: *const u32,
                codes: *const u8,
                output: *mut f32,
                table: *const u32,
            ) {
                const LEVELS: u32 = crate::codecs::CodecId::$formula.max_levels(BITS);
                // SAFETY: the kernel's contract has an item for each block.
                let (p, b) = unsafe { of_item(&p, Buffers { scalars, codes, output }, table) };
                let p = fixed::<$small>(p, LEVELS);
                if let Some(place) = place(&p, 0) {
                    // SAFETY: the kernel's contract; all lanes are here.
                    unsafe { body!($does formula!($formula), $small, p, b, place) }
                }
            }
        }
    )*};
}

macro_rules! formula {
    (Qsgd) => {
        arith::qsgd::Qsgd
    };
    (Uniform) => {
        arith::uniform::Uniform
    };
}

decode_presets!(entries);
