//! A group of any method.

use super::contract::{Gathered, Method, Received, Summed};
use super::dense::Dense;
use super::low_rank::{LowRank, matrices};
use super::random::Random;
use super::rotated::Rotated;
use super::sparse::Sparse;
use crate::compressor::group::Group;
use crate::compressor::policy::Tensor;
use crate::error::Error;
use crate::model::{Layout, TensorSpan};
use crate::plan::{Limits, NonFinite};
use crate::recipe::{Algorithm, Recipe};

/// Tensors that share a recipe, and the method that compresses them.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) group: Group,
    pub(crate) method: AnyMethod,
}

impl Part {
    /// `alone` is whether the model's other tensors all go uncompressed; `first`, the number of the first tensor in
    /// random draws.
    pub(crate) fn new(
        recipe: Recipe,
        tensors: Vec<usize>,
        model: &[Tensor],
        layout: &Layout,
        alone: bool,
        first: u32,
        run: u64,
    ) -> Result<Self, Error> {
        let spans: Vec<TensorSpan> = tensors.iter().map(|index| layout.spans()[*index]).collect();
        let longest = spans.iter().map(|span| span.elements).max().unwrap_or(0);
        let formed = match recipe.memory().is_formed() {
            true => recipe.memory().formed(&recipe.promise(longest as usize)?)?,
            false => None,
        };
        let fraction = recipe.part_at(0);
        let order = recipe.dct.map(|dct| dct.order(&matrices(model, &tensors, false)));
        let (via, limit) = (Algorithm::Gather, None);
        let mut group = Group { recipe, tensors, spans, first, formed, fraction, via, limit, order: None };
        let method = AnyMethod::new(&group, model, layout, alone, run)?;
        group.order = order.transpose()?.flatten();
        Ok(Self { group, method })
    }

    /// Makes plans again if they were made for another device's limits.
    pub(crate) fn fit(&mut self, to: &Limits) -> Result<(), Error> {
        self.method.settings_mut().fit(&self.group, to)
    }

    /// Takes the selection of a step of the warm-up, and returns whether it is another one.
    pub(crate) fn warm_up(&mut self, step: u64) -> Result<bool, Error> {
        let fraction = self.group.recipe.part_at(step);
        if fraction == self.group.fraction {
            return Ok(false);
        }
        self.method.settings_mut().warm_up(&self.group, step)?;
        self.group.fraction = fraction;
        Ok(true)
    }

    /// The method, if this step gathers its payloads.
    pub(crate) fn gathered(&self) -> Option<&dyn Gathered> {
        self.method.gathered().filter(|_| self.group.via == Algorithm::Gather)
    }

    /// The number of payloads of each rank that this step gathers.
    pub(crate) fn payloads(&self) -> usize {
        self.gathered().map_or(0, Gathered::payloads)
    }

    /// Checks the payloads of all ranks; none if the step exchanges them in messages of their own.
    pub(crate) fn receive<'m>(&self, ranks: &[&[&'m [u8]]]) -> Result<Option<Received<'m>>, Error> {
        self.gathered().map(|method| method.receive(&self.group, ranks)).transpose()
    }

    /// Whether its factors go through a quantizer, and are gathered one after another.
    pub(crate) fn gathers_factors(&self) -> bool {
        self.method.low_rank().is_some_and(LowRank::gathers)
    }

    /// Whether a non-finite mean fails or skips the step: with `finite`, and of estimates, which it would spoil for
    /// good. Sums are checked by themselves.
    pub(crate) fn expects_finite_mean(&self) -> bool {
        self.method.gathered().is_some() && self.group.recipe.policy() == NonFinite::Error
    }
}

/// A method.
#[derive(Clone, Debug)]
pub(crate) enum AnyMethod {
    Dense(Dense),
    Sparse(Sparse),
    Rotated(Rotated),
    LowRank(LowRank),
    Random(Random),
}

