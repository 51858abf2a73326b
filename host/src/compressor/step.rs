//! A step between ranks.

use super::bound;
use super::core::Compressor;
use super::host::Host;
use super::last::LastStep;
use super::mean;
use super::memory::{Mean, Memory};
use super::method::{Part, Received, refuse as refuse_factor, undecodable};
use super::planes::Planes;
use super::stamp::Stamp;
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
    /// Every rank calls this once per step. Where the gradient of any rank holds NaN or infinity, all of the mean is
    /// NaN on every rank, the state stays as it was, and the step counts; [`Compressor::undo`] takes it back. If no
    /// recipe compresses anything, the sum is as it is.
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
    /// [`ExchangeError::NotFinite`] for another rank's payload; [`ExchangeError::NotFiniteSum`] for a sum over the
    /// ranks; and [`Error::NotFiniteFactor`] if a sum of factors is too large ([`Compressor::clear_residual`] drops
    /// what has grown too large). [`Error::Limit`] for a device whose limits are too small; [`Error::Exchange`] if what
    /// another rank sent does not fit or is damaged; [`Error::Collective`] if the group fails; [`Error::Backend`] if
    /// the device does. Gradient, residual and state are then as they were.
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
        let mut memory = Host { device, gradient, elements, planes: planes.begin(), stamp };
        let done = shared.attempt(&mut memory, group);
        if let Ok(Made::Kept) = done {
            planes.commit();
            let dense = self.parts.iter_mut().filter_map(|part| part.method.dense_mut());
            dense.for_each(|dense| dense.owner.commit());
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
        // A vote is taken tensor by tensor. Clipped values, coefficients and Nesterov's momentum replace the
        // gradient. A mean that is refused has been written.
        let begins = |recipe: &Recipe| recipe.clip.is_some() || recipe.dct.is_some() || recipe.memory().nesterov;
        let recipe_does = |recipe: &Recipe| recipe.memory().shift.is_some() || recipe.vote || begins(recipe);
        let twice = |part: &Part| recipe_does(&part.group.recipe) || part.expects_finite_mean();
        self.parts.len() > 1 || self.parts.iter().any(twice) || self.whole.iter().any(|tensor| tensor.nesterov)
    }

    /// The compressor without its state, for a step in any memory, and the state in the host's memory.
    pub(super) fn split(&mut self) -> (Shared<'_>, &mut Planes) {
        let Self { recipes, parts, whole, planes, run, steps, model, agreed, digest, all_reduce_only, work, .. } = self;
        let (run, model, all_reduce_only) = (*run, *model, *all_reduce_only);
        (Shared { recipes, parts, whole, run, steps, model, agreed, digest, all_reduce_only, work }, planes)
    }
}

