//! What every bucketed quantizer does with a run of elements, whatever its formula.

use gradwire_kernels::arith::float::{INF_BITS, MAGNITUDE, accumulate, canonical};
use gradwire_kernels::arith::fold::{Fold, Sum};
use gradwire_kernels::arith::pack::{UNIT, unit_bytes};
use gradwire_kernels::arith::quantizer::Quantizer;
use gradwire_kernels::params::{DecodeParams, EncodeParams, WHOLE, decode_flags, encode_flags};

use super::filter::Sums;
use super::rows::{Unit, borrow, dithers, draw_and_pack, pack, stage, unpack};
use crate::gradient::Gradient;

/// Elements that are staged at a time: one bucket of the largest size.
const STAGED: usize = 8192;

/// Elements of a whole number of buckets and units, and what encoding them writes.
pub(super) struct EncodeTask<'a> {
    pub(super) input: Gradient<'a>,
    pub(super) start: usize,
    pub(super) len: usize,
    /// The residual, and the place of the new one.
    pub(super) residual: Option<Sums<'a>>,
    pub(super) scalars: &'a mut [u8],
    pub(super) codes: &'a mut [u8],
}

/// Encodes a run of elements that starts on a unit and on a bucket.
#[inline(always)]
pub(super) fn encode<Q: Quantizer>(p: &EncodeParams, statistic: [u32; 2], task: EncodeTask<'_>) {
    let EncodeTask { input, start, len, mut residual, scalars, codes } = task;
    let whole = (p.bucket_log2 == WHOLE).then(|| Q::encoder(p, statistic));
    let bucket = if whole.is_some() { UNIT } else { 1 << p.bucket_log2 };
    let span = bucket.max(4 * UNIT);
    let mut staged = [0; STAGED];
    let mut at = 0;
    while at < len {
        let elements = span.min(len - at);
        let residual = residual.as_mut().map(|r| r.part(at..at + elements));
        let borrowed = if residual.is_none() { borrow(input, start + at, elements) } else { None };
        let values = match borrowed {
            Some(values) => values,
            None => {
                let staged = &mut staged[..elements.next_multiple_of(UNIT)];
                stage(staged, input, start + at, elements, residual.as_ref().map(Sums::residual));
                if Q::PADS_WITH_AN_ELEMENT {
                    pad_with_first(staged, elements, bucket);
                }
                staged
            }
        };
        let run = Run {
            values,
            elements,
            first_unit: p.first_unit + ((start + at) / UNIT) as u32,
            residual,
            scalars: if whole.is_some() { &mut [] } else { &mut scalars[at / bucket * Q::SCALARS * 4..] },
            codes: &mut codes[at / UNIT * unit_bytes(p.bits)..],
        };
        encode_run::<Q>(p, whole, bucket, run);
        at += elements;
    }
}

/// Elements of some whole buckets, loaded, and padded to whole units.
struct Run<'a> {
    values: &'a [u32],
    elements: usize,
    first_unit: u32,
    residual: Option<Sums<'a>>,
    scalars: &'a mut [u8],
    codes: &'a mut [u8],
}

#[inline(always)]
fn encode_run<Q: Quantizer>(p: &EncodeParams, whole: Option<Q::Encoder>, bucket: usize, run: Run<'_>) {
    let Run { values, elements, first_unit, mut residual, scalars, codes } = run;
    let (mut dither, mut unit_codes): (Unit, Unit) = ([0; UNIT], [0; UNIT]);
    let mut encoder = whole;
    let plain = !p.has(encode_flags::NEAREST) && !p.has(encode_flags::WIDE);
    let fused = plain && bucket >= UNIT && residual.is_none();
    for (unit, unit_values) in values.chunks_exact(UNIT).enumerate() {
        let from = unit * UNIT;
        let valid = (elements - from).min(UNIT);
        let bytes = unit_bytes(p.bits);
        let out = &mut codes[unit * bytes..(unit + 1) * bytes];
        if whole.is_none() && bucket >= UNIT && from.is_multiple_of(bucket) {
            let here = from..values.len().min(from + bucket);
            let measured = measure::<Q>(p, &values[here], (elements - from).min(bucket));
            put_wire::<Q>(&measured, scalars, from / bucket);
            encoder = Some(measured);
        }
        let plain = if fused && valid == UNIT { encoder.as_ref().and_then(Q::plain) } else { None };
        if let (Some(encoder), Ok(values)) = (&plain, unit_values.try_into()) {
            draw_and_pack::<Q>(p, encoder, first_unit + unit as u32, values, out);
            continue;
        }
        dithers(p, first_unit + unit as u32, &mut dither);
        if bucket < UNIT {
            for (local, at) in (0..UNIT).step_by(bucket).enumerate() {
                let here = at..at + bucket;
                let encoder = measure::<Q>(p, &unit_values[here.clone()], valid.saturating_sub(at).min(bucket));
                if at < valid {
                    put_wire::<Q>(&encoder, scalars, unit * (UNIT / bucket) + local);
                }
                code_all::<Q>(
                    p,
                    &encoder,
                    &unit_values[here.clone()],
                    &dither[here.clone()],
                    &mut unit_codes[here.clone()],
                );
                if let Some(residual) = &mut residual {
                    let residual = residual.part(from + at.min(valid)..from + here.end.min(valid));
                    feedback::<Q>(p, &encoder, &unit_values[here.clone()], &unit_codes[here], residual);
                }
            }
        } else {
            let Some(encoder) = &encoder else { return };
            code_all::<Q>(p, encoder, unit_values, &dither, &mut unit_codes);
            if let Some(residual) = &mut residual {
                feedback::<Q>(p, encoder, unit_values, &unit_codes, residual.part(from..from + valid));
            }
        }
        unit_codes[valid..].fill(0);
        pack(p.bits, &unit_codes, out);
    }
}

