//! What every bucketed quantizer does with a tile, whatever its formula.

use super::codes;
use super::combine;
use super::draws::dithers;
use super::quantizer::{Measured, measure, of_lane};
use super::statistic::Grouping;
use super::tile::{Buffers, Place, Tile, UNITS, load, of_item};
use crate::arith::float::canonical;
use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::device;
use crate::params::{EncodeParams, WHOLE, encode_flags};

/// The body of the encode kernels.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
pub(super) unsafe fn encode<Q: Measured>(p: EncodeParams, b: Buffers) {
    // SAFETY: the caller has launched the kernel as it asks, and a block is a span.
    unsafe { encode_span::<Q>(p, b, Place::here()) }
}

/// The body of the encode kernels that take many tensors.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
pub(super) unsafe fn encode_item<Q: Measured>(p: EncodeParams, b: Buffers) {
    // A bucket is never a whole tensor here, and the compiler knows it by the bucket's size.
    let p = EncodeParams { bucket_log2: p.bucket_log2 & 15, ..p };
    // SAFETY: the kernel's contract covers the table and what its items say.
    unsafe {
        let (p, b) = of_item(&p, &b);
        encode_span::<Q>(p, b, Place::in_span(0));
    }
}

/// The body of the encode kernels that take many tensors, each of them one bucket.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
pub(super) unsafe fn encode_tensor_item<Q: Measured>(p: EncodeParams, b: Buffers) {
    let p = EncodeParams { bucket_log2: WHOLE, ..p };
    // SAFETY: the kernel's contract covers the table and what its items say.
    unsafe {
        let statistic = combine::statistic_of_item(&p, &b);
        let (p, b) = of_item(&p, &b);
        encode_span::<Q>(p, Buffers { workspace: statistic, ..b }, Place::in_span(0));
    }
}

/// # Safety
/// As the kernels ask.
#[inline(always)]
unsafe fn encode_span<Q: Measured>(p: EncodeParams, b: Buffers, place: Place) {
    // SAFETY: a guarded launch has a status.
    if p.has(encode_flags::GUARDED) && unsafe { *b.status } != 0 {
        return;
    }
    // SAFETY: the kernel's contract covers the input and the residual.
    let tile =
        unsafe { if Q::PADS_WITH_AN_ELEMENT { load::<true>(&p, &b, place) } else { load::<false>(&p, &b, place) } };
    let encoder = if p.bucket_log2 == WHOLE {
        // SAFETY: a launch over a part of one bucket has the combine kernel's words in its workspace.
        Q::encoder(&p, unsafe { [*b.workspace, *b.workspace.add(1)] })
    } else {
        let grouping = Grouping::new(p.bucket_log2);
        // SAFETY: the bucket is the same for all threads, so all are here.
        let encoder = Q::encoder(&p, Q::statistic(&p, unsafe { measure::<Q>(&p, place, &tile, grouping) }));
        if let Some(bucket) = grouping.leads(place, p.n) {
            let wire = Q::wire(&encoder);
            for scalar in 0..Q::SCALARS {
                // SAFETY: every bucket that has an element has its scalars, and one lane that leads it.
                unsafe { *b.scalars.add(bucket as usize * Q::SCALARS + scalar) = wire[scalar].to_bits() };
            }
        }
        encoder
    };
    // SAFETY: the kernel's contract covers the codes and the residual; all lanes are here.
    unsafe { units::<Q>(&p, &b, place, &tile, &encoder) }
}

/// The same parameters, without what the compiler has computed from them.
///
/// Keys of rounds, shifts and masks are the same for every unit. Carried from unit to unit they would take half as
/// many registers as the tile; made anew for each they take an instruction per element, or none where the machine has a
/// unit for what is uniform.
#[inline(always)]
fn fresh(p: &EncodeParams) -> EncodeParams {
    EncodeParams {
        bits: device::opaque(p.bits),
        levels: device::opaque(p.levels),
        fraction: device::opaque(p.fraction),
        key: p.key.map(device::opaque),
        ..*p
    }
}

