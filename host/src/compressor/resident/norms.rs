//! The norms of tensors that are clipped.

use std::borrow::Cow;

use crate::compressor::clip::{NORM, gain, measures};
use crate::compressor::group::Group;
use crate::compressor::queue::Queue;
use crate::embed::{DeviceMemory, EncodeBuffers, EncodeModel, Piece, WithTable, Work, sealed};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::model::{Layout, ModelPlan};
use crate::plan::{Limits, Pass};
use crate::seed::Seed;

/// The memory in which a group's norms are found.
pub(super) struct Norms<D: DeviceMemory> {
    plan: ModelPlan,
    table: D::Room,
    /// Of the payloads that the norms would be scalars of, whose codes nobody writes.
    body: D::Room,
    workspace: D::Room,
}

impl<D: DeviceMemory> Norms<D> {
    /// None for a group that is not clipped.
    pub(super) fn new(queue: &Queue<'_, D>, group: &Group) -> Result<Option<Self>, Error> {
        if group.recipe.clipped().is_none() {
            return Ok(None);
        }
        let layout = Layout::new(group.spans.clone())?;
        let plan = ModelPlan::new(&NORM, &layout, Dtype::F32, &queue.memory().limits())?;
        Ok(Some(Self {
            table: queue.holding(&plan.table())?,
            body: queue.room(plan.body_bytes())?,
            // Without elements there is no statistic.
            workspace: queue.room(plan.workspace_bytes().max(4))?,
            plan,
        }))
    }

    /// The factor that clips the group's gradient; none if its norm is within the limit.
    pub(super) fn gain(&self, queue: &Queue<'_, D>, gradient: &D::Slice, limit: f64) -> Result<Option<f32>, Error> {
        let body = queue.all(&self.body);
        let buffers = EncodeBuffers {
            gradient: gradient.clone(),
            residual: None,
            body: body.clone(),
            workspace: Some(queue.all(&self.workspace)),
        };
        queue.run(Measure(&self.plan), WithTable { table: queue.all(&self.table), buffers })?;
        // A tensor without elements has none.
        let [scalars, _] = self.plan.part_bytes();
        let mut norms = vec![0.0f32; (scalars / 4) as usize];
        queue.read(&body, 0, &mut norms)?;
        Ok(gain(norms.into_iter(), limit))
    }
}

/// The passes of [`NORM`] that come before its codes.
#[derive(Clone, Copy, Debug)]
struct Measure<'p>(&'p ModelPlan);

impl Measure<'_> {
    fn encode(&self) -> EncodeModel<'_> {
        EncodeModel { plan: self.0, seed: Seed::new(0) }
    }
}

impl sealed::Sealed for Measure<'_> {}

impl Work for Measure<'_> {
    type Buffers<B> = WithTable<B, EncodeBuffers<B>>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let passes = self.encode().passes(limits)?.into_owned();
        Ok(passes.into_iter().filter(measures).collect::<Vec<_>>().into())
    }

    fn pieces<B>(&self, buffers: Self::Buffers<B>) -> Result<Vec<Piece<B>>, Error> {
        self.encode().pieces(buffers)
    }
}
