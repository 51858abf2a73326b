//! A step between ranks.

use super::algorithm::{self, tell};
use super::bound;
use super::core::Compressor;
use super::ground::{Ground, Host, Own};
use super::last::LastStep;
use super::mean;
use super::part::{Method, Part, Received};
use super::planes::Planes;
use super::whole::Whole;
use super::witness::Witness;
use super::workspace::Workspace;
use super::{failure, frame};
use crate::collective::Collective;
use crate::device::Device;
use crate::error::{Error, ExchangeError};
use crate::low_rank::LowRankState;
use crate::model::TensorSpan;
use crate::plan::NonFinite;
use crate::recipe::{Algorithm, Recipe};
use crate::seed::Seed;
use crate::sparse::SparsePayload;
use crate::words;

impl Compressor {
    /// A step: the gradient of this rank becomes the mean over all ranks, each sent compressed.
    ///
    /// Every rank calls this once per step. Where the gradient of any rank holds NaN or infinity, all of the mean is NaN
    /// on every rank, the state stays as it was, and the step counts; [`Compressor::undo`] takes it back. If no recipe
    /// compresses anything, the sum is as it is.
    ///
    /// A rank that cannot encode its gradient, as for a NaN under [`NonFinite::Error`], says so to the others: the step
    /// then fails on every rank, and the group can be used again. It cannot where nothing is gathered: with sums of
    /// factors or without compression, from the second step on, unless a recipe has `finite`. With factors that go
    /// through a quantizer it can, up to the last of them, unless another recipe's sum or exchange comes before the
    /// next. If it cannot, and after any other failure, other ranks may wait for this one: drop the group, which
    /// ends their calls.
    /// A compressor that says [`ExchangeError::BrokenOff`] has not begun, and others wait then too.
    ///
    /// # Errors
    /// [`Error::Length`] for a gradient of another length. Under [`NonFinite::Error`], [`Error::NotFinite`];
    /// [`ExchangeError::NotFinite`] for what another rank sent; [`ExchangeError::NotFiniteSum`] for what the ranks sum;
    /// and [`Error::NotFiniteFactor`] if a sum of factors is too large ([`Compressor::clear_residual`] drops what has
    /// grown too large). [`Error::Limit`] for a device whose limits are too small; [`Error::Exchange`] if what another
    /// rank sent does not fit or is damaged; [`Error::Collective`] if the group fails; [`Error::Backend`] if the
    /// device does. Gradient, residual and state are then as they were.
    /// [`ExchangeError::BrokenOff`] after a step that was broken off.
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
        let states = if careful { states(&self.parts)? } else { Vec::new() };
        let before = if careful { words::copied(gradient, "a copy of the gradient")? } else { Vec::new() };
        let elements = self.layout.elements();
        let last = LastStep::begin(&self.parts, self.work.bytes, self.digest)?;
        self.last = LastStep::default();
        self.broken_off = true;
        let (shared, planes) = self.split();
        let stamp = shared.stamp();
        let mut ground = Host { device, gradient, elements, planes: planes.begin(), stamp };
        let done = shared.attempt(&mut ground, group);
        if let Ok(Made::Kept) = done {
            planes.commit();
            self.parts.iter_mut().for_each(|part| part.owner.commit());
        } else if careful {
            gradient.copy_from_slice(&before);
            put_back(&mut self.parts, states);
        }
        match done {
            Ok(Made::Kept) => self.last = last,
            Ok(Made::Skipped) => {
                gradient.fill(f32::NAN);
                self.last = last.skipped();
            }
            Err(_) => {}
        }
        self.broken_off = false;
        done.map(drop)
    }

    /// Whether a step writes the gradient more than once, or may fail after it has written it.
    pub(super) fn writes_twice(&self) -> bool {
        // A vote is taken tensor by tensor. What is clipped, coefficients, and Nesterov's momentum take the gradient's
        // place. A mean that is refused has been written.
        let begins =
            |part: &Part| part.recipe.clip.is_some() || part.recipe.dct.is_some() || part.recipe.memory().nesterov;
        let twice = |part: &Part| {
            part.recipe.memory().shift.is_some() || part.recipe.vote || begins(part) || part.expects_finite_mean()
        };
        self.parts.len() > 1 || self.parts.iter().any(twice) || self.whole.iter().any(|tensor| tensor.nesterov)
    }

    /// What a step needs wherever gradient and state lie, and the state in the host's memory.
    pub(super) fn split(&mut self) -> (Shared<'_>, &mut Planes) {
        let Self { recipes, parts, whole, planes, run, steps, model, agreed, digest, all_reduce_only, work, .. } = self;
        let (run, model, all_reduce_only) = (*run, *model, *all_reduce_only);
        (Shared { recipes, parts, whole, run, steps, model, agreed, digest, all_reduce_only, work }, planes)
    }
}

/// What became of a step that did not fail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Made {
    /// The gradient is the mean, and the ground holds the new state.
    Kept,
    /// The gradient of some rank is not finite, and its recipe has no `finite`: the state has to be put back, and the
    /// mean is NaN.
    Skipped,
}

