//! The sum of several payloads' entries.

use std::borrow::Cow;
use std::ops::Range;

use super::{Piece, ScatterBuffers, Work, sealed};
use crate::error::Error;
use crate::plan::{ALIGNMENT, Limits, Pass, Role};
use crate::sparse::passes::scatter;

/// The entries of payloads, each weighted and added in order onto zeros. The lists of each payload are where
/// [`Scatters::ranges`] says.
pub(crate) struct Scatters {
    /// Of each payload.
    pub(crate) entries: Vec<u64>,
    pub(crate) elements: u64,
    pub(crate) weight: f32,
}

impl Scatters {
    /// Where the list of indices has those of each payload, and the list of values its values.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let mut at = 0;
        self.entries.iter().map(move |entries| {
            let from = at;
            at += (4 * entries).next_multiple_of(ALIGNMENT);
            from..from + 4 * entries
        })
    }
}

impl sealed::Sealed for Scatters {}

impl Work for Scatters {
    type Buffers<B> = ScatterBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let mut passes = scatter(0, None, self.elements, limits)?;
        for (entries, range) in self.entries.iter().zip(self.ranges()) {
            for mut pass in scatter(*entries, Some(self.weight), self.elements, limits)? {
                pass.bindings.indices.offset += range.start;
                pass.bindings.values.offset += range.start;
                passes.push(pass);
            }
        }
        Ok(passes.into())
    }

    fn pieces<B>(&self, buffers: ScatterBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let bytes = self.ranges().map(|range| range.end).max().unwrap_or(0);
        let list = |what, buffer, role| Piece::new(what, buffer, bytes, [Some((role, 0)), None]).read();
        // It is filled with zeros first.
        let output = Piece::floats("output", buffers.output, self.elements, Role::Output).scratch(0, 4 * self.elements);
        Ok(vec![
            list("list of indices", buffers.indices, Role::Indices),
            list("list of values", buffers.values, Role::Values),
            output,
        ])
    }
}
