//! Decode kernels of presets: what `decode` and `decode_segments` do, for settings that the compiler knows.
//!
//! A code has 16 values at most, and a unit's rows lie in one bucket or in four parts that each do. So lane `i` makes
//! what code `i % 16` stands for in a part, once, and each element asks the lane that its code names. A shuffle takes
//! the low five bits of what it is given: the lanes beyond the last code answer for codes with another's bit above
//! their own.

use self::sum::sum;
use super::decode::{Buffers, of_sum};
use super::quantizer::of_lane;
use super::tile::{UNITS, WARP_SPAN};
use crate::arith;
use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::arith::quantizer::Quantizer;
use crate::device;
use crate::params::{DecodeParams, SPAN, item};
use crate::presets::decode::{BITS, decode_presets};

mod sum;

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

/// Elements from a lane's first one to that in a slot of a unit of the warp. Added to an address it takes no
/// instruction.
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

    /// What this lane's code stands for by the decoder that lane `from` has, times the weight if there is one. `PLAIN`
    /// says that all decoders are.
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
                let value = if ADD { of_sum(values[unit][slot] + decoded[slot]) } else { decoded[slot] };
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
                    *at = if ADD { of_sum(*at + decoded[slot]) } else { decoded[slot] };
                }
            }
        }
        // The compiler does not see how often the loop turns, and leaves it one.
        unit = device::opaque(unit + 1);
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
            /// A block takes 8192 elements, a warp 1024 of them as four units of 256; slot `j` of lane `i` of a unit is
            /// its element `32 j + i`, so that every access of a warp is consecutive. Lane `i` holds what code `i % 16`
            /// stands for. Of a sum, eight payloads' codes are on their way at a time, and lane `4 k + j` makes the
            /// decoder of the `k`-th of them for unit `j`; in small buckets, for part `j` of a unit.
            ///
            /// # Shared memory
            /// None.
            ///
            /// # Launch contract
            /// As there, but `ceil(n / 8192)` blocks; buckets of the preset's sizes.
            ///
            /// # Traffic
            /// As there. Uncoalesced: scalars that a warp reads with one load, of two in a bucket or of several
            /// payloads, as there.
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
            /// As there. Uncoalesced: scalars that a warp reads with one load, of two in a bucket or of several
            /// payloads, as there.
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
