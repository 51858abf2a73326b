//! What both bucketed quantizers do to decode, whatever their formula.

use super::bucketed::Quantizer;
use super::codes::{self, WORDS};
use crate::arith::float::canonical;
use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::device;
use crate::params::{DECODE_SPAN, DecodeParams, decode_flags};

/// Payloads that are on their way at a time, and whose decoders are made at a time: 8 rows of 4 payloads are a warp.
const BATCH: usize = 4;

/// The buffers of the decode kernels, in the order in which kernels take them.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    /// The wire's scalars.
    pub(super) scalars: *const u32,
    /// The wire's codes.
    pub(super) codes: *const u8,
    /// The decoded values.
    pub(super) output: *mut f32,
}

/// Where a thread of a decode kernel stands.
#[derive(Clone, Copy)]
struct Place {
    /// Lane of the warp.
    lane: u32,
    /// Index, in the launch, of the warp's first element.
    first: u32,
}

/// The body of the decode kernels.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
pub(super) unsafe fn decode<Q: Quantizer>(p: DecodeParams, b: Buffers) {
    let (lane, warp) = (device::thread() % device::WARP, device::thread() / device::WARP);
    let place = Place { lane, first: device::block() * DECODE_SPAN + warp * UNIT as u32 };
    // The same in all lanes, so that shuffles may stand behind it; no barrier does.
    if place.first >= p.n {
        return;
    }
    let mut values = [0.0; SLOTS];
    if p.has(decode_flags::ACCUMULATE) {
        for slot in 0..SLOTS {
            let element = place.element(slot);
            if element < p.n {
                // SAFETY: the element is there.
                values[slot] = unsafe { *b.output.add(element as usize) };
            }
        }
    }
    // SAFETY: the kernel's contract covers the scalars and the codes; all lanes are here.
    unsafe {
        if p.bucket_log2 < 8 {
            payloads::<Q, true>(&p, &b, place, &mut values);
        } else {
            payloads::<Q, false>(&p, &b, place, &mut values);
        }
    }
    for slot in 0..SLOTS {
        let element = place.element(slot);
        if element < p.n {
            // SAFETY: the element is there, and no other lane's.
            unsafe { *b.output.add(element as usize) = values[slot] };
        }
    }
}

impl Place {
    /// Index, in the launch, of this lane's element in a slot.
    #[inline(always)]
    fn element(&self, slot: usize) -> u32 {
        self.first + (slot * LANES) as u32 + self.lane
    }
}

/// Decodes a unit of every payload onto `values`. Where `SMALL`, rows of a unit may lie in different buckets.
///
/// # Safety
/// As the decode kernels ask; all lanes of the warp arrive together.
#[inline(always)]
unsafe fn payloads<Q: Quantizer, const SMALL: bool>(
    p: &DecodeParams,
    b: &Buffers,
    place: Place,
    values: &mut [f32; SLOTS],
) {
    let at = (place.first as usize / UNIT) * unit_bytes(p.bits);
    // Lane `8 k + j` makes the decoder of row `j` of the batch's `k`-th payload.
    let (row, of) = (place.lane % SLOTS as u32, place.lane / SLOTS as u32);
    let bucket = (place.first + row * LANES as u32) >> p.bucket_log2;
    // A row without an element may lie in a bucket without scalars.
    let bucket = bucket.min((p.n - 1) >> p.bucket_log2) as usize;
    let mut batch = 0;
    while batch < p.payloads {
        let mut raw = [[0; WORDS]; BATCH];
        for k in 0..BATCH {
            let payload = batch + k as u32;
            if payload < p.payloads {
                // SAFETY: the unit has an element, so its codes are in every payload.
                raw[k] = unsafe {
                    codes::load(b.codes.add(at + payload as usize * p.code_stride as usize * 4), place.lane, p.bits)
                };
            }
        }
        let payload = (batch + of).min(p.payloads - 1) as usize;
        let mut wire = [0.0; 2];
        for scalar in 0..Q::SCALARS {
            let index = payload * p.scalar_stride as usize + bucket * Q::SCALARS + scalar;
            // SAFETY: the bucket has an element, so its scalars are in every payload.
            wire[scalar] = f32::from_bits(unsafe { *b.scalars.add(index) });
        }
        let decoder = Q::decoder(wire, p.levels);
        for k in 0..BATCH {
            // The same in all lanes, so that shuffles may stand behind it.
            let payload = batch + k as u32;
            if payload < p.payloads {
                let codes = codes::unpack(&raw[k], p.bits);
                // SAFETY (of the shuffles): all lanes are here.
                let of_unit = unsafe { Q::decoder_of(&decoder, k * SLOTS) };
                for slot in 0..SLOTS {
                    let decoder = if SMALL { unsafe { Q::decoder_of(&decoder, k * SLOTS + slot) } } else { of_unit };
                    let value = Q::value(&decoder, p.bits, p.levels, codes[slot]);
                    // `accumulate` without its canonical NaN, which is left for the end: a NaN stays one.
                    values[slot] =
                        if p.has(decode_flags::WEIGHTED) { values[slot] + p.weight() * value } else { value };
                }
            }
        }
        batch += BATCH as u32;
    }
    if p.has(decode_flags::WEIGHTED) {
        for value in values {
            *value = canonical(*value);
        }
    }
}
