//! The random draws of a tile, and what they add before rounding.

use super::tile::{Place, UNITS};
use crate::arith::pack::{LANES, SLOTS, UNIT};
use crate::arith::philox::{Stream, block};
use crate::arith::round::{dither_nearest, dither16, dither32};
use crate::device;
use crate::params::{EncodeParams, encode_flags};

/// Words of 16-bit draws: `[u][w]` holds those of slots `2 w` and `2 w + 1` of unit `u`.
pub(super) type Draws = [[u32; 4]; UNITS];

/// Whether the elements of this launch take 16 random bits each.
#[inline(always)]
fn is_narrow(p: &EncodeParams) -> bool {
    p.flags & (encode_flags::NEAREST | encode_flags::WIDE) == 0
}

/// The unit's index in the tensor, times the lanes, plus the lane.
#[inline(always)]
fn call(p: &EncodeParams, place: Place, unit: usize) -> u32 {
    (p.first_unit + place.unit(unit) / UNIT as u32) * LANES as u32 + place.lane
}

/// The 16-bit draws of a tile, where it takes such; it needs no value, so it goes on while values are on their way.
#[inline(always)]
pub(super) fn narrow(p: &EncodeParams, place: Place) -> Draws {
    let mut draws = [[0; 4]; UNITS];
    if is_narrow(p) {
        for unit in 0..UNITS {
            draws[unit] = block(p.stream(), call(p, place, unit));
        }
    }
    draws
}

/// What is added to the fixed-point values of a unit's slots before they are cut off.
#[inline(always)]
pub(super) fn dithers(p: &EncodeParams, place: Place, unit: usize, narrow: &[u32; 4]) -> [u32; SLOTS] {
    let mut dithers = [0; SLOTS];
    if is_narrow(p) {
        for slot in 0..SLOTS {
            let word = narrow[slot / 2];
            dithers[slot] = dither16(if slot % 2 == 0 { word } else { word >> 16 }, p.fraction);
        }
    } else if p.has(encode_flags::NEAREST) {
        dithers = [dither_nearest(p.fraction); SLOTS];
    } else {
        // 32 bits an element would be 32 registers for a tile; they are drawn where they are used.
        // So would be the keys of the rounds, which are the same for every unit.
        let stream = Stream { key: p.key.map(device::opaque), ..p.stream() };
        let first = call(p, place, unit) * 2;
        for half in 0..2 {
            let words = block(stream, first + half as u32);
            for word in 0..4 {
                dithers[half * 4 + word] = dither32(words[word], p.fraction);
            }
        }
    }
    dithers
}