/// The partial statistic of these values, of which the first `elements` are elements and the others are padding.
#[inline(always)]
fn partial<Q: Quantizer>(p: &EncodeParams, values: &[u32], elements: usize) -> Q::Partial {
    let first = values.iter().fold(Q::First::NONE, |first, value| first.merge(Q::first(*value)));
    let mut second = Q::Second::NONE;
    if Q::looks_again(p) {
        let context = Q::context(first);
        // SAFETY: the context is of all these values.
        second = values.iter().fold(second, |second, value| second.merge(unsafe { Q::second(*value, context) }));
    }
    let partial = Q::partial(first, second, elements as u32);
    if Q::LOOKS_THRICE {
        let context = Q::statistic(p, partial)[0];
        // A loop, since the closure of a fold is too long to be inlined.
        let (p, mut third) = (*p, Sum::NONE);
        for value in values {
            // SAFETY: the context is of the bucket of all these values.
            third = third.merge(unsafe { Q::third(&p, *value, context) });
        }
        return Q::completed(partial, third);
    }
    partial
}

/// The encoder of the bucket that these values are.
#[inline(always)]
fn measure<Q: Quantizer>(p: &EncodeParams, values: &[u32], elements: usize) -> Q::Encoder {
    Q::encoder(p, Q::statistic(p, partial::<Q>(p, values, elements)))
}

/// The statistic of a tensor that is one bucket, from its partial ones, and its scalars.
pub(super) fn combine<Q: Quantizer>(p: &EncodeParams, words: &[u32]) -> ([u32; 2], Vec<f32>) {
    let partials = || {
        words.chunks_exact(size_of::<Q::Partial>() / 4).map(|words| {
            let mut partial = Q::Partial::default();
            partial.as_mut().copy_from_slice(words);
            partial
        })
    };
    let first = partials().fold(Q::First::NONE, |first, partial| first.merge(Q::first_of(partial)));
    let mut total = Q::Total::NONE;
    if Q::looks_again(p) {
        let context = Q::context(first);
        total = partials().fold(total, |total, partial| total.merge(Q::second_of(partial, context)));
    }
    let statistic = Q::whole(p, first, total);
    (statistic, Q::wire(&Q::encoder(p, statistic))[..Q::SCALARS].to_vec())
}

/// Writes a bucket's scalars.
#[inline(always)]
fn put_wire<Q: Quantizer>(encoder: &Q::Encoder, scalars: &mut [u8], index: usize) {
    let from = index * Q::SCALARS * 4;
    let slots = scalars[from..from + Q::SCALARS * 4].chunks_exact_mut(4);
    for (slot, scalar) in slots.zip(Q::wire(encoder)) {
        slot.copy_from_slice(&scalar.to_le_bytes());
    }
}

/// Codes of elements of one bucket.
#[inline(always)]
fn code_all<Q: Quantizer>(p: &EncodeParams, encoder: &Q::Encoder, values: &[u32], dither: &[u32], codes: &mut [u32]) {
    let (p, all) = (*p, codes.iter_mut().zip(values).zip(dither));
    // Loops, since a closure that is long is not inlined.
    if p.bits == 16 {
        for ((code, value), dither) in all {
            // SAFETY: the caller's encoder is of the bucket of these values, and its dithers are of the parameters.
            *code = unsafe { Q::code::<true>(&p, encoder, *value, *dither) };
        }
    } else {
        for ((code, value), dither) in all {
            // SAFETY: as above, of fewer bits.
            *code = unsafe { Q::code::<false>(&p, encoder, *value, *dither) };
        }
    }
}

/// Leaves in the residual of elements of one bucket what decoding will not give back.
///
/// A poisoned bucket's residual stays as it is: its step will be skipped.
#[inline(always)]
fn feedback<Q: Quantizer>(p: &EncodeParams, encoder: &Q::Encoder, values: &[u32], codes: &[u32], residual: Sums<'_>) {
    let Sums { residual: before, sums: next } = residual;
    if Q::holds_not_finite(encoder) {
        if let Some(before) = before {
            next.copy_from_slice(before);
        }
        return;
    }
    let decoder = Q::decoder(Q::wire(encoder), p.levels);
    for ((r, value), code) in next.iter_mut().zip(values).zip(codes) {
        *r = canonical(f32::from_bits(*value) - Q::value(&decoder, p.bits, p.levels, *code));
    }
}

