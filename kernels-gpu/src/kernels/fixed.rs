//! Encode kernels of presets: what `encode` and `encode_segments` do, for settings that the compiler knows.

use super::codes::store_high;
use super::quantizer::{Measured, measure, of_lane};
use super::statistic::Grouping;
use super::tile::{Buffers, Place, Tile, UNITS, of_item};
use crate::arith;
use crate::arith::float::bf16_to_f32;
use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::arith::philox::block_of;
use crate::arith::round::fraction_bits;
use crate::device;
use crate::params::{EncodeParams, FixedParams, dtype};
use crate::presets::presets;

/// The parameters, with what is fixed as constants.
#[inline(always)]
fn fixed<const DTYPE: u32, const BITS: u32, const SMALL: bool>(p: EncodeParams, levels: u32) -> EncodeParams {
    // 32 to 128 elements, or 256 to 1024.
    let bucket_log2 = if SMALL { p.bucket_log2 & 7 } else { (8 | p.bucket_log2 & 3).min(10) };
    EncodeParams { dtype: DTYPE, bits: BITS, levels, fraction: fraction_bits(levels), flags: 0, bucket_log2, ..p }
}

/// The body of the kernels.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
unsafe fn encode<Q: Measured, const BITS: u32, const PACKS: bool>(
    p: &EncodeParams,
    keys: &Keys,
    b: &Buffers,
    place: Place,
) {
    // SAFETY: the kernel's contract covers the input.
    let mut tile = unsafe { load::<Q, PACKS>(p, b, place) };
    let mut packed = [0; PAIRS];
    if PACKS {
        packed = pack(&tile);
        tile = unpack(&packed);
    }
    let grouping = Grouping::new(p.bucket_log2);
    // SAFETY: the bucket is the same for all threads, so all are here.
    let encoder = Q::encoder(p, Q::statistic(p, unsafe { measure::<Q>(p, place, &tile, grouping) }));
    if let Some(bucket) = grouping.leads(place, p.n) {
        let wire = Q::wire(&encoder);
        for scalar in 0..Q::SCALARS {
            // SAFETY: every bucket that has an element has its scalars, and one lane that leads it.
            unsafe { *b.scalars.add(bucket as usize * Q::SCALARS + scalar) = wire[scalar].to_bits() };
        }
    }
    if PACKS {
        // Or the values would wait as they were measured.
        tile = unpack(&packed.map(device::opaque));
    }
    // SAFETY: the kernel's contract covers the codes; all lanes are here.
    unsafe { units::<Q, BITS>(p, keys, b, place, &tile, &encoder) }
}

/// Registers that hold a lane's values, two in each.
const PAIRS: usize = UNITS * SLOTS / 2;

/// A tile of bf16 as it was loaded, two values in a register: of slots that follow one another the latter is above.
///
/// What a lane holds while it encodes then takes half of the registers, and more blocks run at a time.
#[inline(always)]
fn pack(tile: &Tile) -> [u32; PAIRS] {
    let mut packed = [0; PAIRS];
    for pair in 0..PAIRS {
        let (unit, slot) = (2 * pair / SLOTS, 2 * pair % SLOTS);
        // A sum that the compiler does not see through is one instruction, and is not taken apart again.
        let low = device::opaque(tile[unit][slot]);
        packed[pair] = device::opaque(low.wrapping_add(tile[unit][slot + 1] << 16));
    }
    packed
}

/// The values that were packed, as f32.
#[inline(always)]
fn unpack(packed: &[u32; PAIRS]) -> Tile {
    let mut tile = [[0; SLOTS]; UNITS];
    for pair in 0..PAIRS {
        let (unit, slot) = (2 * pair / SLOTS, 2 * pair % SLOTS);
        tile[unit][slot] = packed[pair] << 16;
        tile[unit][slot + 1] = packed[pair] & 0xffff_0000;
    }
    tile
}

/// The warp's values, as f32; with `PACKS`, as they are stored. After the last element lie zeros, or copies of it.
///
/// # Safety
/// `input` holds `p.n` elements, at least one, each aligned to its type's size. All lanes of the warp arrive together.
#[inline(always)]
unsafe fn load<Q: Measured, const PACKS: bool>(p: &EncodeParams, b: &Buffers, place: Place) -> Tile {
    let start = place.element(0, 0) as usize;
    let value = |k: usize| {
        // SAFETY: the caller asks for no other than the launch's elements.
        unsafe {
            if p.dtype == dtype::F32 {
                *b.input.cast::<u32>().add(start).add(k)
            } else if PACKS {
                u32::from(*b.input.cast::<u16>().add(start).add(k))
            } else {
                bf16_to_f32(*b.input.cast::<u16>().add(start).add(k)).to_bits()
            }
        }
    };
    let mut tile = [[0; SLOTS]; UNITS];
    if place.is_full(p.n) {
        for unit in 0..UNITS {
            for slot in 0..SLOTS {
                tile[unit][slot] = value(unit * UNIT + slot * LANES);
            }
        }
        return tile;
    }
    let mut last = 0;
    for unit in 0..UNITS {
        for slot in 0..SLOTS {
            if place.element(unit, slot) < p.n {
                tile[unit][slot] = value(unit * UNIT + slot * LANES);
                // In the lane that has the launch's last element, that is the last one here.
                last = tile[unit][slot];
            }
        }
    }
    if Q::PADS_WITH_AN_ELEMENT {
        // SAFETY: whether a warp is full is the same in all lanes, so all are here.
        let pad = unsafe { device::shuffle(last, (p.n - 1).wrapping_sub(place.first)) };
        for unit in 0..UNITS {
            for slot in 0..SLOTS {
                if place.element(unit, slot) >= p.n {
                    tile[unit][slot] = pad;
                }
            }
        }
    }
    tile
}

