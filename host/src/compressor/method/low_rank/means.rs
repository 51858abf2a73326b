//! The means of PowerSGD's factors: summed on the way in f32, or, through a quantizer, of what every rank has sent.

use super::factors::Factors;
use crate::collective::Collective;
use crate::compressor::failure::{Failure, expect_finite, not_finite};
use crate::compressor::stamp::Stamp;
use crate::compressor::{frame, mean};
use crate::device::Device;
use crate::error::{Error, ExchangeError};
use crate::model::ModelPlan;
use crate::plan::{DecodeMode, Side};
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::wire::Payload;
use crate::words::zeros;

/// A factor of a step, in any memory. Its first entries may go through a quantizer, the others as they are.
pub(crate) trait Factor {
    /// Reads the entries from `from` on into the host's memory, before the other ranks wait for them.
    fn read(&mut self, from: usize) -> Result<(), Error>;

    /// The entries that [`Factor::read`] has read.
    fn at_hand(&mut self) -> &mut [f32];

    /// Puts them back.
    fn write(&mut self) -> Result<(), Error>;

    /// The payloads of the entries that the plan of a side covers.
    fn encode(&mut self, plan: &ModelPlan, side: Side, seed: Seed) -> Result<Vec<Payload>, Error>;

    /// Writes the sum of all ranks' payloads, times the weight.
    fn decode(
        &mut self,
        plan: &ModelPlan,
        side: Side,
        ranks: &[Vec<PayloadView<'_>>],
        weight: f32,
    ) -> Result<(), Error>;

    /// Keeps this rank's payloads of the step's last factor, decoded.
    fn keep(&mut self, plan: &ModelPlan, side: Side, mine: &[Vec<PayloadView<'_>>]) -> Result<(), Error>;
}

/// A factor in the host's memory.
pub(crate) struct OnHost<'f> {
    pub(crate) device: &'f Device,
    pub(crate) factor: &'f mut [f32],
    /// The number of the first entry that [`Factor::read`] has read.
    pub(crate) from: usize,
    /// This rank's last factor as it was sent.
    pub(crate) own: &'f mut Vec<f32>,
}

impl Factor for OnHost<'_> {
    fn read(&mut self, from: usize) -> Result<(), Error> {
        self.from = from;
        Ok(())
    }

    fn at_hand(&mut self) -> &mut [f32] {
        &mut self.factor[self.from..]
    }

    fn write(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn encode(&mut self, plan: &ModelPlan, _: Side, seed: Seed) -> Result<Vec<Payload>, Error> {
        self.device.encode_model(plan, &self.factor[..plan.layout().elements() as usize], &mut [], seed)
    }

    fn decode(&mut self, plan: &ModelPlan, _: Side, ranks: &[Vec<PayloadView<'_>>], weight: f32) -> Result<(), Error> {
        let ranks: Vec<&[PayloadView<'_>]> = ranks.iter().map(Vec::as_slice).collect();
        let factor = &mut self.factor[..plan.layout().elements() as usize];
        self.device.decode_model(plan, DecodeMode::Sum(weight), &ranks, factor)
    }

    fn keep(&mut self, plan: &ModelPlan, _: Side, mine: &[Vec<PayloadView<'_>>]) -> Result<(), Error> {
        let elements = plan.layout().elements() as usize;
        if self.own.len() != elements {
            *self.own = zeros(elements as u64, "a rank's own factor")?;
        }
        let mine: Vec<&[PayloadView<'_>]> = mine.iter().map(Vec::as_slice).collect();
        self.device.decode_model(plan, DecodeMode::Sum(1.0), &mine, self.own)
    }
}

/// Replaces each factor of a step by its mean over the ranks.
pub(crate) struct Means<'e> {
    device: &'e Device,
    group: &'e mut dyn Collective,
    weight: f32,
    step: Stamp,
    /// How factors are encoded; none if they are summed on the way.
    through: Option<&'e Factors>,
    /// The side of each factor of the step.
    sides: Vec<Side>,
    /// Factors that were exchanged, or are.
    round: usize,
    /// Whether all ranks know that the step fails, or none can be told.
    told: bool,
    bytes: u64,
}

impl<'e> Means<'e> {
    /// For a step with factors of these sides. The seed of `step` is that of the group's draws.
    pub(crate) fn new(
        device: &'e Device,
        group: &'e mut dyn Collective,
        weight: f32,
        step: Stamp,
        through: Option<&'e Factors>,
        sides: Vec<Side>,
    ) -> Self {
        // Without a matrix nothing is quantized, and nothing gathered.
        let through = through.filter(|through| !through.tensors.is_empty());
        Self { device, group, weight, step, through, sides, round: 0, told: false, bytes: 0 }
    }

    /// Replaces the next factor of the step by the mean. Entries after the quantized ones are summed in f32.
    pub(crate) fn mean(&mut self, factor: &mut impl Factor) -> Result<(), Error> {
        let side = self.sides.get(self.round).copied().unwrap_or(Side::Left);
        self.round += 1;
        let Some(through) = self.through else {
            // The others wait in a sum, which cannot carry a refusal.
            factor.read(0).inspect_err(|_| self.told = true)?;
            return self.sum(factor);
        };
        let plan = through.of(side);
        let (rank, ranks) = (self.group.rank(), self.group.ranks());
        let mut encoded =
            factor.read(plan.layout().elements() as usize).and_then(|()| self.encode(side, through, factor));
        let message = self.step.message(rank, &mut encoded);
        self.bytes += message.len() as u64;
        let mut from = Vec::new();
        let gathered = self.group.all_gather(&message, &mut from);
        self.told = encoded.is_err() || gathered.is_err();
        // This rank's own error says more than what follows from it.
        encoded?;
        gathered?;
        let received = self.receive(plan, through, &from, ranks);
        // Damage may have come to this rank alone: the others go on.
        if matches!(&received, Err(Error::Exchange(error)) if error.is_known_to_all()) {
            self.told = true;
            return received.map(drop);
        }
        if !factor.at_hand().is_empty() {
            self.sum(factor)?;
        }
        let received = received?;
        factor.decode(plan, side, &received, self.weight)?;
        if self.round == self.sides.len() {
            factor.keep(plan, side, &received[rank as usize..rank as usize + 1])?;
        }
        Ok(())
    }

    /// Ends the step; bytes that were handed over.
    ///
    /// A step that failed on this rank alone fails on the others with the next factor.
    pub(crate) fn end(self, done: Result<(), Error>) -> Result<u64, Failure> {
        let Err(error) = done else { return Ok(self.bytes) };
        let was_last = self.round == self.sides.len();
        if self.through.is_some() && !self.told && !was_last {
            refuse(self.step, self.group);
        }
        Err(Failure { error, alone: was_last && !self.told })
    }

    /// The mean in f32 of the entries that were read, by an all-reduce.
    fn sum(&mut self, factor: &mut impl Factor) -> Result<(), Error> {
        let values = factor.at_hand();
        self.bytes += 4 * values.len() as u64;
        let weight = mean::all_reduce(self.group, values).inspect_err(|_| self.told = true)?;
        expect_finite(values, self.step.policy).inspect_err(|_| self.told = true)?;
        values.iter_mut().for_each(|value| *value *= weight);
        factor.write()
    }

    /// The payloads of this rank's factor.
    fn encode(&self, side: Side, through: &Factors, factor: &mut impl Factor) -> Result<Vec<Vec<u8>>, Error> {
        // Each factor of a step has draws of its own, and none those of a payload that is gathered.
        let (rank, ranks) = (self.group.rank(), self.group.ranks());
        let seed = self.step.seed.worker(ranks.wrapping_mul(self.round as u32).wrapping_add(rank));
        let payloads = factor.encode(through.of(side), side, seed)?;
        let packed = |payload| Ok(self.device.packed(payload, through.entropy)?.into_bytes());
        payloads.into_iter().map(packed).collect()
    }

    /// What all ranks have sent, checked.
    fn receive<'m>(
        &self,
        plan: &ModelPlan,
        through: &Factors,
        from: &'m [Vec<u8>],
        ranks: u32,
    ) -> Result<Vec<Vec<PayloadView<'m>>>, Error> {
        if from.len() != ranks as usize {
            return Err(ExchangeError::Gathered { found: from.len(), expected: ranks }.into());
        }
        let messages = (0..).zip(from).map(|(rank, message)| self.step.read(message, rank, through.tensors.len()));
        let messages = frame::all(messages)?;
        let mut all = Vec::with_capacity(from.len());
        for (rank, message) in (0..).zip(messages) {
            let mut views = Vec::with_capacity(plan.tensors().len());
            for ((plan, bytes), &tensor) in plan.tensors().iter().zip(message).zip(&through.tensors) {
                let view =
                    PayloadView::from_bytes(bytes).map_err(|source| ExchangeError::Damaged { rank, tensor, source })?;
                if let Some(what) = plan.header().difference(view.header()) {
                    return Err(ExchangeError::Payload { rank, tensor, what }.into());
                }
                if !view.is_finite() {
                    return Err(not_finite(rank, self.step.policy).into());
                }
                views.push(view);
            }
            all.push(views);
        }
        Ok(all)
    }
}

/// Sends a refusal instead of a factor: the step fails on every rank.
pub(crate) fn refuse(step: Stamp, group: &mut dyn Collective) {
    let rank = group.rank();
    let refusal = step.refusal(rank, &ExchangeError::Refused { rank }.into());
    // The error after which this comes says more than one of the group.
    let _ = group.all_gather(&refusal, &mut Vec::new());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::CollectiveError;
    use crate::plan::NonFinite;

    /// A factor in memory that cannot be read.
    struct Lost;

    impl Factor for Lost {
        fn read(&mut self, _: usize) -> Result<(), Error> {
            Error::expect_len("factor", "entries", 0, 1)
        }

        fn at_hand(&mut self) -> &mut [f32] {
            &mut []
        }

        fn write(&mut self) -> Result<(), Error> {
            Ok(())
        }

        fn encode(&mut self, _: &ModelPlan, _: Side, _: Seed) -> Result<Vec<Payload>, Error> {
            Ok(Vec::new())
        }

        fn decode(&mut self, _: &ModelPlan, _: Side, _: &[Vec<PayloadView<'_>>], _: f32) -> Result<(), Error> {
            Ok(())
        }

        fn keep(&mut self, _: &ModelPlan, _: Side, _: &[Vec<PayloadView<'_>>]) -> Result<(), Error> {
            Ok(())
        }
    }

    /// Counts messages.
    #[derive(Default)]
    struct Counting(u32);

    impl Collective for Counting {
        fn rank(&self) -> u32 {
            0
        }

        fn ranks(&self) -> u32 {
            2
        }

        fn all_gather(&mut self, _: &[u8], _: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
            self.0 += 1;
            Ok(())
        }

        fn all_to_all(&mut self, _: &[&[u8]], _: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
            self.0 += 1;
            Ok(())
        }

        fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
            self.0 += 1;
            Ok(())
        }

        fn exchange(&mut self, _: u32, _: &[u8], _: &mut Vec<u8>) -> Result<(), CollectiveError> {
            self.0 += 1;
            Ok(())
        }

        fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> {
            self.0 += 1;
            Ok(())
        }
    }

    #[test]
    fn a_rank_without_its_factor_sends_nothing_while_the_others_wait_in_a_sum() {
        let (device, mut group) = (Device::cpu(), Counting::default());
        let step = Stamp { step: 1, model: 2, seed: Seed::new(3), policy: NonFinite::Propagate };
        let mut means = Means::new(&device, &mut group, 1.0, step, None, vec![Side::Right]);
        let done = means.mean(&mut Lost);
        let failure = means.end(done).expect_err("it cannot be read");
        assert!(matches!(failure, Failure { error: Error::Length { .. }, alone: false }), "{failure:?}");
        assert_eq!(group.0, 0);
    }
}
