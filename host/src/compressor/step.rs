//! A step between ranks.

use super::Compressor;
use super::error::ExchangeError;
use super::frame;
use super::part::{Method, Part, Received, refuse};
use crate::collective::Collective;
use crate::device::Device;
use crate::error::Error;
use crate::low_rank::LowRankState;
use crate::plan::NonFinite;
use crate::seed::Seed;

/// Memory that is kept from step to step.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    message: Vec<u8>,
    gathered: Vec<Vec<u8>>,
    /// What goes uncompressed, one tensor behind the other.
    whole: Vec<f32>,
    /// Bytes that were handed over in the last step.
    pub(super) bytes: u64,
}

impl Compressor {
    /// A step: the gradient of this rank becomes the mean over all ranks, each sent compressed.
    ///
    /// Every rank calls this once per step. A rank that cannot encode its gradient, as for a NaN under [`NonFinite::Error`], says so
    /// to the others: the step then fails on every rank, and the group can be used again.
    ///
    /// # Errors
    /// [`Error::Length`] for a gradient of another length; [`Error::NotFinite`]; [`Error::Exchange`] where what another rank sent does not fit;
    /// [`Error::Payload`] where it is damaged; [`Error::Collective`] where the group fails; [`Error::Backend`] where the device does.
    /// Gradient, residual and state are then as they were.
    pub fn exchange(
        &mut self,
        device: &Device,
        group: &mut (impl Collective + ?Sized),
        gradient: &mut [f32],
    ) -> Result<(), Error> {
        Error::expect_len("gradient", "elements", gradient.len(), self.layout.elements())?;
        for part in &mut self.parts {
            part.fit(device)?;
        }
        let mut work = std::mem::take(&mut self.work);
        // With one part nothing is written before the last call that can fail.
        let states = if self.parts.len() > 1 { self.states() } else { Vec::new() };
        let before = if self.parts.len() > 1 { gradient.to_vec() } else { Vec::new() };
        let done = self.attempt(device, group, gradient, &mut work);
        self.work = work;
        match done {
            Ok(()) => {
                self.planes.commit();
                self.steps = self.steps.wrapping_add(1);
            }
            Err(_) => {
                self.planes.undo();
                if self.parts.len() > 1 {
                    gradient.copy_from_slice(&before);
                    self.put_back(states);
                }
            }
        }
        done
    }

    fn attempt(
        &mut self,
        device: &Device,
        group: &mut (impl Collective + ?Sized),
        gradient: &mut [f32],
        work: &mut Workspace,
    ) -> Result<(), Error> {
        let Self { parts, planes, whole, recipes, .. } = self;
        let (rank, ranks) = (group.rank(), group.ranks());
        let weight = 1.0 / ranks as f32;
        for part in parts.iter() {
            if let Some(factor) = part.recipe.memory().momentum {
                part.ranges().for_each(|range| planes.gather(range, factor, gradient));
            }
        }
        let (mut residual, momentum) = planes.parts();
        let guarded = recipes.iter().any(|recipe| recipe.non_finite == NonFinite::Error);
        work.bytes = 0;
        let mut received: Vec<Received<'_>> = Vec::new();
        if guarded || parts.iter().any(|part| part.payloads() > 0) {
            let seed = Seed::new(self.run).step(self.steps).worker(rank);
            let mut message = frame::Writer::new(&mut work.message, self.steps);
            let encode = |part: &Part| {
                let input = if part.recipe.memory().momentum.is_some() { &*momentum } else { &*gradient };
                part.refuse_of_factors(input)?;
                part.encode(device, input, &mut residual, seed, &mut message)
            };
            let mut encoded = parts.iter().try_for_each(encode);
            if guarded && encoded.is_ok() {
                encoded = whole.iter().try_for_each(|span| refuse(gradient, span.offset as usize..span.end() as usize));
            }
            match &encoded {
                Ok(()) => message.finish(),
                Err(_) => message.refuse(),
            }
            work.bytes += work.message.len() as u64;
            let gathered = group.all_gather(&work.message, &mut work.gathered);
            // This rank's own error says more than what follows from it.
            encoded?;
            gathered?;
            if work.gathered.len() != ranks as usize {
                return Err(ExchangeError::Gathered { found: work.gathered.len(), expected: ranks }.into());
            }
            received = receive(parts, &work.gathered, self.steps)?;
        }
        work.whole.clear();
        for span in whole.iter() {
            work.whole.extend_from_slice(&gradient[span.offset as usize..span.end() as usize]);
        }
        if !work.whole.is_empty() {
            work.bytes += 4 * work.whole.len() as u64;
            group.all_reduce_sum(&mut work.whole)?;
        }
        for part in parts.iter_mut() {
            let input = part.recipe.memory().momentum.map(|_| &*momentum);
            work.bytes += low_rank(part, device, group, input, gradient, weight)?;
        }
        for (part, received) in parts.iter().zip(&received) {
            part.decode(device, received, weight, gradient)?;
        }
        let mut sums = work.whole.iter();
        for span in whole.iter() {
            let mine = &mut gradient[span.offset as usize..span.end() as usize];
            mine.iter_mut().zip(&mut sums).for_each(|(mean, sum)| *mean = weight * sum);
        }
        for (part, received) in parts.iter().zip(&received).filter(|(part, _)| part.recipe.memory().momentum.is_some())
        {
            part.mask(received, rank as usize, momentum);
        }
        Ok(())
    }

