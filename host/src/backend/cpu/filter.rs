//! The one read of top-k: entries at or above a key, in order. With feedback the sums of gradient and residual are
//! selected from, and may be written.

use std::ops::Range;

use gradwire_kernels::arith::float::{MAGNITUDE, bf16_to_f32, canonical, f16_to_f32};
use gradwire_kernels::arith::topk::key;

use crate::gradient::Gradient;
use crate::sparse::{Entries, Source};

/// A residual of feedback by quantizers, and the place of its sums with the gradient.
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
}

/// What of a run of elements is wanted.
pub(super) struct Filter<'a> {
    /// The run.
    pub(super) source: Source<'a>,
    /// The index of its first element.
    pub(super) start: usize,
    /// With feedback, where the sums go; empty if they are not written.
    pub(super) sums: &'a mut [f32],
    /// The lowest key that is wanted.
    pub(super) floor: u32,
}

/// Elements that are looked at together: most such groups have no entry, and cost a maximum.
const GROUP: usize = 16;

/// Filters a run, and appends what is wanted.
#[inline(always)]
pub(super) fn filter(f: Filter<'_>, to: &mut Entries) {
    let Filter { source: Source { gradient, residual }, start, sums, floor } = f;
    match gradient {
        Gradient::F32(x) => run(x, |v| *v, residual, sums, start, floor, to),
        Gradient::F16(x) => run(x, |v| f16_to_f32(v.to_bits()), residual, sums, start, floor, to),
        Gradient::Bf16(x) => run(x, |v| bf16_to_f32(v.to_bits()), residual, sums, start, floor, to),
    }
}

#[inline(always)]
fn run<T>(
    input: &[T],
    widen: impl Fn(&T) -> f32 + Copy,
    residual: Option<&[f32]>,
    sums: &mut [f32],
    start: usize,
    floor: u32,
    to: &mut Entries,
) {
    let Some(residual) = residual else {
        for (group, values) in input.chunks(GROUP).enumerate() {
            // A NaN's magnitude is at or above its key, so no entry is passed over.
            if largest(values, |v| widen(v).to_bits()) >= floor {
                collect(values, |v| widen(v).to_bits(), start + group * GROUP, floor, to);
            }
        }
        return;
    };
    let mut group_sums = [0.0; GROUP];
    for (group, (values, before)) in input.chunks(GROUP).zip(residual.chunks(GROUP)).enumerate() {
        let formed = &mut group_sums[..values.len()];
        add(values, widen, before, formed);
        if let Some(sums) = sums.get_mut(group * GROUP..)
            && !sums.is_empty()
        {
            sums[..formed.len()].copy_from_slice(formed);
        }
        if largest(formed, |v| v.to_bits()) >= floor {
            collect(formed, |v| v.to_bits(), start + group * GROUP, floor, to);
        }
    }
}

/// The sums of a group.
#[inline(always)]
fn add<T>(values: &[T], widen: impl Fn(&T) -> f32, before: &[f32], sums: &mut [f32]) {
    for ((sum, v), before) in sums.iter_mut().zip(values).zip(before) {
        *sum = canonical(before + widen(v));
    }
}

/// Adds a gradient to its residual.
#[inline(always)]
pub(super) fn add_to(gradient: Gradient<'_>, residual: &mut [f32]) {
    match gradient {
        Gradient::F32(x) => residual.iter_mut().zip(x).for_each(|(r, v)| *r = canonical(*r + v)),
        Gradient::F16(x) => residual.iter_mut().zip(x).for_each(|(r, v)| *r = canonical(*r + f16_to_f32(v.to_bits()))),
        Gradient::Bf16(x) => {
            residual.iter_mut().zip(x).for_each(|(r, v)| *r = canonical(*r + bf16_to_f32(v.to_bits())));
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