type Keys = [[u32; 2]; crate::arith::philox::ROUNDS];

/// Encodes the units of a warp with the encoders that its lanes own.
///
/// # Safety
/// As the kernels ask; all lanes of the warp arrive together.
#[inline(always)]
unsafe fn units<Q: Measured, const BITS: u32>(
    p: &EncodeParams,
    keys: &Keys,
    b: &Buffers,
    place: Place,
    tile: &Tile,
    encoder: &Q::Encoder,
) {
    let small = Grouping::new(p.bucket_log2).is_small();
    let full = place.is_full(p.n);
    for unit in 0..UNITS {
        let first = place.unit(unit);
        // The same in all lanes, so that shuffles may follow.
        if !full && first >= p.n {
            return;
        }
        let call = (p.first_unit + first / UNIT as u32) * LANES as u32 + place.lane;
        let words = block_of(p.stream(), keys, call);
        let mut high = [0; SLOTS];
        let draw = |slot: usize| words[slot / 2] >> (slot % 2 * 16);
        if small {
            for slot in 0..SLOTS {
                // SAFETY: all lanes are here.
                let encoder = unsafe { of_lane(encoder, (unit * SLOTS + slot) as u32) };
                // SAFETY: the encoder is of the slot's bucket, and codes have at most 8 bits here.
                high[slot] = unsafe { Q::high(p, &encoder, tile[unit][slot], draw(slot)) };
            }
        } else {
            // SAFETY: all lanes are here.
            let of_unit = unsafe { of_lane(encoder, unit as u32) };
            if let Some(plain) = Q::plain(&of_unit) {
                for slot in 0..SLOTS {
                    // SAFETY: as above, of the unit's bucket.
                    high[slot] = unsafe { Q::high(p, &plain, tile[unit][slot], draw(slot)) };
                }
            } else {
                for slot in 0..SLOTS {
                    // SAFETY: as above.
                    high[slot] = unsafe { Q::high(p, &of_unit, tile[unit][slot], draw(slot)) };
                }
            }
        }
        if !full {
            let left = place.left(unit, p.n);
            for slot in 0..SLOTS {
                if (slot * LANES) as i32 >= left {
                    high[slot] = 0;
                }
            }
        }
        let at = (first as usize / UNIT) * unit_bytes(BITS);
        // SAFETY: the unit has an element, so its codes are in the buffer.
        unsafe { store_high::<BITS>(b.codes.add(at), place.lane, &high) };
    }
}

macro_rules! entries {
    ($($name:ident $formula:ident $dtype:ident $bits:literal $small:literal $segments:literal;)*) => {$(
        kernel! {
            /// Encodes, for a preset.
            ///
            /// # What
            /// What the codec's `encode` does, or with many tensors its `encode_segments`, to the byte.
            ///
            /// # Arguments
            /// * `p`: of `encode`, the type, the width, levels, fraction and flags are those of the preset, whatever it
            ///   holds.
            /// * All else as there. `residual` and `status` are not used.
            ///
            /// # Thread mapping
            /// As there.
            ///
            /// # Shared memory
            /// None.
            ///
            /// # Launch contract
            /// As there; buckets of the preset's sizes.
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
            fn $name(
                p: FixedParams,
                input: *const u8,
                residual: *mut f32,
                scalars: *mut u32,
                codes: *mut u8,
                workspace: *mut u32,
                status: *mut u32,
            ) {
                const LEVELS: u32 = crate::codecs::CodecId::$formula.max_levels($bits);
                // Of uniform quantization, which measures two extremes, no more blocks would run at a time.
                const PACKS: bool = matches!(crate::codecs::CodecId::$formula, crate::codecs::CodecId::Qsgd)
                    && dtype::$dtype != dtype::F32
                    && !$small;
                type Formula = formula!($formula);
                let b = Buffers { input, residual, scalars, codes, workspace, status };
                let encode_params = fixed::<{ dtype::$dtype }, $bits, $small>(p.encode, LEVELS);
                // SAFETY: the kernel's contract.
                unsafe {
                    if $segments {
                        let (q, b) = of_item(&encode_params, &b);
                        encode::<Formula, $bits, PACKS>(&q, &p.keys, &b, Place::in_span(0));
                    } else {
                        encode::<Formula, $bits, PACKS>(&encode_params, &p.keys, &b, Place::in_span(device::block()));
                    }
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

presets!(entries);
