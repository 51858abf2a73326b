//! The one read of top-k: entries at or above a key, in order, with the sum of gradient and residual left behind.

use std::ops::Range;

use gradwire_kernels::arith::float::{MAGNITUDE, bf16_to_f32, canonical, f16_to_f32};
use gradwire_kernels::arith::topk::key;

use crate::gradient::Gradient;

/// Entries of a gradient: the index of each, rising, and the bits of its value as f32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    pub(crate) indices: Vec<u32>,
    pub(crate) bits: Vec<u32>,
}

impl Entries {
    /// Room for so many, and none yet.
    pub(super) fn with_capacity(entries: usize) -> Self {
        Self { indices: Vec::with_capacity(entries), bits: Vec::with_capacity(entries) }
    }
}

/// A residual, and the place of its sums with the gradient.
#[derive(Debug)]
pub(crate) struct Sums<'a> {
    /// The residual where the sums go beside it, and are not written yet; else they go over it.
    pub(crate) residual: Option<&'a [f32]>,
    pub(crate) sums: &'a mut [f32],
}

impl<'a> Sums<'a> {
    /// The sums go over the residual.
    pub(crate) fn over(residual: &'a mut [f32]) -> Self {
        Self { residual: None, sums: residual }
    }

    /// The sums go into memory of the same length, and the residual stays as it is.
    pub(crate) fn beside(residual: &'a [f32], sums: &'a mut [f32]) -> Self {
        Self { residual: Some(residual), sums }
    }

    /// The residual, before the sums are written.
    pub(crate) fn residual(&self) -> &[f32] {
        self.residual.unwrap_or(self.sums)
    }

    /// The same, for one call.
    pub(crate) fn reborrow(&mut self) -> Sums<'_> {
        Sums { residual: self.residual, sums: self.sums }
    }

    /// A range of both, for one call.
    pub(super) fn part(&mut self, range: Range<usize>) -> Sums<'_> {
        Sums { residual: self.residual.map(|all| &all[range.clone()]), sums: &mut self.sums[range] }
    }

    /// The first `elements`, and the others.
    pub(super) fn split_at(self, elements: usize) -> (Self, Self) {
        let (residual, other_residual) = self.residual.map(|r| r.split_at(elements)).unzip();
        let (sums, other_sums) = self.sums.split_at_mut(elements);
        (Self { residual, sums }, Self { residual: other_residual, sums: other_sums })
    }

    /// The sums, once they are written.
    pub(crate) fn into_sums(self) -> &'a mut [f32] {
        self.sums
    }
}

/// What of a run of elements is wanted.
pub(super) struct Filter<'a> {
    /// The whole gradient.
    pub(super) input: Gradient<'a>,
    /// The run's first element.
    pub(super) start: usize,
    /// Its elements.
    pub(super) len: usize,
    /// With feedback, the run's residual, and the place of its sums.
    pub(super) sums: Option<Sums<'a>>,
    /// The lowest key that is wanted.
    pub(super) floor: u32,
}

/// Elements that are looked at together: most such groups have no entry, and cost a maximum.
const GROUP: usize = 16;

/// Filters a run, and appends what is wanted.
#[inline(always)]
pub(super) fn filter(f: Filter<'_>, to: &mut Entries) {
    let here = f.start..f.start + f.len;
    match f.input {
        Gradient::F32(x) => run(&x[here], |v| *v, f.sums, f.start, f.floor, to),
        Gradient::F16(x) => run(&x[here], |v| f16_to_f32(v.to_bits()), f.sums, f.start, f.floor, to),
        Gradient::Bf16(x) => run(&x[here], |v| bf16_to_f32(v.to_bits()), f.sums, f.start, f.floor, to),
    }
}

#[inline(always)]
fn run<T>(
    input: &[T],
    widen: impl Fn(&T) -> f32 + Copy,
    sums: Option<Sums<'_>>,
    start: usize,
    floor: u32,
    to: &mut Entries,
) {
    let Some(Sums { residual, sums }) = sums else {
        for (group, values) in input.chunks(GROUP).enumerate() {
            // A NaN's magnitude is at or above its key, so no entry is passed over.
            if largest(values, |v| widen(v).to_bits()) >= floor {
                collect(values, |v| widen(v).to_bits(), start + group * GROUP, floor, to);
            }
        }
        return;
    };
    for (group, (values, sums)) in input.chunks(GROUP).zip(sums.chunks_mut(GROUP)).enumerate() {
        if let Some(residual) = residual {
            sums.copy_from_slice(&residual[group * GROUP..][..sums.len()]);
        }
        for (sum, v) in sums.iter_mut().zip(values) {
            *sum = canonical(*sum + widen(v));
        }
        if largest(sums, |v| v.to_bits()) >= floor {
            collect(sums, |v| v.to_bits(), start + group * GROUP, floor, to);
        }
    }
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
