//! Decode kernels of presets: what `decode` and `decode_segments` do, for settings that the compiler knows.
//!
//! A code has 16 values at most, and a unit's rows lie in one bucket or in four parts that each do. So lane `i` makes
//! what code `i % 16` stands for in a part, once, and each element asks the lane that its code names. A shuffle takes
//! the low five bits of what it is given: the lanes beyond the last code answer for codes with another's bit above
//! their own.

use self::sum::sum;
use self::unit::{Decoders, PARTS, Place, behind, unit_codes, wire};
use super::decode::{Buffers, of_sum};
use super::tile::{UNITS, WARP_SPAN};
use crate::arith;
use crate::arith::pack::{SLOTS, UNIT};
use crate::arith::quantizer::Quantizer;
use crate::device;
use crate::params::{DecodeParams, SPAN, item};
use crate::presets::decode::{BITS, decode_presets};

mod sum;
mod unit;

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

/// This lane's codes of a unit of the warp. After the last unit, that one's stand in.
///
/// # Safety
/// As [`wire`].
#[inline(always)]
unsafe fn codes(p: &DecodeParams, b: &Buffers, place: Place, unit: u32) -> u32 {
    let unit = (place.first / UNIT as u32 + unit).min((p.n - 1) / UNIT as u32);
    // SAFETY: the unit has an element, so its codes are in the payload.
    unsafe { *unit_codes(p, b, place, unit, 0) }
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
