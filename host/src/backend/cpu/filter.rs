//! The one read of top-k: entries at or above a key, in order, with the sum of gradient and residual left behind.

use gradwire_kernels::arith::float::{MAGNITUDE, bf16_to_f32, canonical, f16_to_f32};
use gradwire_kernels::arith::topk::key;

use crate::gradient::Gradient;

/// Entries of a gradient: the index of each, rising, and the bits of its value as f32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    pub(crate) indices: Vec<u32>,
    pub(crate) bits: Vec<u32>,
}

/// What of a run of elements is wanted.
pub(super) struct Filter<'a> {
    /// The whole gradient.
    pub(super) input: Gradient<'a>,
    /// The run's first element.
    pub(super) start: usize,
    /// Its elements.
    pub(super) len: usize,
    /// With feedback, the run's residual: added, and overwritten by the sum.
    pub(super) residual: Option<&'a mut [f32]>,
    /// The lowest key that is wanted.
    pub(super) floor: u32,
}

/// Elements that are looked at together: most such groups have no entry, and cost a maximum.
const GROUP: usize = 16;

/// Filters a run.
#[inline(always)]
pub(super) fn filter(f: Filter<'_>) -> Entries {
    match f.input {
        Gradient::F32(x) => run(&x[f.start..f.start + f.len], |v| *v, f.residual, f.start, f.floor),
        Gradient::F16(x) => {
            run(&x[f.start..f.start + f.len], |v| f16_to_f32(v.to_bits()), f.residual, f.start, f.floor)
        }
        Gradient::Bf16(x) => {
            run(&x[f.start..f.start + f.len], |v| bf16_to_f32(v.to_bits()), f.residual, f.start, f.floor)
        }
    }
}

#[inline(always)]
fn run<T>(
    input: &[T],
    widen: impl Fn(&T) -> f32 + Copy,
    residual: Option<&mut [f32]>,
    start: usize,
    floor: u32,
) -> Entries {
    let mut entries = Entries::default();
    let Some(residual) = residual else {
        for (group, values) in input.chunks(GROUP).enumerate() {
            // A NaN's magnitude is at or above its key, so no entry is passed over.
            if largest(values, |v| widen(v).to_bits()) >= floor {
                collect(values, |v| widen(v).to_bits(), start + group * GROUP, floor, &mut entries);
            }
        }
        return entries;
    };
    for (group, (values, sums)) in input.chunks(GROUP).zip(residual.chunks_mut(GROUP)).enumerate() {
        for (sum, v) in sums.iter_mut().zip(values) {
            *sum = canonical(*sum + widen(v));
        }
        if largest(sums, |v| v.to_bits()) >= floor {
            collect(sums, |v| v.to_bits(), start + group * GROUP, floor, &mut entries);
        }
    }
    entries
}

/// The largest magnitude of a group, as bits.
#[inline(always)]
fn largest<T>(values: &[T], bits: impl Fn(&T) -> u32) -> u32 {
    let of = |top: u32, v: &T| top.max(bits(v) & MAGNITUDE);
    // The common length is a constant, for the vectoriser.
    match values.first_chunk::<GROUP>() {
        Some(whole) => whole.iter().fold(0, of),
        None => values.iter().fold(0, of),
    }
}

/// The entries of a group that has one. Apart from the loop over the groups, which it would keep from being vectors.
#[inline(never)]
fn collect<T>(values: &[T], bits: impl Fn(&T) -> u32, first: usize, floor: u32, entries: &mut Entries) {
    let flag = |i: usize, v: &T| if key(bits(v)) >= floor { 1u32 << i } else { 0 };
    let mut wanted = match values.first_chunk::<GROUP>() {
        Some(whole) => {
            let flags: [u32; GROUP] = std::array::from_fn(|i| flag(i, &whole[i]));
            flags.into_iter().fold(0, |all, flag| all | flag)
        }
        None => values.iter().enumerate().fold(0, |all, (i, v)| all | flag(i, v)),
    };
    while wanted != 0 {
        let i = wanted.trailing_zeros() as usize;
        wanted &= wanted - 1;
        entries.indices.push((first + i) as u32);
        entries.bits.push(bits(&values[i]));
    }
}