/// Gives what lies after the last element the value of its bucket's first.
#[inline(always)]
fn pad_with_first(values: &mut [u32], elements: usize, bucket: usize) {
    if elements < values.len() {
        let first = values[(elements - 1) / bucket * bucket];
        values[elements..].fill(first);
    }
}

/// At most 8192 elements, and the residual of all of the input.
pub(super) struct Elements<'a> {
    pub(super) input: Gradient<'a>,
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) residual: Option<&'a [f32]>,
}

impl Elements<'_> {
    /// Their values, plus residuals.
    #[inline(always)]
    fn stage<'b>(&self, staged: &'b mut [u32; STAGED]) -> &'b [u32] {
        let Self { input, start, len, residual } = *self;
        let values = &mut staged[..len];
        stage(values, input, start, len, residual.map(|r| &r[start..start + len]));
        values
    }
}

/// Writes the partial statistic of these elements.
#[inline(always)]
pub(super) fn statistic<Q: Quantizer>(p: &EncodeParams, elements: Elements<'_>, out: &mut [u32]) {
    let partial = match borrow(elements.input, elements.start, elements.len) {
        Some(values) if elements.residual.is_none() => partial::<Q>(p, values, values.len()),
        _ => {
            let mut staged = [0; STAGED];
            let values = elements.stage(&mut staged);
            partial::<Q>(p, values, values.len())
        }
    };
    out.copy_from_slice(partial.as_ref());
}

/// Which of these elements is the first that is not finite.
#[inline(always)]
pub(super) fn first_not_finite(elements: Elements<'_>) -> Option<usize> {
    let mut staged = [0; STAGED];
    let values = elements.stage(&mut staged);
    let largest = values.iter().fold(0, |largest, v| largest.max(v & MAGNITUDE));
    if largest < INF_BITS { None } else { values.iter().position(|v| v & MAGNITUDE >= INF_BITS) }
}

/// One payload's scalars and codes.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    pub(crate) scalars: &'a [u8],
    pub(crate) codes: &'a [u8],
}

/// Decodes elements `start..start + output.len()`, which start on a unit and on a bucket.
#[inline(always)]
pub(super) fn decode<Q: Quantizer>(p: &DecodeParams, bodies: &[Body<'_>], start: usize, output: &mut [f32]) {
    let bytes = unit_bytes(p.bits);
    // Elements of one bucket within a unit.
    let stretch = (1usize << p.bucket_log2).min(UNIT);
    let mut codes: Unit = [0; UNIT];
    for (local, out) in output.chunks_mut(UNIT).enumerate() {
        let unit = start / UNIT + local;
        if p.has(decode_flags::WEIGHTED) && !p.has(decode_flags::ACCUMULATE) {
            out.fill(0.0);
        }
        for body in bodies {
            unpack(p.bits, &body.codes[unit * bytes..(unit + 1) * bytes], &mut codes);
            if stretch == UNIT {
                let decoder = Q::decoder(wire_at::<Q>(body.scalars, (unit * UNIT) >> p.bucket_log2), p.levels);
                // Most buckets need no power of two and hold only finite numbers. Their loop has two operations less.
                if let (Some(plain), Ok(out)) = (Q::plain_decoder(&decoder), <&mut [f32; UNIT]>::try_from(&mut *out)) {
                    decode_all::<Q>(p, &plain, &codes, out);
                    continue;
                }
                match <&mut [f32; UNIT]>::try_from(&mut *out) {
                    // A constant length gives the compiler a loop without a remainder.
                    Ok(out) => decode_all::<Q>(p, &decoder, &codes, out),
                    Err(_) => decode_all::<Q>(p, &decoder, &codes, out),
                }
                continue;
            }
            for (at, out) in out.chunks_mut(stretch).enumerate() {
                let bucket = (unit * UNIT + at * stretch) >> p.bucket_log2;
                let decoder = Q::decoder(wire_at::<Q>(body.scalars, bucket), p.levels);
                decode_all::<Q>(p, &decoder, &codes[at * stretch..(at + 1) * stretch], out);
            }
        }
    }
}

/// Decodes elements of one bucket.
#[inline(always)]
fn decode_all<Q: Quantizer>(p: &DecodeParams, decoder: &Q::Decoder, codes: &[u32], out: &mut [f32]) {
    let (bits, levels, weight) = (p.bits, p.levels, p.weight());
    if p.has(decode_flags::WEIGHTED) {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = accumulate(*out, weight, Q::value(decoder, bits, levels, *code));
        }
    } else {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = Q::value(decoder, bits, levels, *code);
        }
    }
}

#[inline(always)]
fn wire_at<Q: Quantizer>(scalars: &[u8], bucket: usize) -> [f32; 2] {
    let mut wire = [0.0; 2];
    let from = bucket * Q::SCALARS * 4;
    for (value, bytes) in wire.iter_mut().zip(scalars[from..from + Q::SCALARS * 4].chunks_exact(4)) {
        *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    wire
}
