//! A step between ranks.

use std::ops::Range;

use super::Compressor;
use super::algorithm::{self, tell};
use super::error::ExchangeError;
use super::frame;
use super::ground::{Ground, Host, Own};
use super::part::{Method, Part, Received};
use super::planes::Planes;
use super::undo::LastStep;
use crate::collective::Collective;
use crate::device::Device;
use crate::error::Error;
use crate::low_rank::LowRankState;
use crate::model::TensorSpan;
use crate::plan::NonFinite;
use crate::recipe::{Algorithm, Recipe};
use crate::seed::Seed;

/// Memory that is kept from step to step.
#[derive(Clone, Debug, Default)]
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
    /// It cannot where nothing is gathered: with sums of factors or without compression, from the second step on,
    /// unless a recipe has `finite`. With factors that go through a quantizer it can, up to the last of them, unless
    /// another recipe's sum or exchange comes before the next. Where it cannot, and behind any other failure, other
    /// ranks may wait for this one: drop the group, which ends their calls.
    /// A compressor that says [`ExchangeError::BrokenOff`] has not begun, and others wait then too.
    ///
    /// # Errors
    /// [`Error::Length`] for a gradient of another length; [`Error::NotFinite`]; [`Error::NotFiniteFactor`] where a sum
    /// of factors is not finite ([`Compressor::clear_residual`] drops what has grown too large); [`Error::Limit`] for a
    /// device whose limits are too small;
    /// [`Error::Exchange`] where what another rank sent does not fit or is damaged; [`Error::Collective`] where the
    /// group fails;
    /// [`Error::Backend`] where the device does. Gradient, residual and state are then as they were.
    /// [`ExchangeError::BrokenOff`] behind a step that was broken off.
    pub fn exchange(
        &mut self,
        device: &Device,
        group: &mut (impl Collective + ?Sized),
        gradient: &mut [f32],
    ) -> Result<(), Error> {
        let _environment = crate::FloatEnvironment::standard();
        self.expect_whole()?;
        let step = self.steps;
        self.parts.iter_mut().try_for_each(|part| part.warm_up(step).map(drop))?;
        // With one part nothing is written before the last call that can fail, but the mean of estimates and votes, and
        // what a clip, a transform or Nesterov's momentum makes of the gradient.
        let careful = self.writes_twice();
        let states = if careful { states(&self.parts) } else { Vec::new() };
        let before = if careful { gradient.to_vec() } else { Vec::new() };
        let elements = self.layout.elements();
        let last = LastStep::begin(&self.parts, self.work.bytes);
        self.last = LastStep::default();
        self.broken_off = true;
        let (shared, planes) = self.split();
        let stamp = shared.stamp();
        let mut ground = Host { device, gradient, elements, planes: planes.begin(), stamp };
        let done = shared.attempt(&mut ground, group);
        match &done {
            Ok(()) => {
                planes.commit();
                self.parts.iter_mut().for_each(|part| part.owner.commit());
                self.last = last;
            }
            Err(_) if careful => {
                gradient.copy_from_slice(&before);
                put_back(&mut self.parts, states);
            }
            Err(_) => {}
        }
        self.broken_off = false;
        done
    }

    /// Whether a step writes the gradient more than once.
    pub(super) fn writes_twice(&self) -> bool {
        // A vote is taken tensor by tensor. What is clipped, coefficients, and Nesterov's momentum take the gradient's
        // place.
        let begins =
            |part: &Part| part.recipe.clip.is_some() || part.recipe.dct.is_some() || part.recipe.memory().nesterov;
        let twice = |part: &Part| part.recipe.memory().shift.is_some() || part.recipe.vote || begins(part);
        self.parts.len() > 1 || self.parts.iter().any(twice)
    }

    /// What a step needs wherever gradient and state lie, and the state in the host's memory.
    pub(super) fn split(&mut self) -> (Shared<'_>, &mut Planes) {
        let Self { recipes, parts, whole, planes, run, steps, model, agreed, all_reduce_only, work, .. } = self;
        let (run, model, all_reduce_only) = (*run, *model, *all_reduce_only);
        (Shared { recipes, parts, whole, run, steps, model, agreed, all_reduce_only, work }, planes)
    }
}

/// A compressor without its state.
pub(super) struct Shared<'c> {
    recipes: &'c [Recipe],
    parts: &'c mut [Part],
    whole: &'c [(TensorSpan, bool)],
    run: u64,
    steps: &'c mut u64,
    model: u32,
    agreed: &'c mut bool,
    all_reduce_only: bool,
    work: &'c mut Workspace,
}

