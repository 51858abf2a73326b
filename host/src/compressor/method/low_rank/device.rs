//! The tensors go as PowerSGD's factors, in a device's memory.

use super::factors::Factors;
use super::matrices::LowRank;
use super::means::Means;
use super::quantized::{OnDevice, Quantized};
use crate::collective::Collective;
use crate::compressor::failure::Failure;
use crate::compressor::group::Group;
use crate::compressor::method::on_device::SummedOn;
use crate::compressor::policy::Tensor;
use crate::compressor::queue::{Place, Plane, Queue, pack, unpack};
use crate::compressor::stamp::Stamp;
use crate::embed::{AdvanceLowRank, BeginLowRank, DeviceMemory, FinishLowRank, LowRankBuffers};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::low_rank::{LowRankState, ResidentLowRank};
use crate::plan::NonFinite;

/// The tensors go as PowerSGD's factors, in a device's memory.
pub(crate) struct Resident<D: DeviceMemory> {
    pub(super) steps: ResidentLowRank,
    before: ResidentLowRank,
    state: Plane<D::Room>,
    residual: Plane<D::Room>,
    factors: D::Room,
    /// Memory for the concatenated tensors, if the state is that of the group's tensors alone.
    packed: Option<D::Room>,
    /// How factors are quantized, if they are, and the memory for that.
    through: Option<(Factors, Quantized<D>)>,
    /// Memory for sums that are queued, from [`Streamed::reserve`](crate::compressor::method::stream::Streamed).
    #[cfg(feature = "cuda")]
    pub(super) sums: Option<D::Room>,
    /// Whether the step under way has begun.
    begun: bool,
}

impl<D: DeviceMemory> Resident<D> {
    pub(crate) fn of(
        queue: &Queue<'_, D>,
        low_rank: &LowRank,
        group: &Group,
        model: &[Tensor],
        run: u64,
    ) -> Result<Self, Error> {
        let LowRank { state: host, packed, through } = low_rank;
        let mut steps = host.codec.resident(&low_rank.matrices(group, model), Dtype::F32, group.seed(run))?;
        let through = match through.as_deref().filter(|_| low_rank.gathers()) {
            Some(through) => {
                steps = steps.keeping_own()?;
                Some((through.clone(), Quantized::new(queue, through, group.recipe.memory().feedback)?))
            }
            None => None,
        };
        let (image, sums) = steps.upload(host)?;
        let room = |bytes| queue.room(bytes);
        let state = Plane { now: room(steps.state_bytes())?, before: room(steps.saved_bytes())? };
        queue.write(&queue.all(&state.now), 0, &image)?;
        let residual = Plane { now: room(steps.residual_bytes())?, before: room(steps.residual_bytes())? };
        queue.write(&queue.all(&residual.now), 0, bytemuck::cast_slice(&sums))?;
        let packed = if *packed { Some(room(steps.gradient_bytes())?) } else { None };
        let factors = room(steps.factor_bytes())?;
        Ok(Self {
            before: steps.clone(),
            steps,
            state,
            residual,
            factors,
            packed,
            through,
            #[cfg(feature = "cuda")]
            sums: None,
            begun: false,
        })
    }

    /// Copies the state as it is before a step.
    pub(crate) fn keep(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        (self.before, self.begun) = (self.steps.clone(), false);
        self.planes().into_iter().try_for_each(|(plane, bytes)| queue.keep(plane, bytes))
    }

    /// State buffers, and how many bytes of each a step starts from.
    pub(crate) fn planes(&self) -> [(&Plane<D::Room>, u64); 2] {
        [(&self.state, self.steps.saved_bytes()), (&self.residual, self.steps.residual_bytes())]
    }

    /// The inverse of [`Resident::keep`].
    pub(crate) fn undo(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        self.steps = self.before.clone();
        self.planes().into_iter().try_for_each(|(plane, bytes)| queue.restore(plane, bytes))
    }

    /// The state in the host's memory.
    pub(crate) fn download(&self, queue: &Queue<'_, D>) -> Result<LowRankState, Error> {
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
    fn begin(&mut self, queue: &Queue<'_, D>, place: &Place<'_, D>, group: &Group) -> Result<(), Error> {
        if self.begun {
            return Ok(());
        }
        let gradient = match &self.packed {
            Some(packed) => {
                pack(queue, group.ranges(), &place.input, &queue.all(packed))?;
                queue.all(packed)
            }
            None => place.input.clone(),
        };
        let buffers = self.buffers(queue, Some(gradient), None);
        queue.run(BeginLowRank(&mut self.steps), buffers)?;
        self.begun = true;
        if group.recipe.non_finite != NonFinite::Error {
            return Ok(());
        }
        let status = queue.bytes(&queue.all(&self.state.now), self.steps.status_bytes())?;
        let checked = self.steps.check(&status);
        checked.map_err(|error| if self.packed.is_some() { group.unpacked(error) } else { error })
    }

    /// A step, in which `mean` makes of each factor, of [`ResidentLowRank::given_len`] entries, the mean over the
    /// ranks.
    pub(super) fn step_by(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        mut mean: impl FnMut(&ResidentLowRank, &D::Slice) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.begin(queue, place, group)?;
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
            unpack(queue, group.ranges(), &packed, &place.gradient)?;
        }
        Ok(())
    }
}

impl<D: DeviceMemory> SummedOn<D> for Resident<D> {
    /// Beginning the step scans for non-finite values.
    fn refuse(&mut self, queue: &Queue<'_, D>, place: &Place<'_, D>, group: &Group) -> Result<(), Error> {
        match group.recipe.non_finite {
            NonFinite::Error => self.begin(queue, place, group),
            NonFinite::Propagate => Ok(()),
        }
    }

    fn exchange(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        stamp: Stamp,
        ranks: &mut dyn Collective,
        weight: f32,
    ) -> Result<u64, Failure> {
        let sides = (1..=self.steps.rounds()).map(|round| self.steps.side(round)).collect();
        let (mut through, state) = (self.through.take(), queue.all(&self.state.now));
        let (factors, mut quantized) = match &mut through {
            Some((factors, quantized)) => (Some(&*factors), Some(quantized)),
            None => (None, None),
        };
        let mut means = Means::new(place.device, ranks, weight, stamp, factors, sides);
        let done = self.step_by(queue, place, group, |steps, factors| {
            let through = quantized.as_deref_mut();
            let (device, at_hand) = (place.device, Default::default());
            let mut factor = OnDevice { queue, device, steps, factors, state: &state, through, at_hand };
            means.mean(&mut factor)?;
            factor.check()
        });
        let bytes = means.end(done);
        self.through = through;
        bytes
    }
}