/// A compressor without its state.
pub(super) struct Shared<'c> {
    recipes: &'c [Recipe],
    parts: &'c mut [Part],
    whole: &'c [Whole],
    run: u64,
    steps: &'c mut u64,
    model: u32,
    agreed: &'c mut bool,
    digest: &'c mut u32,
    all_reduce_only: bool,
    work: &'c mut Workspace,
}

impl Shared<'_> {
    /// The number of the step, and the model's checksum.
    pub(super) fn stamp(&self) -> (u64, u32) {
        (*self.steps, self.model)
    }

    /// A step between ranks, wherever gradient and state lie. Unless it is kept, the ground has to be put in order.
    /// If it fails, steps and workspace are as they were.
    pub(super) fn attempt(
        mut self,
        ground: &mut impl Ground,
        group: &mut (impl Collective + ?Sized),
    ) -> Result<Made, Error> {
        let (mut bytes, mut group) = (0, Witness::new(group));
        let made = match self.exchange(ground, &mut group, &mut bytes) {
            Ok(()) => {
                *self.agreed = true;
                Made::Kept
            }
            Err(Error::Exchange(ExchangeError::Skipped { .. })) => Made::Skipped,
            Err(error) => return Err(error),
        };
        *self.steps = self.steps.wrapping_add(1);
        *self.digest = group.digest();
        self.work.bytes = bytes;
        Ok(made)
    }

    /// All messages of a step, and what becomes of them.
    fn exchange(
        &mut self,
        ground: &mut impl Ground,
        group: &mut Witness<'_, impl Collective + ?Sized>,
        bytes: &mut u64,
    ) -> Result<(), Error> {
        let Self { recipes, parts, whole, run, steps, model, agreed, digest, all_reduce_only, work } = self;
        let guarded = recipes.iter().any(|recipe| recipe.non_finite == NonFinite::Error);
        let (parts, run, step, model) = (&mut **parts, *run, **steps, *model);
        let (rank, ranks) = (group.rank(), group.ranks());
        let weight = 1.0 / ranks as f32;
        parts.iter_mut().for_each(|part| {
            part.via = part.algorithm(ranks);
            part.limit = part.recipe.clip.map(|norm| f64::from(norm) / f64::from(ranks).sqrt());
            part.owner.forget();
        });
        let ready = ground.begin(parts, whole);
        let agrees = **agreed || *all_reduce_only;
        // Behind another algorithm too: who cannot begin says so before anyone waits for its part.
        let needs_it = |part: &Part| part.payloads() > 0 || part.via != Algorithm::Gather || part.gathers_factors();
        let bounded = bound::gathers(whole);
        let always = guarded || bounded || parts.iter().any(needs_it);
        let gathers = always || !agrees;
        group.begin(always);
        let mut message = frame::Writer::new(&mut work.message, step, model).digest(**digest);
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
        let elements: u64 = whole.iter().map(|tensor| tensor.span.elements).sum();
        let none = |_| words::no_memory::<f32>(elements, "tensors that go uncompressed");
        let reserved = work.whole.try_reserve(elements as usize).map_err(none);
        let read = |tensor: &Whole| {
            let from = work.whole.len();
            ground.read(tensor, &mut work.whole)?;
            if tensor.policy == NonFinite::Error { refuse(&work.whole[from..], tensor.span.offset) } else { Ok(()) }
        };
        let encoded =
            encoded.and(reserved).and_then(|()| whole.iter().try_for_each(read)).map_err(|error| match error {
                Error::NotFinite { index } if policy_at(parts, whole, index) == NonFinite::Propagate => {
                    ExchangeError::Skipped { rank }.into()
                }
                other => other,
            });
        let encoded = match encoded {
            Ok(()) if bounded => bound::payload(&work.whole).and_then(|whole| message.append(whole.as_bytes())),
            other => other,
        };
        if gathers {
            match &encoded {
                Ok(()) => message.finish(),
                Err(error) => message.fail(error, rank),
            }
            *bytes += work.message.len() as u64;
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
            true => receive(parts, &work.gathered, step, model, bounded.then_some(elements)),
            false => Ok((Vec::new(), Vec::new())),
        };
        // Every rank has the same bytes, and finds the same.
        let received = received.and_then(|(received, all)| {
            parts.iter().zip(&received).try_for_each(|(part, received)| bound::check_part(part, received))?;
            if bounded {
                bound::sum(&all, whole, mean::power(ranks).recip(), &mut work.whole)?;
            }
            Ok(received)
        });
        // What all ranks know ends the step on all of them. What is damaged may have come to this rank alone: the others
        // go on to the sum.
        if matches!(&received, Err(Error::Exchange(error)) if error.is_known_to_all()) {
            return received.map(drop);
        }
        let mut of_sums = weight;
        if !work.whole.is_empty() {
            of_sums = mean::weight(ranks);
            if !bounded {
                *bytes += 4 * work.whole.len() as u64;
                of_sums = mean::all_reduce(group, &mut work.whole)?;
            }
            let keeps = !parts.is_empty() || whole.iter().any(|tensor| tensor.momentum.is_some());
            if (guarded || bounded || keeps) && (bounded || !group.sums_are_finite()) {
                expect_finite(whole, &work.whole)?;
            }
        }
        let seed = Seed::new(run).step(step);
        let stamp = algorithm::Step { step, model, seed, policy: NonFinite::Propagate };
        let received = match received {
            Ok(received) => received,
            Err(error) => {
                tell(parts, stamp, group);
                return Err(error);
            }
        };
        for index in 0..parts.len() {
            match ground.summed(index, &mut parts[index], seed, group, weight) {
                Ok(handed) => *bytes += handed,
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
            if part.recipe.memory().masks() {
                ground.mask(index, &part.sent(received, rank as usize)?)?;
            }
        }
        for (index, (part, received)) in parts.iter().zip(&received).enumerate() {
            ground.decode(index, part, received, Own { rank: rank as usize, weight, step: seed })?;
        }
        if parts.iter().any(Part::expects_finite_mean) {
            ground.expect_finite_means().map_err(|error| match error {
                Error::NotFinite { index } => failure::not_finite_sum(index, policy_at(parts, whole, index)).into(),
                other => other,
            })?;
        }
        mean::scale(&mut work.whole, of_sums);
        let mut means = &work.whole[..];
        for Whole { span, .. } in *whole {
            let (mine, rest) = means.split_at(span.elements as usize);
            ground.write(span.offset as usize, mine)?;
            means = rest;
        }
        ground.end(parts)
    }
}

