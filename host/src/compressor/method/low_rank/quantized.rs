//! Factors through a quantizer, in a device's memory.

use super::factors::Factors;
use super::means::Factor;
use crate::compressor::method::dense::Resident as Dense;
use crate::compressor::queue::Queue;
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::Error;
use crate::low_rank::ResidentLowRank;
use crate::model::ModelPlan;
use crate::plan::{DecodeMode, Side};
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::wire::{Entropy, Payload};

/// The memory with which factors are encoded and decoded.
pub(crate) struct Quantized<D: DeviceMemory> {
    /// Of left factors, and of right ones.
    sides: [Dense<D>; 2],
    entropy: Entropy,
    /// Memory for the values that this rank has sent of a step's last factor, if it keeps the rest.
    own: Option<D::Room>,
}

impl<D: DeviceMemory> Quantized<D> {
    pub(crate) fn new(queue: &Queue<'_, D>, through: &Factors, feedback: bool) -> Result<Self, Error> {
        let plans = [Side::Left, Side::Right].map(|side| through.of(side));
        let longest = plans.iter().map(|plan| plan.layout().elements()).max().unwrap_or(0);
        let [left, right] = plans.map(|plan| Dense::new(queue, plan));
        Ok(Self {
            sides: [left?, right?],
            entropy: through.entropy,
            own: if feedback { Some(queue.room(4 * longest)?) } else { None },
        })
    }
}

/// A factor in a device's memory.
pub(crate) struct OnDevice<'f, D: DeviceMemory> {
    pub(crate) queue: &'f Queue<'f, D>,
    pub(crate) device: &'f Device,
    pub(crate) steps: &'f ResidentLowRank,
    pub(crate) factors: &'f D::Slice,
    pub(crate) state: &'f D::Slice,
    pub(crate) through: Option<&'f mut Quantized<D>>,
    /// The number of the first entry in the host's memory, and those entries.
    pub(crate) at_hand: (usize, Vec<f32>),
}

impl<D: DeviceMemory> OnDevice<'_, D> {
    /// Refuses a mean that cannot be used, as a step in the host's memory does.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.steps.is_guarded() || self.through.is_none() {
            return Ok(());
        }
        let mut mean = vec![0.0f32; self.steps.given_len()];
        self.queue.read(self.factors, 0, &mut mean)?;
        self.steps.check_reduced(&mean)
    }
}

impl<D: DeviceMemory> Factor for OnDevice<'_, D> {
    fn read(&mut self, from: usize) -> Result<(), Error> {
        let mut values = vec![0.0; self.steps.given_len().saturating_sub(from)];
        self.queue.read(self.factors, 4 * from as u64, &mut values)?;
        self.at_hand = (from, values);
        Ok(())
    }

    fn at_hand(&mut self) -> &mut [f32] {
        &mut self.at_hand.1
    }

    fn write(&mut self) -> Result<(), Error> {
        let (from, values) = &self.at_hand;
        if self.through.is_none() {
            self.steps.check_reduced(values)?;
        }
        self.queue.write(self.factors, 4 * *from as u64, bytemuck::cast_slice(values))
    }

    fn encode(&mut self, _: &ModelPlan, side: Side, seed: Seed) -> Result<Vec<Payload>, Error> {
        match &self.through {
            Some(through) => through.sides[side as usize].payloads(self.queue, self.factors.clone(), seed),
            None => Ok(Vec::new()),
        }
    }

    fn decode(&mut self, _: &ModelPlan, side: Side, ranks: &[Vec<PayloadView<'_>>], weight: f32) -> Result<(), Error> {
        let Some(through) = &mut self.through else { return Ok(()) };
        let (packed, onto) = ((self.device, through.entropy), (DecodeMode::Sum(weight), self.factors.clone()));
        through.sides[side as usize].decode_of(self.queue, packed, ranks, onto)
    }

    fn keep(&mut self, _: &ModelPlan, side: Side, mine: &[Vec<PayloadView<'_>>]) -> Result<(), Error> {
        let Some(through) = &mut self.through else { return Ok(()) };
        let Some(own) = through.own.as_ref().map(|room| self.queue.all(room)) else { return Ok(()) };
        let (packed, onto) = ((self.device, through.entropy), (DecodeMode::Sum(1.0), own.clone()));
        through.sides[side as usize].decode_of(self.queue, packed, mine, onto)?;
        let mut places = self.steps.own_places().into_iter();
        places.try_for_each(|place| self.queue.copy((&own, place.from), (self.state, place.to), place.bytes))
    }
}