/// What became of a step that did not fail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Made {
    /// The gradient is the mean, and the memory holds the new state.
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

    /// A step between ranks, in any memory. Unless it is kept, the caller puts the memory in order. If it fails, steps
    /// and workspace are as they were.
    pub(super) fn attempt(
        mut self,
        memory: &mut impl Memory,
        mut group: &mut (impl Collective + ?Sized),
    ) -> Result<Made, Error> {
        let (mut bytes, mut ranks) = (0, Witness::new(&mut group));
        let made = match self.exchange(memory, &mut ranks, &mut bytes) {
            Ok(()) => {
                *self.agreed = true;
                Made::Kept
            }
            Err(Error::Exchange(ExchangeError::Skipped { .. })) => Made::Skipped,
            Err(error) => return Err(error),
        };
        *self.steps = self.steps.wrapping_add(1);
        *self.digest = ranks.digest();
        self.work.bytes = bytes;
        Ok(made)
    }

    /// Makes this rank's message, gathers those of all ranks, and applies them.
    fn exchange(&mut self, memory: &mut impl Memory, ranks: &mut Witness<'_>, bytes: &mut u64) -> Result<(), Error> {
        let round = self.begin(ranks);
        let made = self.make(memory, &round);
        if round.gathers {
            *bytes += self.work.message.len() as u64;
            let gathered = ranks.all_gather(&self.work.message, &mut self.work.gathered);
            // This rank's own error says more than what follows from it.
            made?;
            gathered?;
        } else {
            made?;
        }
        self.apply(memory, &round, ranks, bytes)
    }

    /// Picks the algorithm of each part for this number of ranks, and decides whether a message is gathered.
    fn begin(&mut self, group: &mut Witness<'_>) -> Round {
        let (rank, ranks) = (group.rank(), group.ranks());
        for Part { group, method } in &mut *self.parts {
            group.via = group.algorithm(ranks);
            group.limit = group.recipe.clip.map(|norm| f64::from(norm) / f64::from(ranks).sqrt());
            if let Some(dense) = method.dense_mut() {
                dense.owner.forget();
            }
        }
        let guarded = self.recipes.iter().any(|recipe| recipe.non_finite == NonFinite::Error);
        // Before another algorithm too: a rank that cannot begin tells the others before they wait for its part.
        let needs_it =
            |part: &Part| part.payloads() > 0 || part.group.via != Algorithm::Gather || part.gathers_factors();
        let bounded = bound::gathers(self.whole);
        let always = guarded || bounded || self.parts.iter().any(needs_it);
        group.begin(always);
        let agrees = *self.agreed || self.all_reduce_only;
        let elements = self.whole.iter().map(|tensor| tensor.span.elements).sum();
        let seed = Seed::new(self.run).step(*self.steps);
        Round { rank, ranks, seed, guarded, bounded, gathers: always || !agrees, elements }
    }

    /// The first half of a step: makes this rank's message, and reads the tensors that go uncompressed. If the rank
    /// refuses, the message says so.
    fn make(&mut self, memory: &mut impl Memory, round: &Round) -> Result<(), Error> {
        let Self { parts, whole, steps, model, digest, work, .. } = self;
        let Round { rank, ranks, bounded, gathers, elements, .. } = *round;
        let ready = memory.begin(parts, whole);
        let mut message = frame::Writer::new(&mut work.message, **steps, *model).digest(**digest);
        let seed = round.seed.worker(rank);
        let encode = |(index, part): (usize, &mut Part)| {
            memory.refuse(index, part)?;
            if part.group.via == Algorithm::Gather
                && let Some(dense) = part.method.dense()
            {
                dense.owner.expect_none(rank, ranks)?;
            }
            memory.encode(index, part, seed, &mut message)
        };
        let to_encode = if gathers { &mut **parts } else { &mut [] };
        let encoded = ready.and_then(|()| to_encode.iter_mut().enumerate().try_for_each(encode));
        work.whole.clear();
        let none = |_| words::no_memory::<f32>(elements, "tensors that go uncompressed");
        let reserved = work.whole.try_reserve(elements as usize).map_err(none);
        let read = |tensor: &Whole| {
            let from = work.whole.len();
            memory.read(tensor, &mut work.whole)?;
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
        match &encoded {
            _ if !gathers => {}
            Ok(()) => message.finish(),
            Err(error) => message.fail(error, rank),
        }
        encoded
    }

    /// The second half of a step: sums the uncompressed tensors over the ranks, exchanges the parts that have messages
    /// of their own, and applies the messages that were gathered.
    fn apply(
        &mut self,
        memory: &mut impl Memory,
        round: &Round,
        group: &mut Witness<'_>,
        bytes: &mut u64,
    ) -> Result<(), Error> {
        let Self { parts, whole, steps, model, work, .. } = self;
        let Round { rank, ranks, seed, guarded, bounded, gathers, elements } = *round;
        let (step, model, weight) = (**steps, *model, 1.0 / ranks as f32);
        let received = match gathers {
            true if work.gathered.len() != ranks as usize => {
                Err(ExchangeError::Gathered { found: work.gathered.len(), expected: ranks }.into())
            }
            true => receive(parts, &work.gathered, step, model, bounded.then_some(elements)),
            false => Ok((Vec::new(), Vec::new())),
        };
        // Every rank has the same bytes, and finds the same.
        let received = received.and_then(|(received, all)| {
            gathered(parts, &received).try_for_each(|(_, part, received)| bound::check_part(part, received))?;
            if bounded {
                bound::sum(&all, whole, mean::power(ranks).recip(), &mut work.whole)?;
            }
            Ok(received)
        });
        // An error that all ranks know ends the step on all of them. Damage may have come to this rank alone: the
        // others go on to the sum.
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
        let stamp = Stamp { step, model, seed, policy: NonFinite::Propagate };
        let received = match received {
            Ok(received) => received,
            Err(error) => {
                tell(parts, stamp, group);
                return Err(error);
            }
        };
        for index in 0..parts.len() {
            match memory.exchange(index, &mut parts[index], seed, group, weight) {
                Ok(sent) => *bytes += sent,
                Err(failure) => {
                    if failure.alone {
                        tell(&parts[index + 1..], stamp, group);
                    }
                    return Err(failure.error);
                }
            }
        }
        // What can be undone comes first.
        let masks = |of: &(usize, &Part, &Received<'_>)| of.1.group.recipe.memory().masks();
        for (index, part, received) in gathered(parts, &received).filter(masks) {
            let method = part.gathered().ok_or_else(undecodable)?;
            memory.mask(index, part, &method.masked(&part.group, received, rank as usize)?)?;
        }
        for (index, part, received) in gathered(parts, &received) {
            memory.decode(index, part, received, Mean { rank: rank as usize, weight, seed })?;
        }
        if parts.iter().any(Part::expects_finite_mean) {
            memory.expect_finite_means().map_err(|error| match error {
                Error::NotFinite { index } => failure::not_finite_sum(index, policy_at(parts, whole, index)).into(),
                other => other,
            })?;
        }
        mean::scale(&mut work.whole, of_sums);
        let mut means = &work.whole[..];
        for Whole { span, .. } in *whole {
            let (mine, rest) = means.split_at(span.elements as usize);
            memory.write(span.offset as usize, mine)?;
            means = rest;
        }
        memory.end(parts)
    }
}

/// The settings of a step that all its messages have in common.
#[derive(Clone, Copy, Debug)]
struct Round {
    rank: u32,
    ranks: u32,
    /// The seed of the step, of worker 0.
    seed: Seed,
    /// Whether a recipe refuses non-finite values.
    guarded: bool,
    /// Whether uncompressed tensors are gathered, since one of them has a bound.
    bounded: bool,
    /// Whether a message is gathered.
    gathers: bool,
    /// Elements of the tensors that go uncompressed.
    elements: u64,
}

/// The parts with gathered payloads: the number of each, and its payloads.
fn gathered<'p, 'm>(
    parts: &'p [Part],
    received: &'p [Option<Received<'m>>],
) -> impl Iterator<Item = (usize, &'p Part, &'p Received<'m>)> {
    let all = parts.iter().zip(received).enumerate();
    all.filter_map(|(index, (part, received))| Some((index, part, received.as_ref()?)))
}

