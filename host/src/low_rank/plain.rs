//! Tensors that are not compressed: they wait in `sums`, and are sent as they are, with the last factor.

use gradwire_kernels::arith::float::{bf16_to_f32, canonical, f16_to_f32};
use gradwire_kernels::arith::powersgd::kept;

use super::LowRankState;
use super::outcome::Outcome;
use crate::gradient::Gradient;
use crate::plan::Part;

/// Elements that are added together, so that a branch for non-finite values is taken once for all of them.
const TOGETHER: usize = 64;

impl LowRankState {
    /// Adds the gradient to what waits. An element of which the sum is not finite is sent as it is, and what waited
    /// goes on waiting.
    pub(crate) fn form_plain(&mut self, gradient: Gradient<'_>) {
        let feedback = self.codec.feedback();
        for (part, sent) in self.table.parts.iter().zip(&self.sent).filter(|(part, _)| !part.compressed) {
            let place = part.first..part.first + part.elements();
            let (sums, odd) = (&mut self.sums[place.clone()], &mut self.work.odd);
            if !feedback || *sent {
                sums.fill(0.0);
            }
            match gradient {
                Gradient::F32(x) => add(sums, &x[place], |v| *v, part.first, odd),
                Gradient::F16(x) => add(sums, &x[place], |v| f16_to_f32(v.to_bits()), part.first, odd),
                Gradient::Bf16(x) => add(sums, &x[place], |v| bf16_to_f32(v.to_bits()), part.first, odd),
            }
        }
    }

    /// The first element of which the sum is not finite.
    pub(crate) fn plain_not_finite(&self, gradient: Gradient<'_>) -> Option<u64> {
        self.plain_odd(gradient).next()
    }

    /// The elements of which the sum is not finite.
    pub(crate) fn plain_odd(&self, gradient: Gradient<'_>) -> impl Iterator<Item = u64> {
        let feedback = self.codec.feedback();
        let widened = move |i: usize| match gradient {
            Gradient::F32(x) => x[i],
            Gradient::F16(x) => f16_to_f32(x[i].to_bits()),
            Gradient::Bf16(x) => bf16_to_f32(x[i].to_bits()),
        };
        let parts = self.table.parts.iter().zip(&self.sent).filter(|(part, _)| !part.compressed);
        let odd = move |(part, sent): (&Part, &bool)| {
            let waits = feedback && !*sent;
            let sum = move |i: usize| widened(i) + if waits { self.sums[i] } else { 0.0 };
            (part.first..part.first + part.elements()).filter(move |i| !sum(*i).is_finite())
        };
        parts.flat_map(odd).map(|i| i as u64)
    }

    /// Writes them after the last factor; `plain` is empty in the other rounds.
    pub(crate) fn write_plain(&self, mut plain: &mut [f32]) {
        if plain.is_empty() {
            return;
        }
        let mut odd = &self.work.odd[..];
        for part in self.table.parts.iter().filter(|part| !part.compressed) {
            let (mine, others) = plain.split_at_mut(part.elements());
            plain = others;
            mine.copy_from_slice(&self.sums[part.first..part.first + part.elements()]);
            let (here, later) = odd.split_at(odd.partition_point(|(i, _)| (*i as usize) < part.first + mine.len()));
            here.iter().for_each(|(i, value)| mine[*i as usize - part.first] = *value);
            odd = later;
        }
    }

    /// Takes their means, into the output. An element whose mean is not finite was not sent: it waits, unless another
    /// did so a short while ago.
    pub(crate) fn finish_plain(&mut self, mut means: &[f32], output: &mut [f32]) {
        let feedback = self.codec.feedback();
        for (index, part) in self.table.parts.iter().enumerate().filter(|(_, part)| !part.compressed) {
            let (mine, others) = means.split_at(part.elements());
            means = others;
            let place = part.first..part.first + part.elements();
            output[place.clone()].copy_from_slice(mine);
            let well = mine.iter().all(|v| v.is_finite());
            self.fates[index] = self.fates[index].next(well, feedback);
            let waits = self.fates[index].outcome == Some(Outcome::Kept);
            self.sent[index] = !waits;
            if waits {
                let sums = self.sums[place].iter_mut().zip(mine);
                sums.filter(|(_, mean)| mean.is_finite()).for_each(|(sum, _)| *sum = 0.0);
            }
        }
    }
}

/// Adds a tensor's gradient to its sums.
fn add<T>(sums: &mut [f32], gradient: &[T], widen: impl Fn(&T) -> f32, first: usize, odd: &mut Vec<(u32, f32)>) {
    let mut totals = [0.0f32; TOGETHER];
    let strips = sums.chunks_mut(TOGETHER).zip(gradient.chunks(TOGETHER));
    for (strip, (sums, gradient)) in strips.enumerate() {
        let totals = &mut totals[..sums.len()];
        let mut well = true;
        for ((total, sum), value) in totals.iter_mut().zip(&mut *sums).zip(gradient) {
            *total = widen(value) + *sum;
            *sum = kept(*total, *sum);
            well &= total.is_finite();
        }
        if !well {
            let at = first + strip * TOGETHER;
            let places = totals.iter().enumerate().filter(|(_, total)| !total.is_finite());
            odd.extend(places.map(|(i, total)| ((at + i) as u32, canonical(*total))));
        }
    }
}