impl Shared<'_> {
    /// The number of the step, and the model's checksum.
    pub(super) fn stamp(&self) -> (u64, u32) {
        (*self.steps, self.model)
    }

    /// A step between ranks, wherever gradient and state lie. Where this fails, steps and workspace are as they were,
    /// and the ground has to be put in order.
    pub(super) fn attempt(self, ground: &mut impl Ground, group: &mut (impl Collective + ?Sized)) -> Result<(), Error> {
        let Self { recipes, parts, whole, run, steps, model, agreed, all_reduce_only, work } = self;
        let (rank, ranks, step) = (group.rank(), group.ranks(), *steps);
        let weight = 1.0 / ranks as f32;
        parts.iter_mut().for_each(|part| {
            part.via = part.algorithm(ranks);
            part.limit = part.recipe.clip.map(|norm| f64::from(norm) / f64::from(ranks).sqrt());
            part.owner.forget();
        });
        let ready = ground.begin(parts);
        let guarded = recipes.iter().any(|recipe| recipe.non_finite == NonFinite::Error);
        let agrees = *agreed || all_reduce_only;
        // Behind another algorithm too: who cannot begin says so before anyone waits for its part.
        let needs_it = |part: &Part| part.payloads() > 0 || part.via != Algorithm::Gather || part.gathers_factors();
        let gathers = guarded || !agrees || parts.iter().any(needs_it);
        let mut bytes = 0;
        let mut message = frame::Writer::new(&mut work.message, step, model);
        let seed = Seed::new(run).step(step).worker(rank);
        let encode = |(index, part): (usize, &mut Part)| {
            ground.refuse_of_factors(index, part)?;
            if part.via == Algorithm::Gather {
                part.owner.expect_none(rank, ranks)?;
            }
            ground.encode(index, part, seed, &mut message)
        };
        let parts_of = if gathers { &mut *parts } else { &mut [] };
        let encoded = ready.and_then(|()| parts_of.iter_mut().enumerate().try_for_each(encode));
        work.whole.clear();
        let read = |(span, guarded): &(TensorSpan, bool)| {
            let from = work.whole.len();
            ground.read(range(span), &mut work.whole)?;
            if *guarded { refuse(&work.whole[from..], span.offset) } else { Ok(()) }
        };
        let encoded = encoded.and_then(|()| whole.iter().try_for_each(read));
        if gathers {
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
            encoded?;
        }
        let received = match gathers {
            true if work.gathered.len() != ranks as usize => {
                Err(ExchangeError::Gathered { found: work.gathered.len(), expected: ranks }.into())
            }
            true => receive(parts, &work.gathered, step, model),
            false => Ok(Vec::new()),
        };
        // A rank that refused is known to all, and none goes on; and so are ranks of different models, whose next
        // messages are others. What is damaged may have come to this rank alone: the others go on to the sum.
        if let Err(error @ Error::Exchange(ExchangeError::Refused { .. } | ExchangeError::Model { .. })) = received {
            return Err(error);
        }
        if !work.whole.is_empty() {
            bytes += 4 * work.whole.len() as u64;
            group.all_reduce_sum(&mut work.whole)?;
        }
        let seed = Seed::new(run).step(step);
        let stamp = algorithm::Step { step, model, seed };
        let received = match received {
            Ok(received) => received,
            Err(error) => {
                tell(parts, stamp, group);
                return Err(error);
            }
        };
        for index in 0..parts.len() {
            match ground.summed(index, &mut parts[index], seed, group, weight) {
                Ok(handed) => bytes += handed,
                Err(failure) => {
                    if failure.alone {
                        tell(&parts[index + 1..], stamp, group);
                    }
                    return Err(failure.error);
                }
            }
        }
        // What can be undone comes first.
        for (index, (part, received)) in parts.iter().zip(&received).enumerate() {
            if part.recipe.memory().momentum.is_some() {
                ground.mask(index, &part.sent(received, rank as usize))?;
            }
        }
        for (index, (part, received)) in parts.iter().zip(&received).enumerate() {
            ground.decode(index, part, received, Own { rank: rank as usize, weight, step: seed })?;
        }
        work.whole.iter_mut().for_each(|sum| *sum *= weight);
        let mut means = &work.whole[..];
        for (span, _) in whole {
            let (mine, rest) = means.split_at(span.elements as usize);
            ground.write(span.offset as usize, mine)?;
            means = rest;
        }
        ground.end(parts)?;
        *steps = steps.wrapping_add(1);
        (work.bytes, *agreed) = (bytes, true);
        Ok(())
    }
}

/// Copies of the states of factors, in the order of the parts.
fn states(parts: &[Part]) -> Vec<LowRankState> {
    let state = |part: &Part| match &part.method {
        Method::LowRank { state, .. } => Some(state.clone()),
        _ => None,
    };
    parts.iter().filter_map(state).collect()
}

/// Puts states of factors back, in the order of the parts.
pub(super) fn put_back(parts: &mut [Part], states: Vec<LowRankState>) {
    let mut states = states.into_iter();
    for part in parts {
        if let Method::LowRank { state, .. } = &mut part.method
            && let Some(before) = states.next()
        {
            *state = before;
        }
    }
}

fn range(span: &TensorSpan) -> Range<usize> {
    span.offset as usize..span.end() as usize
}

/// Refuses elements that are not finite, of a tensor that begins at `first`.
fn refuse(tensor: &[f32], first: u64) -> Result<(), Error> {
    match (first..).zip(tensor).find(|(_, value)| !value.is_finite()) {
        Some((index, _)) => Err(Error::NotFinite { index }),
        None => Ok(()),
    }
}

/// What all ranks have sent, checked, by parts.
fn receive<'m>(parts: &[Part], gathered: &'m [Vec<u8>], step: u64, model: u32) -> Result<Vec<Received<'m>>, Error> {
    let expected = parts.iter().map(Part::payloads).sum::<usize>() as u64;
    let read = |(rank, message): (u32, &'m Vec<u8>)| {
        let payloads = frame::read(message, rank, step, model)?;
        let found = payloads.len() as u64;
        if found == expected { Ok(payloads) } else { Err(ExchangeError::Payloads { rank, found, expected }.into()) }
    };
    let ranks = frame::all((0..).zip(gathered).map(read))?;
    let mut from = 0;
    let of_part = |part: &Part| {
        let range = from..from + part.payloads();
        from = range.end;
        let ranks: Vec<&[&'m [u8]]> = ranks.iter().map(|payloads| &payloads[range.clone()]).collect();
        part.receive(&ranks)
    };
    parts.iter().map(of_part).collect()
}