    /// Copies of the states of factors, in the order of the parts.
    fn states(&self) -> Vec<LowRankState> {
        let state = |part: &Part| match &part.method {
            Method::LowRank { state, .. } => Some(state.clone()),
            _ => None,
        };
        self.parts.iter().filter_map(state).collect()
    }

    pub(super) fn put_back(&mut self, states: Vec<LowRankState>) {
        let mut states = states.into_iter();
        for part in &mut self.parts {
            if let Method::LowRank { state, .. } = &mut part.method
                && let Some(before) = states.next()
            {
                *state = before;
            }
        }
    }
}

/// What all ranks have sent, checked, by parts.
fn receive<'m>(parts: &[Part], gathered: &'m [Vec<u8>], step: u64) -> Result<Vec<Received<'m>>, Error> {
    let expected = parts.iter().map(Part::payloads).sum::<usize>() as u64;
    let mut ranks = Vec::with_capacity(gathered.len());
    for (rank, message) in (0..).zip(gathered) {
        let payloads = frame::read(message, rank, step)?;
        let found = payloads.len() as u64;
        if found != expected {
            return Err(ExchangeError::Payloads { rank, found, expected }.into());
        }
        ranks.push(payloads);
    }
    let mut from = 0;
    let of_part = |part: &Part| {
        let range = from..from + part.payloads();
        from = range.end;
        let ranks: Vec<&[&'m [u8]]> = ranks.iter().map(|payloads| &payloads[range.clone()]).collect();
        part.receive(&ranks)
    };
    parts.iter().map(of_part).collect()
}

/// A step of factors, with its all-reduces; bytes that were handed over.
fn low_rank(
    part: &mut Part,
    device: &Device,
    group: &mut (impl Collective + ?Sized),
    input: Option<&[f32]>,
    gradient: &mut [f32],
    weight: f32,
) -> Result<u64, Error> {
    let packed = match &part.method {
        Method::LowRank { packed: true, .. } => Some(part.pack(input.unwrap_or(gradient))),
        Method::LowRank { .. } => None,
        _ => return Ok(0),
    };
    let Method::LowRank { state, .. } = &mut part.method else { return Ok(0) };
    let bytes = state.step_bytes() as u64;
    let mean = |factor: &mut [f32]| -> Result<(), Error> {
        group.all_reduce_sum(factor)?;
        factor.iter_mut().for_each(|entry| *entry *= weight);
        Ok(())
    };
    match (packed, input) {
        (Some(mut packed), _) => {
            device.low_rank_step_in_place(state, &mut packed, mean)?;
            part.unpack(&packed, gradient);
        }
        (None, Some(input)) => device.low_rank_step(state, input, gradient, mean)?,
        (None, None) => device.low_rank_step_in_place(state, gradient, mean)?,
    }
    Ok(bytes)
}
