//! Tensors that go as factors.

use super::place::{Place, pack, unpack};
use super::quantized::{OnDevice, Quantized};
use crate::collective::Collective;
use crate::compressor::Compressor;
use crate::compressor::algorithm::{Means, Step};
use crate::compressor::failure::Failure;
use crate::compressor::part::{Method, Part};
use crate::compressor::resident::memory::{Plane, Queue};
use crate::embed::{AdvanceLowRank, BeginLowRank, DeviceMemory, FinishLowRank, LowRankBuffers};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::low_rank::{LowRankState, ResidentLowRank};
use crate::plan::NonFinite;

pub(in crate::compressor::resident) struct LowRank<D: DeviceMemory> {
    steps: ResidentLowRank,
    before: ResidentLowRank,
    state: Plane<D::Room>,
    residual: Plane<D::Room>,
    factors: D::Room,
    /// Where tensors are packed one after another.
    packed: Option<D::Room>,
    /// What factors are encoded and decoded with, if they go through a quantizer.
    through: Option<Quantized<D>>,
    /// Whether the step under way has begun.
    begun: bool,
}

impl<D: DeviceMemory> LowRank<D> {
    pub(super) fn new(
        queue: &Queue<'_, D>,
        of: &Compressor,
        part: &Part,
        host: &LowRankState,
        packed: bool,
    ) -> Result<Self, Error> {
        let mut steps = host.codec.resident(&of.matrices(part, !packed), Dtype::F32, part.seed(of.run))?;
        let through = match &part.method {
            Method::LowRank { through: Some(through), .. } if part.gathers_factors() => {
                steps = steps.keeping_own()?;
                Some(Quantized::new(queue, through, part.recipe.memory().feedback)?)
            }
            _ => None,
        };
        let (image, sums) = steps.upload(host)?;
        let room = |bytes| queue.room(bytes);
        let state = Plane { now: room(steps.state_bytes())?, before: room(steps.saved_bytes())? };
        queue.write(&queue.all(&state.now), 0, &image)?;
        let residual = Plane { now: room(steps.residual_bytes())?, before: room(steps.residual_bytes())? };
        queue.write(&queue.all(&residual.now), 0, bytemuck::cast_slice(&sums))?;
        let packed = if packed { Some(room(steps.gradient_bytes())?) } else { None };
        let factors = room(steps.factor_bytes())?;
        Ok(Self { before: steps.clone(), steps, state, residual, factors, packed, through, begun: false })
    }

    pub(super) fn keep(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        (self.before, self.begun) = (self.steps.clone(), false);
        self.planes().into_iter().try_for_each(|(plane, bytes)| queue.keep(plane, bytes))
    }

    /// State buffers, and how many bytes of each a step starts from.
    pub(in crate::compressor::resident) fn planes(&self) -> [(&Plane<D::Room>, u64); 2] {
        [(&self.state, self.steps.saved_bytes()), (&self.residual, self.steps.residual_bytes())]
    }

    pub(super) fn undo(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        self.steps = self.before.clone();
        self.planes().into_iter().try_for_each(|(plane, bytes)| queue.restore(plane, bytes))
    }

    /// The state in the host's memory.
    pub(in crate::compressor::resident) fn download(&self, queue: &Queue<'_, D>) -> Result<LowRankState, Error> {
        let state = queue.bytes(&queue.all(&self.state.now), 0..self.steps.saved_bytes())?;
        let mut residual = vec![0.0f32; self.steps.elements()];
        queue.read(&queue.all(&self.residual.now), 0, &mut residual)?;
        self.steps.download(&state, &residual)
    }

    fn buffers(
        &self,
        queue: &Queue<'_, D>,
        gradient: Option<D::Slice>,
        output: Option<D::Slice>,
    ) -> LowRankBuffers<D::Slice> {
        let [residual, state, factors] =
            [&self.residual.now, &self.state.now, &self.factors].map(|room| queue.all(room));
        LowRankBuffers { gradient, residual, state, factors, output }
    }

    /// The first call of a step, if it has not been made.
    pub(in crate::compressor::resident) fn begin(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
    ) -> Result<(), Error> {
        if self.begun {
            return Ok(());
        }
        let gradient = match &self.packed {
            Some(packed) => {
                pack(queue, part.ranges(), &place.input, &queue.all(packed))?;
                queue.all(packed)
            }
            None => place.input.clone(),
        };
        let buffers = self.buffers(queue, Some(gradient), None);
        queue.run(BeginLowRank(&mut self.steps), buffers)?;
        self.begun = true;
        if part.recipe.non_finite != NonFinite::Error {
            return Ok(());
        }
        let status = queue.bytes(&queue.all(&self.state.now), self.steps.status_bytes())?;
        let checked = self.steps.check(&status);
        checked.map_err(|error| if self.packed.is_some() { part.unpacked(error) } else { error })
    }

    /// A step, with all its messages; bytes that were handed over. The seed of `step` is that of the part's draws.
    pub(in crate::compressor::resident) fn step(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        step: Step,
        group: &mut (impl Collective + ?Sized),
        weight: f32,
    ) -> Result<u64, Failure> {
        let through = match &part.method {
            Method::LowRank { through, .. } => through.as_deref(),
            _ => None,
        };
        let sides = (1..=self.steps.rounds()).map(|round| self.steps.side(round)).collect();
        let mut means = Means::new(place.device, group, weight, step, through, sides);
        let (mut quantized, state) = (self.through.take(), queue.all(&self.state.now));
        let done = self.step_by(queue, place, part, |steps, factors| {
            let through = quantized.as_mut();
            let mut factor = OnDevice {
                queue,
                device: place.device,
                steps,
                factors,
                state: &state,
                through,
                at_hand: Default::default(),
            };
            means.mean(&mut factor)?;
            factor.check()
        });
        self.through = quantized;
        means.end(done)
    }

    /// A step, in which `mean` makes of each factor, of [`ResidentLowRank::given_len`] entries, the mean over the
    /// ranks.
    pub(in crate::compressor::resident) fn step_by(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        mut mean: impl FnMut(&ResidentLowRank, &D::Slice) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.begin(queue, place, part)?;
        let factors = queue.all(&self.factors);
        for round in 1..=self.steps.rounds() {
            mean(&self.steps, &factors)?;
            if round < self.steps.rounds() {
                let buffers = self.buffers(queue, None, None);
                queue.run(AdvanceLowRank(&mut self.steps), buffers)?;
            }
        }
        let packed = self.packed.as_ref().map(|room| queue.all(room));
        let output = packed.clone().unwrap_or_else(|| place.gradient.clone());
        let buffers = self.buffers(queue, None, Some(output));
        queue.run(FinishLowRank(&mut self.steps), buffers)?;
        self.begun = false;
        if let Some(packed) = packed {
            unpack(queue, part.ranges(), &packed, &place.gradient)?;
        }
        Ok(())
    }

    /// The order of its calls.
    #[cfg(feature = "cuda")]
    pub(in crate::compressor::resident) fn steps(&self) -> &ResidentLowRank {
        &self.steps
    }
}
