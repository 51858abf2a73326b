//! A step between ranks.

use super::Compressor;
use super::error::ExchangeError;
use super::frame;
use super::part::{Method, Part, Received, refuse};
use crate::collective::Collective;
use crate::device::Device;
use crate::error::Error;
use crate::low_rank::LowRankState;
use crate::model::TensorSpan;
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
    /// Every rank calls this once per step. A rank that cannot encode its gradient, as for a NaN under
    /// [`NonFinite::Error`], says so to the others: the step then fails on every rank, and the group can be used again.
    /// It cannot where nothing is gathered: with factors or without compression, from the second step on, unless a
    /// recipe has `finite`. There, and behind any other failure, other ranks may wait for this one: drop the group,
    /// which ends their calls.
    ///
    /// # Errors
    /// [`Error::Length`] for a gradient of another length; [`Error::NotFinite`]; [`Error::NotFiniteFactor`] where a sum
    /// of factors is not finite ([`Compressor::clear_residual`] drops what has grown too large); [`Error::Limit`] for a
    /// device whose limits are too small;
    /// [`Error::Exchange`] where what another rank sent does not fit or is damaged; [`Error::Collective`] where the
    /// group fails;
    /// [`Error::Backend`] where the device does. Gradient, residual and state are then as they were.
    pub fn exchange(
        &mut self,
        device: &Device,
        group: &mut (impl Collective + ?Sized),
        gradient: &mut [f32],
    ) -> Result<(), Error> {
        let mut work = std::mem::take(&mut self.work);
        // With one part nothing is written before the last call that can fail.
        let careful = self.parts.len() > 1;
        let states = if careful { self.states() } else { Vec::new() };
        let before = if careful { gradient.to_vec() } else { Vec::new() };
        let done = self.attempt(device, group, gradient, &mut work);
        self.work = work;
        match done {
            Ok(bytes) => {
                self.planes.commit();
                self.steps = self.steps.wrapping_add(1);
                (self.work.bytes, self.agreed) = (bytes, true);
                Ok(())
            }
            Err(error) => {
                self.planes.undo();
                if careful {
                    gradient.copy_from_slice(&before);
                    self.put_back(states);
                }
                Err(error)
            }
        }
    }

    /// Bytes that were handed over.
    fn attempt(
        &mut self,
        device: &Device,
        group: &mut (impl Collective + ?Sized),
        gradient: &mut [f32],
        work: &mut Workspace,
    ) -> Result<u64, Error> {
        let expected = self.layout.elements();
        let Self { parts, planes, whole, recipes, .. } = self;
        let (rank, ranks) = (group.rank(), group.ranks());
        let weight = 1.0 / ranks as f32;
        let fits = Error::expect_len("gradient", "elements", gradient.len(), expected);
        let ready = fits.and_then(|()| parts.iter_mut().try_for_each(|part| part.fit(device)));
        if ready.is_ok() {
            for part in parts.iter() {
                if let Some(factor) = part.recipe.memory().momentum {
                    part.ranges().for_each(|range| planes.gather(range, factor, gradient));
                }
            }
        }
        let (mut residual, momentum) = planes.parts();
        let guarded = recipes.iter().any(|recipe| recipe.non_finite == NonFinite::Error);
        let agrees = self.agreed || self.all_reduce_only;
        let gathers = guarded || !agrees || parts.iter().any(|part| part.payloads() > 0);
        let mut bytes = 0;
        if gathers {
            let seed = Seed::new(self.run).step(self.steps).worker(rank);
            let mut message = frame::Writer::new(&mut work.message, self.steps, self.model);
            let encode = |part: &mut Part| {
                let input = if part.recipe.memory().momentum.is_some() { &*momentum } else { &*gradient };
                part.refuse_of_factors(input)?;
                part.encode(device, input, &mut residual, seed, &mut message)
            };
            let refuse_whole = |(span, guarded): &(TensorSpan, bool)| match guarded {
                true => refuse(gradient, span.offset as usize..span.end() as usize),
                false => Ok(()),
            };
            let encoded = ready.and_then(|()| parts.iter_mut().try_for_each(encode));
            let encoded = encoded.and_then(|()| whole.iter().try_for_each(refuse_whole));
            match &encoded {
                Ok(()) => message.finish(),
                Err(_) => message.refuse(),
            }
            bytes += work.message.len() as u64;
            let gathered = group.all_gather(&work.message, &mut work.gathered);
            // This rank's own error says more than what follows from it.
            encoded?;
            gathered?;
        } else {
            ready?;
        }
        let received = match gathers {
            true if work.gathered.len() != ranks as usize => {
                Err(ExchangeError::Gathered { found: work.gathered.len(), expected: ranks }.into())
            }
            true => receive(parts, &work.gathered, self.steps, self.model),
            false => Ok(Vec::new()),
        };
        // A rank that refused is known to all, and none goes on. What is damaged may have come to this rank alone: the
        // others go on to the sum.
        if let Err(error @ Error::Exchange(ExchangeError::Refused { .. })) = received {
            return Err(error);
        }
        work.whole.clear();
        for (span, _) in whole.iter() {
            work.whole.extend_from_slice(&gradient[span.offset as usize..span.end() as usize]);
        }
        if !work.whole.is_empty() {
            bytes += 4 * work.whole.len() as u64;
            group.all_reduce_sum(&mut work.whole)?;
        }
        let received = received?;
        for part in parts.iter_mut() {
            let input = part.recipe.memory().momentum.map(|_| &*momentum);
            bytes += low_rank(part, device, group, input, gradient, weight)?;
        }
        for (part, received) in parts.iter().zip(&received) {
            part.decode(device, received, weight, gradient)?;
        }
        let mut sums = work.whole.iter();
        for (span, _) in whole.iter() {
            let mine = &mut gradient[span.offset as usize..span.end() as usize];
            mine.iter_mut().zip(&mut sums).for_each(|(mean, sum)| *mean = weight * sum);
        }
        for (part, received) in parts.iter().zip(&received).filter(|(part, _)| part.recipe.memory().momentum.is_some())
        {
            part.mask(received, rank as usize, momentum);
        }
        Ok(bytes)
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
fn receive<'m>(parts: &[Part], gathered: &'m [Vec<u8>], step: u64, model: u32) -> Result<Vec<Received<'m>>, Error> {
    let expected = parts.iter().map(Part::payloads).sum::<usize>() as u64;
    let mut ranks = Vec::with_capacity(gathered.len());
    for (rank, message) in (0..).zip(gathered) {
        let payloads = frame::read(message, rank, step, model)?;
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
