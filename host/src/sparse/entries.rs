//! Entries of a gradient, and what they are selected from.

use std::ops::Range;

use gradwire_kernels::arith::float::{bf16_to_f32, canonical, f16_to_f32};

use crate::error::Error;
use crate::gradient::Gradient;
use crate::words::no_memory;

/// The name of the memory of entries in errors.
pub(crate) const ENTRIES: &str = "the entries that are kept";

/// The name of the memory of statistics in errors.
pub(crate) const STATISTICS: &str = "statistics of the gradient";

/// Entries of a gradient: the index of each, rising, and the bits of its value as f32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    pub(crate) indices: Vec<u32>,
    pub(crate) bits: Vec<u32>,
}

impl Entries {
    /// Makes sure that there is memory for `more` entries.
    ///
    /// # Errors
    /// [`Error::Backend`] if it cannot be had.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), Error> {
        let had = self.indices.try_reserve(more).and_then(|()| self.bits.try_reserve(more));
        had.map_err(|_| no_memory::<[u32; 2]>(more as u64, ENTRIES))
    }

    /// Leaves out the entries for which `is_kept` is false: it is asked once for each place and the bits there, in
    /// order.
    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(usize, u32) -> bool) {
        let mut kept = 0;
        for at in 0..self.bits.len() {
            (self.indices[kept], self.bits[kept]) = (self.indices[at], self.bits[at]);
            kept += usize::from(is_kept(at, self.bits[at]));
        }
        for all in [&mut self.indices, &mut self.bits] {
            all.truncate(kept);
            all.shrink_to_fit();
        }
    }
}

/// What entries are selected from: a gradient, or its sums with a residual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) gradient: Gradient<'a>,
    /// With feedback, as long as the gradient.
    pub(crate) residual: Option<&'a [f32]>,
}

impl<'a> Source<'a> {
    pub(crate) fn len(self) -> usize {
        self.gradient.len()
    }

    /// An element, or its sum.
    #[inline(always)]
    pub(crate) fn at(self, i: usize) -> f32 {
        let element = match self.gradient {
            Gradient::F32(x) => x[i],
            Gradient::F16(x) => f16_to_f32(x[i].to_bits()),
            Gradient::Bf16(x) => bf16_to_f32(x[i].to_bits()),
        };
        self.residual.map_or(element, |residual| canonical(residual[i] + element))
    }

    /// Some neighbours.
    pub(crate) fn part(self, range: Range<usize>) -> Self {
        let gradient = self.gradient.part(range.start, range.len());
        Self { gradient, residual: self.residual.map(|residual| &residual[range]) }
    }
}

impl<'a> From<Gradient<'a>> for Source<'a> {
    fn from(gradient: Gradient<'a>) -> Self {
        Self { gradient, residual: None }
    }
}
