//! Quantile buckets: each is sorted, and its elements remember their places.

use gradwire_kernels::arith::float::{NAN_BITS, accumulate, canonical};
use gradwire_kernels::arith::pack::{UNIT, unit_bytes};
use gradwire_kernels::arith::quantile::{Cuts, holds_not_finite, key, mean_between, term, value};
use gradwire_kernels::params::{DecodeParams, EncodeParams, decode_flags};

use super::bucketed::{Body, EncodeTask};
use super::filter::Sums;
use super::rows::{Unit, pack, stage, unpack};

/// Elements of the largest bucket.
const MOST: usize = 4096;

/// Codes of the widest code.
const CODES: usize = 256;

/// Encodes a run of elements that starts on a unit and on a bucket.
#[inline(always)]
pub(super) fn encode(p: &EncodeParams, task: EncodeTask<'_>) {
    let EncodeTask { input, start, len, mut residual, scalars, codes } = task;
    let (bucket, quantiles, bytes) = (1 << p.bucket_log2, 1 << p.bits, unit_bytes(p.bits));
    let (mut values, mut sorted, mut other, mut found) = ([0; MOST], [0; MOST], [0; MOST], [0; MOST]);
    let all = scalars.chunks_mut(4 * quantiles).zip(codes.chunks_mut(bucket / UNIT * bytes));
    for (at, (scalars, codes)) in (0..len).step_by(bucket).zip(all) {
        let elements = bucket.min(len - at);
        let mut residual = residual.as_mut().map(|r| r.part(at..at + elements));
        let values = &mut values[..elements];
        stage(values, input, start + at, elements, residual.as_ref().map(Sums::residual));
        let (sorted, other) = (&mut sorted[..elements], &mut other[..elements]);
        if elements < 2048 {
            sort::<8, 4, 256>(values, sorted, other);
        } else {
            sort::<11, 3, 2048>(values, sorted, other);
        }
        // Behind the last element codes are zero.
        found[..elements.next_multiple_of(UNIT)].fill(0);
        let means = quantize(quantiles as u32, sorted, &mut found);
        for (slot, mean) in scalars.chunks_exact_mut(4).zip(means.unwrap_or([NAN_BITS; CODES])) {
            slot.copy_from_slice(&mean.to_le_bytes());
        }
        for (unit, (out, unit_codes)) in codes.chunks_mut(bytes).zip(found.as_chunks::<UNIT>().0).enumerate() {
            pack(p.bits, unit_codes, out);
            if let Some(residual) = &mut residual {
                let here = unit * UNIT..elements.min((unit + 1) * UNIT);
                let decoded = means.map(|means| unit_codes.map(|code| f32::from_bits(means[code as usize % CODES])));
                feedback(decoded.as_ref(), &values[here.clone()], residual.part(here));
            }
        }
    }
}

/// An element of a sorted bucket: its key, and in the lowest 16 bits its place in the bucket.
type Placed = u64;

/// The key of an element.
#[inline(always)]
fn key_of(element: Placed) -> u32 {
    (element >> 16) as u32
}

/// Sorts the elements of a bucket by their keys, from the lowest digit of `BITS` bits to the highest. Wide digits take
/// fewer passes, and more counters than a small bucket is worth.
#[inline(always)]
fn sort<const BITS: u32, const DIGITS: usize, const COUNTERS: usize>(
    values: &[u32],
    sorted: &mut [Placed],
    other: &mut [Placed],
) {
    const { assert!(BITS * DIGITS as u32 >= 32 && COUNTERS == 1 << BITS && MOST <= u16::MAX as usize) };
    let digit = |key: u32, index: usize| (key >> (BITS * index as u32)) as usize % COUNTERS;
    let mut places = [[0u16; COUNTERS]; DIGITS];
    for bits in values {
        for (index, places) in places.iter_mut().enumerate() {
            places[digit(key(*bits), index)] += 1;
        }
    }
    for places in &mut places {
        let mut before = 0;
        for place in places {
            before += std::mem::replace(place, before);
        }
    }
    let mut put = |index: usize, element: Placed, to: &mut [Placed]| {
        let place = &mut places[index][digit(key_of(element), index)];
        to[*place as usize] = element;
        *place += 1;
    };
    let (mut from, mut to) = if DIGITS.is_multiple_of(2) { (other, sorted) } else { (sorted, other) };
    for (place, bits) in values.iter().enumerate() {
        put(0, Placed::from(key(*bits)) << 16 | place as Placed, from);
    }
    for index in 1..DIGITS {
        from.iter().for_each(|element| put(index, *element, to));
        std::mem::swap(&mut from, &mut to);
    }
}

