//! What both bucketed quantizers do with a tile, whatever their formula.

use super::codes;
use super::draws::{self, Draws};
use super::statistic::Grouping;
use super::tile::{Buffers, Place, Tile, UNITS, load};
use crate::arith::float::canonical;
use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::device;
use crate::params::{EncodeParams, PARTIAL_WORDS, WHOLE, encode_flags};

/// A quantizer with scalars a bucket; formulas come from [`crate::arith`].
pub(super) trait Quantizer {
    /// What encoding an element of a bucket needs.
    type Encoder: Copy;
    /// What decoding an element of a bucket needs.
    type Decoder: Copy;
    /// Scalars on the wire, a bucket.
    const SCALARS: usize;
    /// Whether what lies behind the last element must look like the last; else it looks like zero.
    const PAD_WITH_LAST: bool;

    /// Each lane gets the partial statistic of the bucket that what it owns lies in.
    ///
    /// # Safety
    /// All threads of the block arrive together.
    unsafe fn statistic(p: &EncodeParams, place: Place, tile: &Tile, grouping: Grouping) -> [u32; 4];
    /// The statistic of a bucket whose only partial statistic this is.
    fn finish(p: &EncodeParams, partial: [u32; 4]) -> [u32; 2];
    /// The encoder of a bucket with this statistic.
    fn encoder(p: &EncodeParams, statistic: [u32; 2]) -> Self::Encoder;
    /// The encoder that lane `from` has.
    ///
    /// # Safety
    /// As [`device::shuffle`].
    unsafe fn encoder_of(encoder: &Self::Encoder, from: usize) -> Self::Encoder;
    /// The scalars on the wire, the first [`Quantizer::SCALARS`] of them.
    fn wire(encoder: &Self::Encoder) -> [f32; 2];
    /// Whether the bucket holds a NaN or an infinity.
    fn poisoned(encoder: &Self::Encoder) -> bool;
    /// The code of a value.
    fn code(p: &EncodeParams, encoder: &Self::Encoder, value: u32, dither: u32) -> u32;
    /// The decoder of a bucket with these scalars.
    fn decoder(wire: [f32; 2], levels: u32) -> Self::Decoder;
    /// The decoder that lane `from` has.
    ///
    /// # Safety
    /// As [`device::shuffle`].
    unsafe fn decoder_of(decoder: &Self::Decoder, from: usize) -> Self::Decoder;
    /// The value of a code.
    fn value(decoder: &Self::Decoder, bits: u32, levels: u32, code: u32) -> f32;
}

/// The body of the encode kernels.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
pub(super) unsafe fn encode<Q: Quantizer>(p: EncodeParams, b: Buffers) {
    // SAFETY: a guarded launch has a status.
    if p.has(encode_flags::GUARDED) && unsafe { *b.status } != 0 {
        return;
    }
    let place = Place::here();
    // SAFETY: the kernel's contract covers the input and the residual.
    let tile = unsafe { if Q::PAD_WITH_LAST { load::<true>(&p, &b, place) } else { load::<false>(&p, &b, place) } };
    let draws = draws::narrow(&p, place);
    let encoder = if p.bucket_log2 == WHOLE {
        // SAFETY: a launch over a part of one bucket has the combine kernel's words in its workspace.
        Q::encoder(&p, unsafe { [*b.workspace, *b.workspace.add(1)] })
    } else {
        let grouping = Grouping::new(p.bucket_log2);
        // SAFETY: the bucket is the same for all threads, so all are here.
        let encoder = Q::encoder(&p, Q::finish(&p, unsafe { Q::statistic(&p, place, &tile, grouping) }));
        if let Some(bucket) = grouping.leads(place, p.n) {
            let wire = Q::wire(&encoder);
            for scalar in 0..Q::SCALARS {
                // SAFETY: every bucket that has an element has its scalars, and one lane that leads it.
                unsafe { *b.scalars.add(bucket as usize * Q::SCALARS + scalar) = wire[scalar].to_bits() };
            }
        }
        encoder
    };
    // SAFETY: as above; `WHOLE` counts as large.
    unsafe {
        if Grouping::new(p.bucket_log2).is_small() {
            units::<Q, true>(&p, &b, place, &tile, &draws, &encoder);
        } else {
            units::<Q, false>(&p, &b, place, &tile, &draws, &encoder);
        }
    }
}

