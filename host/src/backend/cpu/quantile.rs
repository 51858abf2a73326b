//! Quantile buckets: each is sorted, and an element's code is found among the edges.

use gradwire_kernels::arith::float::{NAN_BITS, accumulate, canonical};
use gradwire_kernels::arith::pack::{UNIT, unit_bytes};
use gradwire_kernels::arith::quantile::{Cuts, code, holds_not_finite, key, value};
use gradwire_kernels::params::{DecodeParams, EncodeParams, decode_flags};

use super::bucketed::{Body, EncodeTask};
use super::filter::Sums;
use super::rows::{Unit, pack, stage, unpack};

/// Elements of the largest bucket.
const MOST: usize = 4096;

/// Codes of the widest code.
const CODES: usize = 256;

/// Encodes a run of elements that starts on a unit and on a bucket.
pub(super) fn encode(p: &EncodeParams, task: EncodeTask<'_>) {
    let EncodeTask { input, start, len, mut residual, scalars, codes } = task;
    let (bucket, quantiles, bytes) = (1 << p.bucket_log2, 1 << p.bits, unit_bytes(p.bits));
    let (mut values, mut keys) = ([0; MOST], [0; MOST]);
    let all = scalars.chunks_mut(4 * quantiles).zip(codes.chunks_mut(bucket / UNIT * bytes));
    for (at, (scalars, codes)) in (0..len).step_by(bucket).zip(all) {
        let elements = bucket.min(len - at);
        let mut residual = residual.as_mut().map(|r| r.part(at..at + elements));
        let values = &mut values[..elements];
        stage(values, input, start + at, elements, residual.as_ref().map(Sums::residual));
        let keys = &mut keys[..elements];
        keys.iter_mut().zip(&*values).for_each(|(to, bits)| *to = key(*bits));
        keys.sort_unstable();
        let means = means(quantiles as u32, keys);
        for (slot, mean) in scalars.chunks_exact_mut(4).zip(&means.0) {
            slot.copy_from_slice(&mean.to_le_bytes());
        }
        let edges = means.1.as_ref().map(|edges| &edges[..quantiles]);
        for (unit, out) in codes.chunks_mut(bytes).enumerate() {
            let here = unit * UNIT..elements.min((unit + 1) * UNIT);
            let mut unit_codes: Unit = [0; UNIT];
            if let Some(edges) = edges {
                for (to, bits) in unit_codes.iter_mut().zip(&values[here.clone()]) {
                    *to = code(p.bits, key(*bits), |j| edges[j as usize]);
                }
            }
            pack(p.bits, &unit_codes, out);
            if let Some(residual) = &mut residual {
                let decoded = edges.map(|_| unit_codes.map(|code| f32::from_bits(means.0[code as usize])));
                feedback(decoded.as_ref(), &values[here.clone()], residual.part(here));
            }
        }
    }
}

/// The means of a sorted bucket's quantiles as they stand on the wire, and the edges; none of a bucket that holds a NaN
/// or an infinity.
fn means(quantiles: u32, keys: &[u32]) -> ([u32; CODES], Option<[u32; CODES]>) {
    let at = |index: u32| keys[index as usize];
    let elements = keys.len() as u32;
    if holds_not_finite(at(0), at(elements - 1)) {
        return ([NAN_BITS; CODES], None);
    }
    let (mut means, mut edges) = ([0; CODES], [0; CODES]);
    let cuts = Cuts::new(quantiles, elements, at);
    for j in 0..quantiles {
        means[j as usize] = cuts.mean(j, at).to_bits();
        edges[j as usize] = at(cuts.rank(j));
    }
    (means, Some(edges))
}

/// Leaves in the residual what decoding will not give back. A poisoned bucket's stays as it is: its step will be
/// skipped.
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
