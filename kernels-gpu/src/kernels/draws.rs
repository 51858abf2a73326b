//! What is added to a unit's fixed-point values before they are cut off: random draws, or a half.

use super::tile::Place;
use crate::arith::pack::{LANES, SLOTS, UNIT};
use crate::arith::philox::block;
use crate::arith::round::{dither_nearest, dither16, dither32};
use crate::params::{EncodeParams, encode_flags};

/// The dither of each slot of a unit of the warp.
#[inline(always)]
pub(super) fn dithers(p: &EncodeParams, place: Place, unit: usize) -> [u32; SLOTS] {
    if p.has(encode_flags::NEAREST) {
        return [dither_nearest(p.fraction); SLOTS];
    }
    let mut dithers = [0; SLOTS];
    // The unit's index in the tensor, times the lanes, plus the lane.
    let call = (p.first_unit + place.unit(unit) / UNIT as u32) * LANES as u32 + place.lane;
    if p.has(encode_flags::WIDE) {
        for half in 0..2 {
            let words = block(p.stream(), call * 2 + half as u32);
            for word in 0..4 {
                dithers[half * 4 + word] = dither32(words[word], p.fraction);
            }
        }
    } else {
        let words = block(p.stream(), call);
        for word in 0..4 {
            dithers[word * 2] = dither16(words[word], p.fraction);
            dithers[word * 2 + 1] = dither16(words[word] >> 16, p.fraction);
        }
    }
    dithers
}