/// Encodes the units of a warp with the encoders that its lanes own.
///
/// # Safety
/// As the encode kernels ask; all lanes of the warp arrive together.
#[inline(always)]
unsafe fn units<Q: Measured>(p: &EncodeParams, b: &Buffers, place: Place, tile: &Tile, encoder: &Q::Encoder) {
    // `WHOLE` counts as large.
    let small = Grouping::new(p.bucket_log2).is_small();
    let owner = |unit: usize, slot: usize| if small { unit * SLOTS + slot } else { unit } as u32;
    let full = place.is_full(p.n);
    for unit in 0..UNITS {
        let first = place.unit(unit);
        // The same in all lanes, so that shuffles may follow.
        if !full && first >= p.n {
            return;
        }
        let p = &fresh(p);
        let dithers = dithers(p, place, unit);
        let mut unit_codes = [0; SLOTS];
        // SAFETY: all lanes are here.
        let of_unit = unsafe { of_lane(encoder, unit as u32) };
        if let Some(encoder) = Q::plain(&of_unit).filter(|_| !small) {
            for slot in 0..SLOTS {
                // SAFETY: the encoder is of the unit's bucket, and a draw's dither is below 2^fraction.
                unit_codes[slot] = unsafe { Q::code::<true>(p, &encoder, tile[unit][slot], dithers[slot]) };
            }
        } else {
            for slot in 0..SLOTS {
                // SAFETY: all lanes are here.
                let encoder = unsafe { of_lane(encoder, owner(unit, slot)) };
                // SAFETY: the encoder is of the slot's bucket, and a draw's dither is below 2^fraction.
                unit_codes[slot] = unsafe { Q::code::<true>(p, &encoder, tile[unit][slot], dithers[slot]) };
            }
        }
        if !full {
            let left = place.left(unit, p.n);
            for slot in 0..SLOTS {
                if (slot * LANES) as i32 >= left {
                    unit_codes[slot] = 0;
                }
            }
        }
        let at = (first as usize / UNIT) * unit_bytes(p.bits);
        // SAFETY: the unit has an element, so its codes are in the buffer.
        unsafe { codes::store(b.codes.add(at), place.lane, p.bits, &unit_codes) };
        if p.has(encode_flags::FEEDBACK) {
            // SAFETY: the unit's first element is there; the pointer is not used where this lane's is not.
            let residual = unsafe { b.residual.add(first as usize) }.wrapping_add(place.lane as usize);
            // Made here rather than once a warp, and no part of it earlier: a decoder takes many registers, and a
            // launch without feedback none.
            let wire = Q::wire(encoder).map(|scalar| f32::from_bits(device::opaque(scalar.to_bits())));
            let decoder = Q::decoder(wire, p.levels);
            // What decoding the slot will not give back.
            let rest = |decoder: &Q::Decoder, slot: usize| {
                let decoded = Q::value(decoder, p.bits, p.levels, unit_codes[slot]);
                canonical(f32::from_bits(tile[unit][slot]) - decoded)
            };
            // SAFETY: all lanes are here.
            let of_unit = unsafe { of_lane(&decoder, unit as u32) };
            if let Some(decoder) = Q::plain_decoder(&of_unit).filter(|_| !small && full) {
                // Without a condition at every slot, the eight go along side by side.
                for slot in 0..SLOTS {
                    // SAFETY: the element is there, and no other lane's.
                    unsafe { *residual.add(slot * LANES) = rest(&decoder, slot) };
                }
            } else {
                let left = place.left(unit, p.n);
                for slot in 0..SLOTS {
                    // SAFETY: all lanes are here.
                    let decoder = unsafe { of_lane(&decoder, owner(unit, slot)) };
                    // A poisoned bucket's residual stays as it was: its step will be skipped.
                    if ((slot * LANES) as i32) < left && !Q::poisoned(&decoder) {
                        // SAFETY: the element is there, and no other lane's.
                        unsafe { *residual.add(slot * LANES) = rest(&decoder, slot) };
                    }
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
pub(super) unsafe fn stats<Q: Measured>(p: EncodeParams, b: Buffers) {
    // SAFETY: the workspace holds one partial statistic a block.
    unsafe {
        let to = b.workspace.cast::<Q::Partial>().wrapping_add(device::block() as usize);
        stats_span::<Q>(&p, &b, Place::here(), to);
    }
}

/// The body of the statistics kernels that take many tensors.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
pub(super) unsafe fn stats_item<Q: Measured>(p: EncodeParams, b: Buffers) {
    // SAFETY: the kernel's contract covers the table and what its items say, and the statistics.
    unsafe {
        let to = combine::partial_of_item::<Q>(&p, &b);
        let (p, b) = of_item(&p, &b);
        stats_span::<Q>(&p, &b, Place::in_span(0), to);
    }
}

/// # Safety
/// As the kernels ask; `to` has room for a partial statistic.
#[inline(always)]
unsafe fn stats_span<Q: Measured>(p: &EncodeParams, b: &Buffers, place: Place, to: *mut Q::Partial) {
    // SAFETY: the kernel's contract covers the input and the residual; all threads are here.
    let partial = unsafe {
        let tile = if Q::PADS_WITH_AN_ELEMENT { load::<true>(p, b, place) } else { load::<false>(p, b, place) };
        measure::<Q>(p, place, &tile, Grouping::BLOCK)
    };
    if device::thread() == 0 {
        // SAFETY: the block's partial statistic is there, and this thread's alone.
        unsafe { *to = partial };
    }
}

const _: () = assert!(LANES == device::WARP as usize);
