//! Factors through a quantizer: how each is encoded.

use crate::entropy::Packing;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::model::{Layout, ModelPlan};
use crate::plan::{Limits, Side, Table};
use crate::recipe::Recipe;
use crate::wire::Entropy;

/// How the factors of a group are encoded: those of each matrix in a payload of their own, so that none shares a scale,
/// or a NaN, with another's.
#[derive(Clone, Debug)]
pub(crate) struct Factors {
    /// Of the left factors, and of the right ones.
    plans: [ModelPlan; 2],
    /// The number in the model of each matrix that is compressed.
    pub(crate) tensors: Vec<u64>,
    pub(crate) entropy: Entropy,
    limits: Limits,
}

impl Factors {
    /// For the matrices of a table; `number` maps the number of each there to its number in the model. `None` if
    /// factors are summed in f32.
    pub(crate) fn new(
        recipe: &Recipe,
        table: &Table,
        number: impl Fn(usize) -> usize,
        limits: &Limits,
    ) -> Result<Option<Self>, Error> {
        let Some(quantizer) = recipe.of_factors() else { return Ok(None) };
        let plan = |side: Side| {
            let lengths = table.compressed().map(|(_, part)| (part.dimension(side) * table.rank) as u64);
            let layout = Layout::packed(lengths)?;
            ModelPlan::new(&quantizer, &layout, Dtype::F32, limits)
        };
        let tensors = table.compressed().map(|(index, _)| number(index) as u64).collect();
        let plans = [plan(Side::Left)?, plan(Side::Right)?];
        let factors = Self { plans, tensors, entropy: recipe.entropy, limits: *limits };
        factors.expect_packing()?;
        Ok(Some(factors))
    }

    /// Makes the plans again if they were made for another device's limits.
    pub(crate) fn fit(&mut self, recipe: &Recipe, to: &Limits) -> Result<(), Error> {
        let Some(quantizer) = recipe.of_factors().filter(|_| self.limits != *to) else { return Ok(()) };
        let plan = |of: &ModelPlan| ModelPlan::new(&quantizer, of.layout(), Dtype::F32, to);
        let [left, right] = &self.plans;
        let fitted = Self { plans: [plan(left)?, plan(right)?], limits: *to, ..self.clone() };
        fitted.expect_packing()?;
        *self = fitted;
        Ok(())
    }

    /// Refuses codes that the device cannot pack, before anything of the step is sent.
    fn expect_packing(&self) -> Result<(), Error> {
        let mut tensors = self.plans.iter().flat_map(ModelPlan::tensors);
        tensors.try_for_each(|plan| Packing::new(plan.header(), self.entropy, &self.limits).map(drop))
    }

    /// How the factors of a side are encoded.
    pub(crate) fn of(&self, side: Side) -> &ModelPlan {
        &self.plans[side as usize]
    }
}
