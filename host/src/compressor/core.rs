//! A compressor: its tensors, their recipes and its state.

use super::description::description;
use super::last::LastStep;
use super::method::Part;
use super::planes::{Planes, zeros};
use super::policy::{Policy, Tensor};
use super::whole::Whole;
use super::workspace::Workspace;
use crate::error::{Error, ExchangeError};
use crate::model::Layout;
use crate::recipe::Recipe;

/// Compresses the gradients of a model's tensors, exchanges them between ranks, and keeps what a step leaves for the
/// next one.
///
/// A gradient holds all tensors one after another, in f32. Every rank makes its compressor of the same tensors, the
/// same policy and the same run. Draws are the rank's own, and a step of their own each time, without a seed to keep.
///
/// ```
/// use gradwire::{Collective, Compressor, Device, Error};
///
/// fn train(group: &mut impl Collective) -> Result<(), Error> {
///     let shapes = [vec![128, 64], vec![128], vec![10, 128]];
///     let device = Device::cpu();
///     let mut compressor = Compressor::new("qsgd:bits=4,bucket=64+ef", &shapes, 42)?;
///     let mut gradient = vec![0.5; compressor.elements()];
///     for _ in 0..10 {
///         // ... the gradient of this rank's samples ...
///         compressor.exchange(&device, group, &mut gradient)?; // it is now the mean over all ranks
///     }
///     Ok(())
/// }
/// ```
///
/// * **What goes how**: payloads of quantizers and of selections by an all-gather, unless the recipe says another
///   [`Algorithm`](crate::Algorithm); factors and what goes uncompressed by an all-reduce. Factors that go through a
///   quantizer are gathered one after another, and each rank's residual is the error of its own: docs/powersgd.md.
/// * **Same bits**: after [`Compressor::exchange`] the gradient has the same bits on every rank. With factors, that
///   needs the same backend on every rank.
///   Ranks that got different bytes find out in the next step ([`ExchangeError::Parted`]), if it gathers payloads or a
///   recipe has `finite`.
/// * **Failure**: where an exchange fails, gradient, residual and all state are as they were before it, on this rank.
///   A panic in the group's own code may leave gradient and factors half changed: every later call is then refused with
///   [`ExchangeError::BrokenOff`], until a saved state is restored.
/// * **NaN and infinity**: a step in which a rank's gradient has one, or gets one by its residual, is skipped on every
///   rank: all of the mean is NaN, the state stays, and the step counts. With `finite` it fails instead.
/// * **Memory**: error feedback and momentum take 8 bytes per element each, so that a step can be undone; estimates
///   ([`crate::Shift`]) take 16.
/// * **Selections** are made of each tensor, with the part or number of entries that the recipe says, of one that has
///   fewer with all of them; `above`, `estimate`, `persign`, `block` and `segments` look at all tensors of the recipe
///   as one. Small tensors go uncompressed ([`Policy`]).
#[derive(Clone)]
pub struct Compressor {
    pub(super) tensors: Vec<Tensor>,
    pub(super) recipes: Vec<Recipe>,
    pub(super) layout: Layout,
    pub(super) parts: Vec<Part>,
    /// What goes uncompressed, and no part takes along.
    pub(super) whole: Vec<Whole>,
    pub(super) planes: Planes,
    pub(super) run: u64,
    pub(super) steps: u64,
    /// A checksum of run, tensors and recipes, which all ranks have alike.
    pub(super) model: u32,
    /// Whether a step was made since the state was new or restored, and so the ranks agree.
    pub(super) agreed: bool,
    /// What this rank took of the last step; 0 if it is not known.
    pub(super) digest: u32,
    pub(super) all_reduce_only: bool,
    /// Whether a step was begun and neither kept nor undone.
    pub(super) broken_off: bool,
    pub(super) work: Workspace,
    /// The state that the last step has replaced, if it can be taken back.
    pub(super) last: LastStep,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { recipes, run, steps, .. } = self;
        let mut all = f.debug_struct("Compressor");
        all.field("recipes", recipes).field("run", run).field("steps", steps).finish_non_exhaustive()
    }
}