/// Copies of the states of factors, in the order of the parts.
fn states(parts: &[Part]) -> Result<Vec<LowRankState>, Error> {
    let state = |part: &Part| match &part.method {
        Method::LowRank { state, .. } => Some(state.copied()),
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

/// The policy of the tensor that has an element of the gradient.
fn policy_at(parts: &[Part], whole: &[Whole], index: u64) -> NonFinite {
    let has = |span: &TensorSpan| (span.offset..span.end()).contains(&index);
    let of_part = parts.iter().find(|part| part.spans.iter().any(has)).map(|part| part.recipe.non_finite);
    let of_whole = whole.iter().find(|tensor| has(&tensor.span)).map(|tensor| tensor.policy);
    // Factors of a whole model take tensors along that are not their own.
    let of_factors = parts.first().map(|part| part.recipe.non_finite);
    of_part.or(of_whole).or(of_factors).unwrap_or_default()
}

/// Refuses sums that are not finite, of tensors that go uncompressed.
fn expect_finite(whole: &[Whole], mut sums: &[f32]) -> Result<(), Error> {
    let mut skipped = Ok(());
    for tensor in whole {
        let (mine, rest) = sums.split_at(tensor.span.elements as usize);
        sums = rest;
        match failure::expect_finite(mine, tensor.policy) {
            // Another tensor may refuse.
            Err(error @ ExchangeError::Skipped { .. }) => skipped = Err(error.into()),
            checked => checked?,
        }
    }
    skipped
}

/// Refuses elements that are not finite, of a tensor that begins at `first`.
fn refuse(tensor: &[f32], first: u64) -> Result<(), Error> {
    match failure::first_not_finite(tensor) {
        Some(place) => Err(Error::NotFinite { index: first + place as u64 }),
        None => Ok(()),
    }
}

/// What all ranks have sent, checked, by parts, and each rank's uncompressed values where those are gathered: `whole` is
/// their number. They took the same of the step before.
fn receive<'m>(
    parts: &[Part],
    gathered: &'m [Vec<u8>],
    step: u64,
    model: u32,
    whole: Option<u64>,
) -> Result<(Vec<Received<'m>>, Vec<SparsePayload>), Error> {
    let expected = parts.iter().map(Part::payloads).sum::<usize>() as u64 + u64::from(whole.is_some());
    let read = |(rank, message): (u32, &'m Vec<u8>)| {
        let (digest, payloads) = frame::read_first(message, rank, step, model)?;
        let found = payloads.len() as u64;
        if found == expected {
            Ok((digest, payloads))
        } else {
            Err(ExchangeError::Payloads { rank, found, expected }.into())
        }
    };
    let ranks = frame::all((0..).zip(gathered).map(read))?;
    frame::expect_one_mean(ranks.iter().map(|(digest, _)| *digest), step)?;
    let mut from = 0;
    let of_part = |part: &Part| {
        let range = from..from + part.payloads();
        from = range.end;
        let ranks: Vec<&[&'m [u8]]> = ranks.iter().map(|(_, payloads)| &payloads[range.clone()]).collect();
        part.receive(&ranks)
    };
    let received = parts.iter().map(of_part).collect::<Result<_, _>>()?;
    let Some(elements) = whole else { return Ok((received, Vec::new())) };
    let of_rank = |(rank, (_, payloads)): (u32, &(u32, Vec<&'m [u8]>))| bound::read(rank, payloads[from], elements);
    Ok((received, (0..).zip(&ranks).map(of_rank).collect::<Result<_, _>>()?))
}
