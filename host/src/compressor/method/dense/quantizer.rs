//! The quantizer of a group's tensors, and the state of the sums that it encodes.

use crate::compressor::group::Group;
use crate::compressor::owner::Owner;
use crate::entropy::Packing;
use crate::error::{Error, RecipeError};
use crate::gradient::Dtype;
use crate::model::{Layout, ModelPlan};
use crate::plan::Limits;

/// Every element is quantized, a payload for each tensor.
#[derive(Clone, Debug)]
pub(crate) struct Dense {
    pub(super) plan: ModelPlan,
    pub(super) limits: Limits,
    /// The residual of the sums that this rank quantizes for all ranks.
    pub(crate) owner: Owner,
}

impl Dense {
    pub(crate) fn new(group: &Group) -> Result<Self, Error> {
        let limits = Limits::NONE;
        Ok(Self { plan: plan(group, &limits)?, limits, owner: Owner::default() })
    }
}

/// How a group's tensors are encoded.
pub(super) fn plan(group: &Group, limits: &Limits) -> Result<ModelPlan, Error> {
    let layout = Layout::new(group.spans.clone())?;
    let stages = RecipeError::Stages { what: "no stages", remedy: "name a codec" };
    let plan = ModelPlan::new(&group.recipe.dense().ok_or(stages)?, &layout, Dtype::F32, limits)?;
    // Before the others wait for this rank's payloads: codes are packed in one binding each.
    plan.tensors()
        .iter()
        .try_for_each(|tensor| Packing::new(tensor.header(), group.recipe.entropy, limits).map(drop))?;
    Ok(plan)
}
