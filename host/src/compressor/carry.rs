//! What a compressor keeps, carried to one of other tensors.

use super::core::Compressor;
use super::last::LastStep;
use super::method::Part;
use super::owner::Owner;
use super::planes;
use crate::error::{Error, SavedError};
use crate::low_rank::LowRankState;

impl Compressor {
    /// Takes over what other compressors keep of the tensors that this one has too, by name: residuals, momenta,
    /// estimates, factors, and the number of steps.
    ///
    /// For frameworks that exchange a gradient in buckets and make the buckets anew, as PyTorch does after its first
    /// step. The sum of all residuals stays the same if each tensor is in one of the compressors; an owner's
    /// residual ([`Algorithm::TwoPhase`](crate::Algorithm::TwoPhase)) is added to the rank's own. Tensors that no other
    /// one has begin anew, and so do factors if they are not of the same step.
    ///
    /// ```
    /// use gradwire::{Compressor, Policy, Tensor};
    /// let policy = Policy::new("topk:0.01+ef")?;
    /// let tensor = |name: &str| Tensor::new(name, [64, 64]);
    /// let new = |names: &[&str]| Compressor::with_policy(&policy, &names.iter().map(|n| tensor(n)).collect::<Vec<_>>(), 7);
    /// let buckets = [new(&["a"])?, new(&["b", "c"])?];
    /// let mut whole = new(&["c", "a"])?;
    /// whole.take_over(&[&buckets[0], &buckets[1]])?;
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Saved`] if a tensor has another shape or another recipe there, or if the others' steps differ;
    /// if residuals or momenta are of coefficients ([`Recipe::dct`](crate::Recipe::dct)), and the tensors that share
    /// them are others there;
    /// [`Error::Overflow`] if an owner's residual makes a sum too large; as [`Compressor::residual`]. The compressor
    /// is then as it was.
    pub fn take_over(&mut self, others: &[&Self]) -> Result<(), Error> {
        let _environment = crate::FloatEnvironment::standard();
        let mut from = Vec::new();
        for (index, tensor) in self.tensors.iter().enumerate().filter(|(_, tensor)| !tensor.name.is_empty()) {
            let place = |other: &&Self| other.tensors.iter().position(|theirs| theirs.name == tensor.name);
            let Some((which, at)) = others.iter().enumerate().find_map(|(which, other)| Some((which, place(other)?)))
            else {
                continue;
            };
            let other = others[which];
            let differ = |found: String, expected: String| {
                let what = "tensor";
                Error::from(SavedError::Other { what, found, expected })
            };
            if other.tensors[at].shape != tensor.shape {
                let text = |shape: &[u64]| format!("{} of shape {shape:?}", tensor.name);
                return Err(differ(text(&other.tensors[at].shape), text(&tensor.shape)));
            }
            if other.recipes[at] != self.recipes[index] {
                let text = |recipe: &crate::Recipe| format!("{} with {recipe}", tensor.name);
                return Err(differ(text(&other.recipes[at]), text(&self.recipes[index])));
            }
            from.push((index, which, at));
        }
        let Some(steps) = from.first().map(|(_, which, _)| others[*which].steps) else { return Ok(()) };
        if let Some((_, which, _)) = from.iter().find(|(_, which, _)| others[*which].steps != steps) {
            let (found, expected) = (others[*which].steps.to_string(), steps.to_string());
            return Err(SavedError::Other { what: "step", found, expected }.into());
        }
        self.expect_same_blocks(others, &from)?;
        let (mut residuals, mut owners) = (Vec::new(), Vec::new());
        for other in others {
            residuals.push(other.residual()?);
            owners.push(other.owner_residual()?);
        }
        let kept = self.planes.kept().map(<[f32]>::to_vec);
        let [mut residual, mut momentum, mut shift, mut mean] = kept;
        let mut of_factors = planes::zeros(self.elements())?;
        for (index, which, at) in &from {
            let (mine, theirs) = (self.layout.spans()[*index], others[*which].layout.spans()[*at]);
            let (mine, theirs) =
                (mine.offset as usize..mine.end() as usize, theirs.offset as usize..theirs.end() as usize);
            of_factors[mine.clone()].copy_from_slice(&residuals[*which][theirs.clone()]);
            let planes = [&mut residual, &mut momentum, &mut shift, &mut mean];
            for (to, from) in planes.into_iter().zip(others[*which].planes.kept()) {
                if !to.is_empty() && !from.is_empty() {
                    to[mine.clone()].copy_from_slice(&from[theirs.clone()]);
                }
            }
            if residual.is_empty() {
                continue;
            }
            for (place, owned) in mine.clone().zip(&owners[*which][theirs]).filter(|(_, owned)| **owned != 0.0) {
                let sum = residual[place] + owned;
                if !sum.is_finite() && residual[place].is_finite() {
                    return Err(Error::Overflow { what: "sum of the residuals", index: place as u64 });
                }
                residual[place] = sum;
            }
        }
        let mut states = Vec::new();
        for part in &self.parts {
            let Some(low_rank) = part.method.low_rank() else { continue };
            let residual = low_rank.elements_of(&part.group, &of_factors)?;
            let tensors = if low_rank.packed { part.group.tensors.clone() } else { (0..self.tensors.len()).collect() };
            let theirs = tensors.iter().map(|tensor| {
                let (_, which, at) = from.iter().find(|(index, ..)| index == tensor)?;
                others[*which].parts.iter().find_map(|part| factors_of(part, *at))
            });
            states.push(low_rank.state.carried(steps, residual, &theirs.collect::<Vec<_>>())?);
        }
        self.planes.set([residual, momentum, shift, mean]);
        super::step::put_back(&mut self.parts, states);
        let dense = self.parts.iter_mut().filter_map(|part| part.method.dense_mut());
        dense.for_each(|dense| dense.owner = Owner::default());
        (self.steps, self.agreed, self.digest, self.broken_off) = (steps, false, 0, false);
        self.last = LastStep::default();
        Ok(())
    }
}

impl Compressor {
    /// Refuses coefficients of blocks of other tensors: they are of another basis. `from` has tensors, the number of a
    /// compressor that has each, and its number there.
    fn expect_same_blocks(&self, others: &[&Self], from: &[(usize, usize, usize)]) -> Result<(), Error> {
        for part in self.parts.iter().filter(|part| keeps_coefficients(part)) {
            let found = from.iter().find(|(index, ..)| part.group.tensors.contains(index));
            let Some((_, which, at)) = found else { continue };
            let names = |of: &Self, part: &Part| -> Vec<String> {
                part.group.tensors.iter().map(|tensor| of.tensors[*tensor].name.clone()).collect()
            };
            let theirs = others[*which].parts.iter().find(|part| part.group.tensors.contains(at));
            let (mine, theirs) = (names(self, part), theirs.map_or(Vec::new(), |part| names(others[*which], part)));
            let from_there = |tensor: &usize| from.iter().any(|(index, other, _)| index == tensor && other == which);
            if mine != theirs || !part.group.tensors.iter().all(from_there) {
                return Err(SavedError::Blocks { found: theirs.join(", "), expected: mine.join(", ") }.into());
            }
        }
        Ok(())
    }
}

/// Whether a part's residual, momentum or estimates are of coefficients.
fn keeps_coefficients(Part { group, .. }: &Part) -> bool {
    let memory = group.recipe.memory();
    group.recipe.dct.is_some() && (memory.feedback || memory.momentum.is_some() || memory.shift.is_some())
}

/// The state of the factors of one of the model's tensors, and the tensor's number there.
fn factors_of(Part { group, method }: &Part, tensor: usize) -> Option<(&LowRankState, usize)> {
    let low_rank = method.low_rank()?;
    Some((&low_rank.state, low_rank.number(group, tensor)?))
}
