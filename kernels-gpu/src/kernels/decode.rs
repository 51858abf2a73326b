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
    unsafe { payloads::<Q>(&p, &b, place, &mut values) };
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

/// Decodes a unit of every payload onto `values`.
///
/// # Safety
/// As the decode kernels ask; all lanes of the warp arrive together.
#[inline(always)]
unsafe fn payloads<Q: Quantizer>(p: &DecodeParams, b: &Buffers, place: Place, values: &mut [f32; SLOTS]) {
    let at = (place.first as usize / UNIT) * unit_bytes(p.bits);
    // Lane `8 k + j` makes the decoder of row `j` of the batch's `k`-th payload.
    let (row, of) = (place.lane % SLOTS as u32, place.lane / SLOTS as u32);
    // A row without an element may lie in a bucket without scalars.
    let row = (place.first + row * LANES as u32).min(p.n - 1);
    let bucket = (row >> p.bucket_log2) as usize;
    let mut batch = 0;
    while batch < p.payloads {
        let mut raw = [[0; WORDS]; BATCH];
        for k in 0..BATCH {
            let payload = batch + k as u32;
            if payload < p.payloads {
                let start = at + payload as usize * p.code_stride as usize * 4;
                // SAFETY: the unit has an element, so its codes are in every payload.
                raw[k] = unsafe { codes::load(b.codes.add(start), place.lane, p.bits) };
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
            if batch + (k as u32) < p.payloads {
                // SAFETY: all lanes are here.
                unsafe { payload_onto::<Q>(p, place, &decoder, k, &codes::unpack(&raw[k], p.bits), values) };
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

/// Decodes a unit of the batch's `k`-th payload onto `values`, or over them.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn payload_onto<Q: Quantizer>(
    p: &DecodeParams,
    place: Place,
    decoder: &Q::Decoder,
    k: usize,
    codes: &[u32; SLOTS],
    values: &mut [f32; SLOTS],
) {
    let weighted = p.has(decode_flags::WEIGHTED);
    let term = |decoder: &Q::Decoder, code: u32| {
        let value = Q::value(decoder, p.bits, p.levels, code & ((1 << p.bits) - 1));
        if weighted { p.weight() * value } else { value }
    };
    // `accumulate` without its canonical NaN, which is left for the end: a NaN stays one.
    let onto = |value: f32, term: f32| if weighted { value + term } else { term };
    // SAFETY: all lanes are here, and parameters are the same in each.
    let of_unit = unsafe { Q::decoder_of(decoder, (k * SLOTS) as u32) };
    if p.bucket_log2 < 8 {
        for slot in 0..SLOTS {
            // SAFETY: all lanes are here, and parameters are the same in each.
            let decoder = unsafe { Q::decoder_of(decoder, (k * SLOTS + slot) as u32) };
            values[slot] = onto(values[slot], term(&decoder, codes[slot]));
        }
    } else if p.bits <= 5 {
        // Lane `i` makes what code `i` stands for, and each asks the lane that its code names: a shuffle takes the low
        // five bits of what it is given, so that lanes beyond the last code answer for codes with other bits above.
        let mine = term(&of_unit, place.lane).to_bits();
        for slot in 0..SLOTS {
            // SAFETY: all lanes are here, and parameters are the same in each.
            let term = f32::from_bits(unsafe { device::shuffle(mine, codes[slot]) });
            values[slot] = onto(values[slot], term);
        }
    } else {
        for slot in 0..SLOTS {
            values[slot] = onto(values[slot], term(&of_unit, codes[slot]));
        }
    }
}
