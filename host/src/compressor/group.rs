//! The tensors of a model that share a recipe.

use std::ops::Range;

use super::failure::not_finite;
use super::planes::Held;
use crate::error::{Error, ExchangeError};
use crate::model::TensorSpan;
use crate::plan::NonFinite;
use crate::recipe::{Algorithm, Formed, Recipe};
use crate::rotation::Tiles;
use crate::seed::Seed;
use crate::wire::PayloadError;
use crate::words;

/// The name of memory for values in errors.
pub(crate) const VALUES: &str = "values of a step";

/// Tensors that share a recipe, and the settings of their step. Which method compresses them is not known here.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// A recipe with a codec.
    pub(crate) recipe: Recipe,
    /// The tensors' numbers in the model, ascending.
    pub(crate) tensors: Vec<usize>,
    /// The tensors' places in the gradient.
    pub(crate) spans: Vec<TensorSpan>,
    /// The number of the first tensor in random draws.
    pub(crate) first: u32,
    /// How the encoded values are formed, if they are neither the gradient nor the momentum.
    pub(crate) formed: Option<Formed>,
    /// The fraction of entries that the selection of this step keeps, if it keeps a fraction.
    pub(crate) fraction: Option<f64>,
    /// The algorithm of this step.
    pub(crate) via: Algorithm,
    /// The norm that this rank's gradient is clipped to in this step.
    pub(crate) limit: Option<f64>,
    /// The order in which the cosine transform takes the elements, if it is not that of the gradient.
    pub(crate) order: Option<Tiles>,
}

impl Group {
    /// The algorithm for this number of ranks.
    pub(crate) fn algorithm(&self, ranks: u32) -> Algorithm {
        match self.recipe.algorithm() {
            Algorithm::TwoPhase { from } if ranks < from => Algorithm::Gather,
            other => other,
        }
    }

    /// The state buffer in which the encoded values are formed, if they are.
    pub(crate) fn forms(&self) -> Option<Held> {
        self.formed.map(|formed| if formed.starts_over { Held::Shift } else { Held::Residual })
    }

    /// The ranges of its tensors in the gradient.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + Clone {
        self.spans.iter().map(|span| span.offset as usize..span.end() as usize)
    }

    /// The number of elements of its tensors.
    pub(crate) fn elements(&self) -> usize {
        self.spans.iter().map(|span| span.elements as usize).sum()
    }

    /// The number of one of its tensors in the draws.
    pub(crate) fn number(&self, tensor: usize) -> u32 {
        self.first.wrapping_add(tensor as u32)
    }

    /// The seed of its draws, from the seed of a step.
    pub(crate) fn seed_of(&self, step: Seed) -> Seed {
        step.tensor(self.first)
    }

    /// The seed of its factors.
    pub(crate) fn seed(&self, run: u64) -> Seed {
        Seed::new(run).tensor(self.first)
    }

    /// Refuses a non-finite element of its tensors.
    pub(crate) fn refuse_not_finite(&self, input: &[f32]) -> Result<(), Error> {
        let wrong = self.ranges().flatten().find(|index| !input[*index].is_finite());
        wrong.map_or(Ok(()), |index| Err(Error::NotFinite { index: index as u64 }))
    }

    /// Refuses a payload of a rank unless it is finite.
    pub(crate) fn expect_finite(&self, rank: u32, finite: bool) -> Result<(), Error> {
        if finite { Ok(()) } else { Err(not_finite(rank, self.recipe.non_finite).into()) }
    }

    /// The error that other ranks are told: without `finite`, a non-finite gradient skips the step.
    pub(crate) fn told(&self, error: Error, rank: u32) -> Error {
        match error {
            Error::NotFinite { .. } if self.recipe.non_finite == NonFinite::Propagate => {
                ExchangeError::Skipped { rank }.into()
            }
            other => other,
        }
    }

    /// The same error with an element's number in the gradient, for its number among the concatenated tensors.
    pub(crate) fn unpacked(&self, error: Error) -> Error {
        let Error::NotFinite { index } = error else { return error };
        let mut before = 0;
        for span in &self.spans {
            if index < before + span.elements {
                return Error::NotFinite { index: span.offset + index - before };
            }
            before += span.elements;
        }
        error
    }

    /// The error of a damaged payload of one of its tensors. A lack of memory is no fault of the rank that sent it.
    pub(crate) fn damaged(&self, rank: u32, tensor: usize, source: PayloadError) -> Error {
        if let PayloadError::Memory { .. } = source {
            return source.into();
        }
        ExchangeError::Damaged { rank, tensor: self.number_in_model(tensor), source }.into()
    }

    /// The error of a payload with other settings than expected.
    pub(crate) fn differs(&self, rank: u32, tensor: usize, what: &'static str) -> Error {
        ExchangeError::Payload { rank, tensor: self.number_in_model(tensor), what }.into()
    }

    /// The number in the model of one of its tensors.
    fn number_in_model(&self, tensor: usize) -> u64 {
        self.tensors.get(tensor).copied().unwrap_or(0) as u64
    }

    /// Its tensors, concatenated.
    pub(crate) fn pack(&self, gradient: &[f32]) -> Result<Vec<f32>, Error> {
        let mut packed = words::reserved(self.elements(), VALUES)?;
        self.ranges().for_each(|range| packed.extend_from_slice(&gradient[range]));
        Ok(packed)
    }

    /// Copies concatenated tensors into the gradient: the inverse of [`Group::pack`].
    pub(crate) fn unpack(&self, mut packed: &[f32], gradient: &mut [f32]) {
        for range in self.ranges() {
            let (mine, rest) = packed.split_at(range.len());
            gradient[range].copy_from_slice(mine);
            packed = rest;
        }
    }
}