/// Encodes the units of a warp with the encoders that its lanes own: of their rows where `SMALL`, else of their units.
///
/// # Safety
/// As the encode kernels ask; all lanes of the warp arrive together.
#[inline(always)]
unsafe fn units<Q: Quantizer, const SMALL: bool>(
    p: &EncodeParams,
    b: &Buffers,
    place: Place,
    tile: &Tile,
    draws: &Draws,
    encoder: &Q::Encoder,
) {
    let decoder = Q::decoder(Q::wire(encoder), p.levels);
    for unit in 0..UNITS {
        let first = place.unit(unit);
        // The same in all lanes, so that shuffles may stand behind it.
        if first >= p.n {
            return;
        }
        let dithers = draws::dithers(p, place, unit, &draws[unit]);
        let mut unit_codes = [0; SLOTS];
        // SAFETY (of every shuffle): all lanes are here.
        let of_unit = unsafe { Q::encoder_of(encoder, unit) };
        for slot in 0..SLOTS {
            let encoder = if SMALL { unsafe { Q::encoder_of(encoder, unit * SLOTS + slot) } } else { of_unit };
            unit_codes[slot] = Q::code(p, &encoder, tile[unit][slot], dithers[slot]);
        }
        if p.n - first < UNIT as u32 {
            for slot in 0..SLOTS {
                if place.element(unit, slot) >= p.n {
                    unit_codes[slot] = 0;
                }
            }
        }
        let at = (first as usize / UNIT) * unit_bytes(p.bits);
        // SAFETY: the unit has an element, so its codes are in the buffer.
        unsafe { codes::store(b.codes.add(at), place.lane, p.bits, &unit_codes) };
        if p.has(encode_flags::FEEDBACK) {
            let of_unit = unsafe { (Q::decoder_of(&decoder, unit), Q::encoder_of(encoder, unit)) };
            for slot in 0..SLOTS {
                let row = unit * SLOTS + slot;
                let (decoder, encoder) =
                    if SMALL { unsafe { (Q::decoder_of(&decoder, row), Q::encoder_of(encoder, row)) } } else { of_unit };
                let element = place.element(unit, slot);
                // A poisoned bucket's residual stays as it was: its step will be skipped.
                if element < p.n && !Q::poisoned(&encoder) {
                    let value = Q::value(&decoder, p.bits, p.levels, unit_codes[slot]);
                    let rest = canonical(f32::from_bits(tile[unit][slot]) - value);
                    // SAFETY: the element is there, and no other lane's.
                    unsafe { *b.residual.add(element as usize) = rest };
                }
            }
        }
    }
}

/// The body of the statistics kernels.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
pub(super) unsafe fn stats<Q: Quantizer>(p: EncodeParams, b: Buffers) {
    let place = Place::here();
    // SAFETY: the kernel's contract covers the input and the residual; all threads are here.
    let partial = unsafe {
        let tile = if Q::PAD_WITH_LAST { load::<true>(&p, &b, place) } else { load::<false>(&p, &b, place) };
        Q::statistic(&p, place, &tile, Grouping::BLOCK)
    };
    if device::thread() == 0 {
        for (word, value) in partial.into_iter().enumerate() {
            // SAFETY: the workspace holds one partial statistic a block.
            unsafe { *b.workspace.add((device::block() * PARTIAL_WORDS) as usize + word) = value };
        }
    }
}

const _: () = assert!(LANES == device::WARP as usize);
