//! What every bucketed quantizer does to decode, whatever its formula.

use super::codes::{self, WORDS};
use super::quantizer::of_lane;
use crate::arith::float::{NAN_BITS, canonical};
use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::arith::quantizer::Quantizer;
use crate::device;
use crate::params::{DECODE_SPAN, DecodeParams, SPAN, decode_flags, item};

/// Payloads that are on their way at a time, and whose decoders are made at a time: 8 rows of 4 payloads are a warp.
const BATCH: u32 = 4;
/// The same, of codes of one bit or two.
const NARROW_BATCH: u32 = 8;

/// `bucket_log2` from which on a unit lies in one bucket.
const LARGE: u32 = UNIT.ilog2();

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

/// [`canonical`] of what a sum gave: a device makes no signalling NaN, so that a comparison of numbers is enough.
#[inline(always)]
pub(super) fn of_sum(sum: f32) -> f32 {
    if sum.is_nan() { f32::from_bits(NAN_BITS) } else { sum }
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
/// As the kernels ask. `NARROW` is [`narrow_width`] of the codec.
#[inline(always)]
pub(super) unsafe fn decode<Q: Quantizer, const NARROW: u32>(p: DecodeParams, b: Buffers) {
    // SAFETY: the caller has launched the kernel as it asks, and a block is a span.
    unsafe { decode_span::<Q, NARROW>(p, b, device::block()) }
}

/// The width of a codec that has one width, of one bit or two; 0 of any other codec.
pub(super) const fn narrow_width(widths: &[u32]) -> u32 {
    if widths.len() == 1 && widths[0] <= 2 { widths[0] } else { 0 }
}

/// The body of the decode kernels that write many tensors: four blocks to an item of the table.
///
/// # Safety
/// As [`decode`].
#[inline(always)]
pub(super) unsafe fn decode_item<Q: Quantizer, const NARROW: u32>(p: DecodeParams, b: Buffers, table: *const u32) {
    const PARTS: u32 = SPAN / DECODE_SPAN;
    let at = item::HEADER + (p.first_item + device::block() / PARTS) * item::WORDS;
    // SAFETY: the kernel's contract has an item for every four blocks, and what it says is in the buffers.
    unsafe {
        let word = |index: u32| *table.add((at + index) as usize) as usize;
        let p = DecodeParams { n: word(item::ELEMENTS) as u32, bucket_log2: p.bucket_log2 & 15, ..p };
        let b = Buffers {
            scalars: b.scalars.add(word(item::SCALARS)),
            codes: b.codes.add(word(item::CODES) * 4),
            output: b.output.add(word(item::START)),
        };
        decode_span::<Q, NARROW>(p, b, device::block() % PARTS);
    }
}

/// # Safety
/// As [`decode`].
#[inline(always)]
unsafe fn decode_span<Q: Quantizer, const NARROW: u32>(p: DecodeParams, b: Buffers, span: u32) {
    let (lane, warp) = (device::thread() % device::WARP, device::thread() / device::WARP);
    let place = Place { lane, first: span * DECODE_SPAN + warp * UNIT as u32 };
    // The same in all lanes, so that shuffles may follow; no barrier does.
    if place.first >= p.n {
        return;
    }
    if NARROW != 0 && p.bucket_log2 >= LARGE {
        // SAFETY: the kernel's contract; all lanes are here.
        return unsafe { narrow::<Q, NARROW>(&p, &b, place) };
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
    // The usual widths as constants: a width that is known leaves a third of the instructions.
    let known = |bits| DecodeParams { bits, bucket_log2: p.bucket_log2.max(LARGE), ..p };
    // SAFETY: the kernel's contract covers the scalars and the codes; all lanes are here.
    unsafe {
        match p.bits {
            _ if NARROW != 0 => {
                let p = DecodeParams { bits: NARROW, bucket_log2: p.bucket_log2.min(LARGE - 1), ..p };
                ahead::<Q>(&p, &b, place, &mut values);
            }
            4 if p.bucket_log2 >= LARGE => ahead::<Q>(&known(4), &b, place, &mut values),
            8 if p.bucket_log2 >= LARGE => ahead::<Q>(&known(8), &b, place, &mut values),
            _ => one_by_one::<Q>(&p, &b, place, &mut values),
        }
    }
    if p.has(decode_flags::WEIGHTED) {
        for value in &mut values {
            *value = canonical(*value);
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

/// Decodes a unit of codes of `BITS` bits, one or two, in a bucket of at least a unit.
///
/// # Safety
/// As the decode kernels ask; all lanes of the warp arrive together.
#[inline(always)]
unsafe fn narrow<Q: Quantizer, const BITS: u32>(p: &DecodeParams, b: &Buffers, place: Place) {
    let output = b.output.wrapping_add(place.element(0) as usize);
    let full = place.first + UNIT as u32 <= p.n;
    let weighted = p.has(decode_flags::WEIGHTED);
    let mut values = [0.0; SLOTS];
    if p.has(decode_flags::ACCUMULATE) {
        for slot in 0..SLOTS {
            if full || place.element(slot) < p.n {
                // SAFETY: the element is there, and no other lane's.
                values[slot] = unsafe { *output.wrapping_add(slot * LANES) };
            }
        }
    }
    // SAFETY: the kernel's contract covers the scalars and the codes; all lanes are here.
    unsafe {
        if weighted && p.payloads > 1 {
            narrow_sum::<Q, BITS>(p, b, place, &mut values);
        } else {
            // Without a weight each payload is written over the one before.
            let last = p.payloads - 1;
            let raw = narrow_codes::<BITS>(p, b, place, last, 0);
            let value = narrow_value::<Q, BITS>(p, b, place, last);
            if weighted {
                let terms = narrow_terms::<BITS>(place, p.weight() * value, 0, raw);
                for slot in 0..SLOTS {
                    values[slot] = of_sum(values[slot] + terms[slot]);
                }
            } else {
                values = narrow_terms::<BITS>(place, value, 0, raw);
            }
        }
    }
    // A branch around all stores takes less than one around each.
    if full {
        for slot in 0..SLOTS {
            // SAFETY: as above.
            unsafe { *output.wrapping_add(slot * LANES) = values[slot] };
        }
        return;
    }
    for slot in 0..SLOTS {
        if place.element(slot) < p.n {
            // SAFETY: as above.
            unsafe { *output.wrapping_add(slot * LANES) = values[slot] };
        }
    }
}

/// Adds all payloads to `values`, with the codes of a batch on their way together.
///
/// # Safety
/// As [`narrow`].
#[inline(always)]
unsafe fn narrow_sum<Q: Quantizer, const BITS: u32>(
    p: &DecodeParams,
    b: &Buffers,
    place: Place,
    values: &mut [f32; SLOTS],
) {
    const HALF: u32 = NARROW_BATCH / 2;
    // Bits of a lane's codes of a payload, and the words that hold those of a batch: of payload `k` in word
    // `k % words`, so that the first payloads wait for all. Or the assembler would load each payload's codes where they
    // are used, and wait for them.
    let (own, words) = (SLOTS as u32 * BITS, NARROW_BATCH * SLOTS as u32 * BITS / u32::BITS);
    let load = |batch: u32| {
        let mut raw = [0; NARROW_BATCH as usize];
        for k in 0..NARROW_BATCH {
            // After the last payload, that one stands in.
            let payload = k.min(p.payloads - 1 - batch);
            // SAFETY: the kernel's contract covers the codes.
            raw[k as usize] = unsafe { narrow_codes::<BITS>(p, b, place, batch, payload) };
        }
        for k in words..NARROW_BATCH {
            raw[(k % words) as usize] += raw[k as usize] << (k / words * own);
        }
        // Or the compiler would take them apart again.
        raw.map(device::opaque)
    };
    let mut batch = 0;
    // In front of the loop, or the assembler would load each payload's codes where they are used, and wait for them.
    let mut raw = load(batch);
    loop {
        // What stands in adds -0.0, which changes no number.
        let there = batch + (place.lane >> BITS) < p.payloads;
        // SAFETY: as above, of the scalars.
        let value = p.weight() * unsafe { narrow_value::<Q, BITS>(p, b, place, batch) };
        let value = if there { value } else { -0.0 };
        // What decides where the loop goes is the same in all lanes.
        for half in 0..2 {
            if half == 0 || batch + HALF < p.payloads {
                for k in half * HALF..(half + 1) * HALF {
                    let raw = raw[(k % words) as usize] >> (k / words * own);
                    // SAFETY: all lanes are here.
                    let terms = unsafe { narrow_terms::<BITS>(place, value, k, raw) };
                    for slot in 0..SLOTS {
                        values[slot] += terms[slot];
                    }
                }
            }
        }
        batch += NARROW_BATCH;
        if batch >= p.payloads {
            break;
        }
        raw = load(batch);
    }
    *values = values.map(of_sum);
}

/// This lane's codes of a unit, beside each other, of the payload that lies `k` after the `batch`-th.
///
/// # Safety
/// As [`narrow`]; there is such a payload.
#[inline(always)]
unsafe fn narrow_codes<const BITS: u32>(p: &DecodeParams, b: &Buffers, place: Place, batch: u32, k: u32) -> u32 {
    let own = (place.first as usize / UNIT) * unit_bytes(BITS) + (place.lane * BITS) as usize;
    let unit = b.codes.wrapping_add(batch as usize * p.code_stride as usize * 4 + own);
    // In bytes, so that an instruction makes the address.
    let at = unit.wrapping_add((u64::from(4 * k) * u64::from(p.code_stride)) as usize);
    // SAFETY: the unit has an element, so its codes are in every payload, aligned to 4.
    unsafe { if BITS == 1 { u32::from(*at) } else { u32::from(*at.cast::<u16>()) } }
}

/// The value of one code of one payload: lane `i` has the code `i % (1 << BITS)` of the payload that is `i >> BITS`
/// after the `batch`-th. After the last one, that one stands in.
///
/// # Safety
/// As [`narrow`].
#[inline(always)]
unsafe fn narrow_value<Q: Quantizer, const BITS: u32>(p: &DecodeParams, b: &Buffers, place: Place, batch: u32) -> f32 {
    const { assert!(BITS <= 2 && NARROW_BATCH << BITS <= LANES as u32) };
    let payload = (batch + (place.lane >> BITS)).min(p.payloads - 1);
    let bucket = (place.first >> p.bucket_log2) as usize;
    let mut wire = [0.0; 2];
    for scalar in 0..Q::SCALARS {
        let index = payload as usize * p.scalar_stride as usize + bucket * Q::SCALARS + scalar;
        // SAFETY: the bucket has an element, so its scalars are in every payload.
        wire[scalar] = f32::from_bits(unsafe { *b.scalars.add(index) });
    }
    Q::value(&Q::decoder(wire, p.levels), BITS, p.levels, place.lane % (1 << BITS))
}

/// What this lane's codes of the `k`-th payload of a batch stand for, by the values of [`narrow_value`].
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn narrow_terms<const BITS: u32>(place: Place, value: f32, k: u32, raw: u32) -> [f32; SLOTS] {
    // SAFETY: the caller brings all lanes here.
    let of_code = |code: u32| unsafe { device::shuffle(value.to_bits(), (k << BITS) + code) };
    let mut terms = [0.0; SLOTS];
    if BITS == 1 {
        let (zero, one) = (of_code(0), of_code(1));
        for slot in 0..SLOTS {
            terms[slot] = f32::from_bits(if raw >> slot & 1 == 0 { zero } else { one });
        }
    } else {
        // A shuffle takes the low five bits of what it is given: each lane answers for its code with any above it.
        let own = of_code(place.lane % (1 << BITS));
        for slot in 0..SLOTS {
            // SAFETY: as above.
            terms[slot] = f32::from_bits(unsafe { device::shuffle(own, raw >> (slot as u32 * BITS)) });
        }
    }
    terms
}

/// Decodes a unit of every payload onto `values`, with the codes of a batch on their way together.
///
/// # Safety
/// As the decode kernels ask; all lanes of the warp arrive together.
#[inline(always)]
unsafe fn ahead<Q: Quantizer>(p: &DecodeParams, b: &Buffers, place: Place, values: &mut [f32; SLOTS]) {
    let mut batch = 0;
    while batch < p.payloads {
        let mut raw = [[0; WORDS]; BATCH as usize];
        for k in 0..BATCH {
            if batch + k < p.payloads {
                // SAFETY: the place is one of this launch, and the payload is there.
                raw[k as usize] = unsafe { load(p, b, place, batch + k) };
            }
        }
        // SAFETY: as above.
        let decoder = unsafe { decoders::<Q>(p, b, place, batch) };
        for k in 0..BATCH {
            // The same in all lanes, so that shuffles may follow.
            if batch + k < p.payloads {
                let codes = codes::unpack(&raw[k as usize], p.bits);
                // SAFETY: all lanes are here.
                unsafe { payload_onto::<Q>(p, place, &decoder, k, &codes, values) };
            }
        }
        batch += BATCH;
    }
}

/// As [`ahead`], with one payload's codes at a time: for widths that are known at run time only, where a batch would
/// take more registers than it saves time.
///
/// # Safety
/// As [`ahead`].
#[inline(always)]
unsafe fn one_by_one<Q: Quantizer>(p: &DecodeParams, b: &Buffers, place: Place, values: &mut [f32; SLOTS]) {
    // SAFETY: the caller brings all lanes of the warp here, and the first payload is there.
    let mut decoder = unsafe { decoders::<Q>(p, b, place, 0) };
    let mut payload = 0;
    while payload < p.payloads {
        if payload != 0 && payload % BATCH == 0 {
            // SAFETY: as above.
            decoder = unsafe { decoders::<Q>(p, b, place, payload) };
        }
        // What the compiler makes of the width in front of the loop would wait in registers.
        let p = &DecodeParams { bits: device::opaque(p.bits), ..*p };
        // SAFETY: as above; the payload is there, and all lanes are here.
        unsafe {
            let codes = codes::unpack(&load(p, b, place, payload), p.bits);
            payload_onto::<Q>(p, place, &decoder, payload % BATCH, &codes, values);
        }
        payload += 1;
    }
}

/// This lane's words of a payload's codes.
///
/// # Safety
/// As [`ahead`]; there is such a payload.
#[inline(always)]
unsafe fn load(p: &DecodeParams, b: &Buffers, place: Place, payload: u32) -> [u32; WORDS] {
    let unit = (place.first as usize / UNIT) * unit_bytes(p.bits);
    let start = payload as usize * p.code_stride as usize * 4;
    // SAFETY: the unit has an element, so its codes are in every payload.
    unsafe { codes::load(b.codes.add(unit + start), place.lane, p.bits) }
}

/// The decoders of a batch of payloads: lane `8 k + j` has that of row `j` of the `k`-th.
///
/// # Safety
/// As [`ahead`].
#[inline(always)]
unsafe fn decoders<Q: Quantizer>(p: &DecodeParams, b: &Buffers, place: Place, batch: u32) -> Q::Decoder {
    let (row, payload) = (place.lane % SLOTS as u32, place.lane / SLOTS as u32);
    // A row without an element may lie in a bucket without scalars, and a batch may be short: the last stand in.
    let element = (place.first + row * LANES as u32).min(p.n - 1);
    let payload = (batch + payload).min(p.payloads - 1);
    let bucket = (element >> p.bucket_log2) as usize;
    let mut wire = [0.0; 2];
    for scalar in 0..Q::SCALARS {
        let index = payload as usize * p.scalar_stride as usize + bucket * Q::SCALARS + scalar;
        // SAFETY: the bucket has an element, so its scalars are in every payload.
        wire[scalar] = f32::from_bits(unsafe { *b.scalars.add(index) });
    }
    Q::decoder(wire, p.levels)
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
    k: u32,
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
    let of_unit = unsafe { of_lane(decoder, k * SLOTS as u32) };
    let large = p.bucket_log2 >= LARGE;
    if large && p.bits <= 5 {
        // Lane `i` makes what code `i` stands for, and each asks the lane that its code names: a shuffle takes the low
        // five bits of what it is given, so that lanes beyond the last code answer for codes with other bits above.
        let mine = term(&of_unit, place.lane).to_bits();
        for slot in 0..SLOTS {
            // SAFETY: as above.
            let term = f32::from_bits(unsafe { device::shuffle(mine, codes[slot]) });
            values[slot] = onto(values[slot], term);
        }
    } else if let Some(decoder) = Q::plain_decoder(&of_unit).filter(|_| large) {
        for slot in 0..SLOTS {
            values[slot] = onto(values[slot], term(&decoder, codes[slot]));
        }
    } else {
        for slot in 0..SLOTS {
            let row = if large { 0 } else { slot as u32 };
            // SAFETY: as above; a unit of a large bucket has one decoder, the same in all lanes.
            let decoder = unsafe { of_lane(decoder, k * SLOTS as u32 + row) };
            values[slot] = onto(values[slot], term(&decoder, codes[slot]));
        }
    }
}