/// The means of a sorted bucket's quantiles as they stand on the wire, and each element's code at its place; none of a
/// bucket that holds a NaN or an infinity.
#[inline(always)]
fn quantize(quantiles: u32, sorted: &[Placed], codes: &mut [u32; MOST]) -> Option<[u32; CODES]> {
    let at = |index: u32| key_of(sorted[index as usize]);
    let elements = sorted.len() as u32;
    if holds_not_finite(at(0), at(elements - 1)) {
        return None;
    }
    let mut means = [0; CODES];
    let cuts = Cuts::new(quantiles, elements, at);
    let mut edges = [0; CODES];
    let edges = &mut edges[..quantiles as usize];
    edges.iter_mut().zip(0..).for_each(|(edge, code)| *edge = at(cuts.rank(code)));
    let mut end = sorted.len();
    for (code, edge) in edges.iter().enumerate().rev() {
        // The last of several quantiles that begin with equal elements is of those above them.
        let is_last = code > 0 && edges[code - 1] == *edge && edges.get(code + 1) != Some(edge);
        let least = edge + u32::from(is_last);
        let begin = sorted[..end].partition_point(|element| key_of(*element) < least);
        let own = &sorted[begin..end];
        end = begin;
        let (Some(first), Some(last)) = (own.first(), own.last()) else { continue };
        let sum = |to| own.iter().map(|element| term(key_of(*element), to)).sum();
        means[code] = mean_between(key_of(*first), key_of(*last), own.len() as u32, sum).to_bits();
        for element in own {
            codes[*element as usize % MOST] = code as u32;
        }
    }
    Some(means)
}

/// Leaves in the residual what decoding will not give back. A poisoned bucket's stays as it is: its step will be
/// skipped.
#[inline(always)]
fn feedback(decoded: Option<&[f32; UNIT]>, values: &[u32], residual: Sums<'_>) {
    let Sums { residual: before, sums: next } = residual;
    let Some(decoded) = decoded else {
        if let Some(before) = before {
            next.copy_from_slice(before);
        }
        return;
    };
    for ((rest, bits), decoded) in next.iter_mut().zip(values).zip(decoded) {
        *rest = canonical(f32::from_bits(*bits) - decoded);
    }
}

/// Decodes elements `start..start + output.len()`, which start on a unit and on a bucket.
#[inline(always)]
pub(super) fn decode(p: &DecodeParams, bodies: &[Body<'_>], start: usize, output: &mut [f32]) {
    let (bytes, quantiles) = (unit_bytes(p.bits), 1 << p.bits);
    let mut codes: Unit = [0; UNIT];
    for (local, out) in output.chunks_mut(UNIT).enumerate() {
        let unit = start / UNIT + local;
        if p.has(decode_flags::WEIGHTED) && !p.has(decode_flags::ACCUMULATE) {
            out.fill(0.0);
        }
        for body in bodies {
            unpack(p.bits, &body.codes[unit * bytes..(unit + 1) * bytes], &mut codes);
            let bucket = (unit * UNIT) >> p.bucket_log2;
            let means = &body.scalars.as_chunks::<4>().0[bucket * quantiles..(bucket + 1) * quantiles];
            for (out, code) in out.iter_mut().zip(codes) {
                let value = f32::from_bits(value(u32::from_le_bytes(means[code as usize])));
                *out = if p.has(decode_flags::WEIGHTED) { accumulate(*out, p.weight(), value) } else { value };
            }
        }
    }
}