impl Compressor {
    /// For tensors of these shapes, all of them under the default [`Policy`] of this recipe: a [`Recipe`], a codec, or
    /// a text.
    ///
    /// # Errors
    /// As [`Compressor::with_policy`].
    pub fn new<R: TryInto<Recipe>>(
        recipe: R,
        shapes: impl IntoIterator<Item = impl AsRef<[u64]>>,
        run: u64,
    ) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        let tensors: Vec<Tensor> = shapes.into_iter().map(|shape| Tensor::new("", shape.as_ref())).collect();
        Self::with_policy(&Policy::new(recipe)?, &tensors, run)
    }

    /// For these tensors under a policy. `run` is the number of the training run, as of [`crate::Seed::new`].
    ///
    /// # Errors
    /// [`Error::Recipe`] where stages do not go together or the policy does not admit them; what a codec refuses for
    /// the length of a tensor:
    /// [`Error::FeedbackDiverges`], [`Error::TooFew`], [`Error::Length`], [`Error::Keep`], [`Error::Rank`];
    /// [`Error::TooLong`] for more than 2^31 elements together;
    /// [`Error::Backend`] if there is no memory for the state.
    pub fn with_policy(policy: &Policy, tensors: &[Tensor], run: u64) -> Result<Self, Error> {
        let _environment = crate::FloatEnvironment::standard();
        let layout = Layout::packed(tensors.iter().map(Tensor::elements))?;
        let recipes: Vec<Recipe> = tensors.iter().map(|tensor| policy.recipe(tensor)).collect();
        recipes.iter().try_for_each(|recipe| policy.expect_exchange(recipe))?;
        let mut distinct: Vec<(&Recipe, Vec<usize>)> = Vec::new();
        for (index, recipe) in recipes.iter().enumerate().filter(|(_, recipe)| !recipe.is_none()) {
            match distinct.iter_mut().find(|(other, _)| *other == recipe) {
                Some((_, members)) => members.push(index),
                None => distinct.push((recipe, vec![index])),
            }
        }
        let mut policies = recipes.iter().map(|recipe| recipe.non_finite);
        let first_policy = policies.next();
        let one_policy = policies.all(|policy| Some(policy) == first_policy);
        let alone = distinct.len() == 1;
        let mut parts = Vec::with_capacity(distinct.len());
        let mut first = 0u32;
        for (recipe, members) in distinct {
            let count = members.len() as u32;
            // Factors take other tensors along, under their own policy and without momentum.
            let takes = one_policy && recipe.memory().momentum.is_none();
            let alone = alone && (takes || recipe.low_rank().is_none());
            parts.push(Part::new(recipe.clone(), members, tensors, &layout, alone, first, run)?);
            first = first.wrapping_add(count);
        }
        let takes_all = alone && parts[0].method.low_rank().is_some_and(|low_rank| !low_rank.packed);
        let spans = layout.spans().iter().zip(&recipes).filter(|(_, recipe)| !takes_all && recipe.is_none());
        let whole: Vec<Whole> = spans.map(|(span, recipe)| Whole::new(*span, recipe)).collect();
        let elements = layout.elements() as usize;
        let of_planes = |part: &&Part| part.method.low_rank().is_none();
        let feedback = parts.iter().filter(of_planes).any(|part| part.group.recipe.memory().feedback);
        let momentum = parts.iter().any(|part| part.group.recipe.memory().momentum.is_some());
        let momentum = momentum || whole.iter().any(|tensor| tensor.momentum.is_some());
        let shift = parts.iter().any(|part| part.group.recipe.memory().shift.is_some());
        let mut model = crc32fast::Hasher::new();
        model.update(&run.to_le_bytes());
        model.update(description(tensors, &recipes).as_bytes());
        Ok(Self {
            tensors: tensors.to_vec(),
            recipes,
            model: model.finalize(),
            agreed: false,
            digest: 0,
            all_reduce_only: policy.is_all_reduce_only(),
            planes: Planes::new(elements, [feedback, momentum, shift, shift])?,
            layout,
            parts,
            whole,
            run,
            steps: 0,
            broken_off: false,
            work: Workspace::default(),
            last: LastStep::default(),
        })
    }

    /// Elements of the gradient: those of all tensors.
    pub fn elements(&self) -> usize {
        self.layout.elements() as usize
    }

    /// Where each tensor lies in the gradient.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The recipe of each tensor.
    pub fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    /// Steps that were exchanged.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Bytes that this rank handed over to the group in the last step: its payloads, and 4 bytes per element or entry
    /// of sums over the ranks.
    pub fn last_bytes(&self) -> u64 {
        self.work.bytes
    }

    /// Forgets what has not been sent, as when it has grown too large for f32. Factors, momentum and estimates stay.
    ///
    /// # Errors
    /// [`ExchangeError::BrokenOff`].
    pub fn clear_residual(&mut self) -> Result<(), Error> {
        self.expect_whole()?;
        self.last = LastStep::default();
        self.planes.clear_residual();
        for part in &mut self.parts {
            if let Some(low_rank) = part.method.low_rank_mut() {
                low_rank.state.clear_residual()?;
            }
            if let Some(dense) = part.method.dense_mut() {
                dense.owner.clear();
            }
        }
        Ok(())
    }

    /// Refuses to go on after a step that was broken off.
    pub(super) fn expect_whole(&self) -> Result<(), Error> {
        if self.broken_off { Err(ExchangeError::BrokenOff.into()) } else { Ok(()) }
    }

    /// What this rank keeps of the sums that it quantized for all ranks
    /// ([`Algorithm::TwoPhase`](crate::Algorithm::TwoPhase)), an entry per element of the gradient; zero outside of the
    /// piece that it owns. [`Compressor::residual`] is beside it.
    ///
    /// # Errors
    /// As [`Compressor::residual`].
    pub fn owner_residual(&self) -> Result<Vec<f32>, Error> {
        let _environment = crate::FloatEnvironment::standard();
        self.expect_whole()?;
        let mut residual = zeros(self.elements())?;
        for Part { group, method } in &self.parts {
            if let Some(dense) = method.dense() {
                dense.add_owner(group, dense.owner.kept(), &mut residual);
            }
        }
        Ok(residual)
    }

    /// What has not been sent so far, an entry per element of the gradient; of a recipe with [`Recipe::dct`], per
    /// coefficient.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for it; [`ExchangeError::BrokenOff`].
    pub fn residual(&self) -> Result<Vec<f32>, Error> {
        let _environment = crate::FloatEnvironment::standard();
        self.expect_whole()?;
        let mut residual = zeros(self.elements())?;
        let [kept, ..] = self.planes.kept();
        if !kept.is_empty() {
            residual.copy_from_slice(kept);
        }
        for Part { group, method } in &self.parts {
            if let Some(low_rank) = method.low_rank() {
                low_rank.write_residual(group, &mut residual)?;
            }
        }
        Ok(residual)
    }
}