impl AnyMethod {
    fn new(group: &Group, model: &[Tensor], layout: &Layout, alone: bool, run: u64) -> Result<Self, Error> {
        let recipe = &group.recipe;
        if let Some(codec) = recipe.low_rank() {
            return LowRank::new(group, &codec, model, alone, run).map(Self::LowRank);
        }
        if let (Some(rotation), Some(dense)) = (recipe.rotation(), recipe.dense()) {
            return Rotated::new(group, rotation, |elements| dense.plan(elements)).map(Self::Rotated);
        }
        if let Some(codec) = recipe.random {
            return Random::new(group, codec).map(Self::Random);
        }
        match recipe.sparse_at(0) {
            Some(codec) => Sparse::new(group, &codec, layout.elements(), alone).map(Self::Sparse),
            None => Dense::new(group).map(Self::Dense),
        }
    }

    /// The settings of the method.
    pub(crate) fn settings(&self) -> &dyn Method {
        match self {
            Self::Dense(method) => method,
            Self::Sparse(method) => method,
            Self::Rotated(method) => method,
            Self::LowRank(method) => method,
            Self::Random(method) => method,
        }
    }

    /// The settings of the method, to change them.
    fn settings_mut(&mut self) -> &mut dyn Method {
        match self {
            Self::Dense(method) => method,
            Self::Sparse(method) => method,
            Self::Rotated(method) => method,
            Self::LowRank(method) => method,
            Self::Random(method) => method,
        }
    }

    /// The method, if its payloads are gathered.
    pub(crate) fn gathered(&self) -> Option<&dyn Gathered> {
        match self {
            Self::Dense(method) => Some(method),
            Self::Sparse(method) => Some(method),
            Self::Rotated(method) => Some(method),
            Self::LowRank(_) | Self::Random(_) => None,
        }
    }

    /// How the method's own messages reach the other ranks.
    pub(crate) fn way(&mut self) -> Way<'_> {
        match self {
            Self::Dense(method) => Way::Gathered(method),
            Self::Sparse(method) => Way::Gathered(method),
            Self::Rotated(method) => Way::Gathered(method),
            Self::LowRank(method) => Way::Summed(method),
            Self::Random(method) => Way::Summed(method),
        }
    }

    /// The method, if it quantizes every element.
    pub(crate) fn dense(&self) -> Option<&Dense> {
        if let Self::Dense(method) = self { Some(method) } else { None }
    }

    /// The method, if it quantizes every element.
    pub(crate) fn dense_mut(&mut self) -> Option<&mut Dense> {
        if let Self::Dense(method) = self { Some(method) } else { None }
    }

    /// The method, if it sends factors.
    pub(crate) fn low_rank(&self) -> Option<&LowRank> {
        if let Self::LowRank(method) = self { Some(method) } else { None }
    }

    /// The method, if it sends factors.
    pub(crate) fn low_rank_mut(&mut self) -> Option<&mut LowRank> {
        if let Self::LowRank(method) = self { Some(method) } else { None }
    }
}

/// How the messages of a method reach the other ranks.
pub(crate) enum Way<'m> {
    /// They are gathered, or go by the algorithm that the recipe names.
    Gathered(&'m mut dyn Gathered),
    /// They are summed.
    Summed(&'m mut dyn Summed),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_fit_no_binding_are_refused_before_anything_is_sent() {
        let n = 1 << 20;
        let (model, layout) = ([Tensor::new("a", [n])], Layout::packed([n]).expect("valid"));
        let limits = Limits { binding_bytes: 2 << 20, ..Limits::NONE };
        let fit = |text: &str, limits: &Limits| {
            let recipe: Recipe = text.parse().expect("a recipe");
            Part::new(recipe, vec![0], &model, &layout, true, 0, 1).expect("valid").fit(limits)
        };
        // A code of 16 bits is packed in 32 at most.
        assert!(matches!(fit("qsgd:bits=16+elias", &limits), Err(Error::Limit { needed, .. }) if needed > 4 << 20));
        fit("qsgd:bits=16", &limits).expect("parts of it fit");
        fit("qsgd:bits=8+elias", &limits).expect_err("16 bits at most, and a table");
        fit("qsgd:bits=4+elias", &limits).expect("8 bits at most");
        fit("qsgd:bits=16+elias", &Limits::NONE).expect("there is no limit");
        let of_half = "topk:0.5+qsgd:bits=16+elias";
        assert!(
            matches!(fit(of_half, &limits), Err(Error::Limit { needed, .. }) if needed > 2 << 20),
            "the same of half the values"
        );
        fit("topk:0.1+qsgd:bits=16+elias", &limits).expect("a tenth of the values");
    }
}