/// Tells the others that the step fails, if the next message is a factor of one of these parts, through a quantizer.
/// A sum cannot carry a refusal; the first message of a tree or of two phases could, and is not used for it.
fn tell(parts: &[Part], stamp: Stamp, group: &mut Witness<'_>) {
    let has_messages = |part: &&Part| part.gathered().is_none();
    if parts.iter().find(has_messages).is_some_and(Part::gathers_factors) {
        refuse_factor(stamp, group);
    }
}

/// Copies of the states of factors, in the order of the parts.
fn states(parts: &[Part]) -> Result<Vec<LowRankState>, Error> {
    let state = |part: &Part| part.method.low_rank().map(|low_rank| low_rank.state.copied());
    parts.iter().filter_map(state).collect()
}

/// Puts states of factors back, in the order of the parts.
pub(super) fn put_back(parts: &mut [Part], states: Vec<LowRankState>) {
    let mut states = states.into_iter();
    for part in parts {
        if let Some(low_rank) = part.method.low_rank_mut()
            && let Some(before) = states.next()
        {
            low_rank.state = before;
        }
    }
}

/// The policy of the tensor that has an element of the gradient.
fn policy_at(parts: &[Part], whole: &[Whole], index: u64) -> NonFinite {
    let has = |span: &TensorSpan| (span.offset..span.end()).contains(&index);
    let of_part = parts.iter().find(|part| part.group.spans.iter().any(has)).map(|part| part.group.recipe.non_finite);
    let of_whole = whole.iter().find(|tensor| has(&tensor.span)).map(|tensor| tensor.policy);
    // Factors of a whole model take tensors along that are not their own.
    let of_factors = parts.first().map(|part| part.group.recipe.non_finite);
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

/// The checked payloads of all ranks, by parts, and each rank's uncompressed values if those are gathered: `whole` is
/// their number. All ranks took the same of the step before.
fn receive<'m>(
    parts: &[Part],
    gathered: &'m [Vec<u8>],
    step: u64,
    model: u32,
    whole: Option<u64>,
) -> Result<(Vec<Option<Received<'m>>>, Vec<SparsePayload>), Error> {
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
