//! PowerSGD whose state lies in device memory that a caller owns.

use std::ops::Range;
use std::sync::Arc;

use gradwire_kernels::arith::philox::Stream;
use gradwire_kernels::params::{mark, outcome};

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use super::calls::refuse_unusable;
use super::outcome::{Fate, Outcome};
use super::passes::{LowRankPlan, Start};
use super::state::LowRankState;
use crate::codec::powersgd::{Matrix, PowerSgd, shared};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::plan::{Limits, Pass, Side, Sizes, Table, refuse_not_finite};
use crate::seed::Seed;
use crate::words::{from_little_endian, little_endian};

/// What the host keeps of PowerSGD where gradient, residual and factors lie in device memory that the caller owns: what
/// goes where there, and which call is next.
///
/// Made by [`PowerSgd::resident`]; each worker keeps one. Its steps are those of [`crate::Device::begin_low_rank`]:
/// [`BeginLowRank`](crate::embed::BeginLowRank), [`AdvanceLowRank`](crate::embed::AdvanceLowRank) and
/// [`FinishLowRank`](crate::embed::FinishLowRank) are queued one after another. Nothing of a tensor's size is copied,
/// allocated or waited for, and the factors are all-reduced in place, where they are.
///
/// The same backend gives the same bits as with a [`LowRankState`] (whose steps count if there is no tensor at all,
/// too), which [`ResidentLowRank::download`] makes of the memory, for a checkpoint or where the number of workers
/// changes, and [`ResidentLowRank::upload`] puts into it.
///
/// A CUDA graph may record a step: the count of steps, from which seeded columns are drawn, is in the memory. It
/// repeats the side that it was recorded for, so that of steps that are one-sided it has to record two, and be launched
/// as a whole. What the host knows of the order of calls is that of the recording: [`ResidentLowRank::check`] has
/// nothing to say of a launch, so that a graph is for [`NonFinite::Propagate`](crate::NonFinite::Propagate).
///
/// ```
/// use gradwire::{Dtype, Matrix, PowerSgd, Seed};
/// let tensors = [Matrix::of(&[64, 32]), Matrix::vector(64)];
/// let steps = PowerSgd::rank(2).resident(&tensors, Dtype::F32, Seed::new(42))?;
/// // Allocate as much, copy the image to where the state begins, and fill the residual with zeros.
/// let sizes = [steps.gradient_bytes(), steps.residual_bytes(), steps.state_bytes(), steps.factor_bytes(), steps.output_bytes()];
/// assert_eq!((sizes[0], sizes[1], sizes[4]), (8448, 8448, 8448));
/// assert_eq!(sizes[3], 4 * (2 * 64).max(2 * 32 + 64)); // P, then Q and the vector
/// assert!(steps.image().len() as u64 <= sizes[2]);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ResidentLowRank {
    codec: PowerSgd,
    table: Arc<Table>,
    seed: Seed,
    plan: LowRankPlan,
    dtype: Dtype,
    /// Which factor the last step computed last.
    last: Side,
    /// Factors that the step under way has given out; 0 between steps.
    round: u32,
}

impl PowerSgd {
    /// Steps for gradients of these tensors in device memory, one after another in one buffer. Every worker starts from
    /// the same seed; the seed's step is where the state's steps begin.
    ///
    /// # Errors
    /// As [`PowerSgd::state`]; [`Error::Limit`] if all factors take more than 2^32 words.
    pub fn resident(&self, tensors: &[Matrix], dtype: Dtype, seed: Seed) -> Result<ResidentLowRank, Error> {
        let _environment = FloatEnvironment::standard();
        let (table, seed) = (self.table(tensors)?, shared(seed)?);
        let plan = LowRankPlan::new(&table, dtype, self.feedback(), true);
        plan.check_words()?;
        Ok(ResidentLowRank { codec: *self, table, seed, plan, dtype, last: Side::Right, round: 0 })
    }
}

/// What a rank keeps if it sends another factor than the mean.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl ResidentLowRank {
    /// The same steps, of which a rank keeps what it has not sent itself, as with [`LowRankState::keep_own`]: what is
    /// taken off when a step begins is the product with the factor that was copied to [`Self::own_places`] before the
    /// step before it ended. The state takes more bytes.
    ///
    /// # Errors
    /// [`Error::Limit`] if all factors take more than 2^32 words.
    pub(crate) fn keeping_own(mut self) -> Result<Self, Error> {
        self.plan = LowRankPlan::with_own(&self.table, self.dtype, self.codec.feedback());
        self.plan.check_words()?;
        Ok(self)
    }

    /// Whether means are looked at.
    pub(crate) fn is_guarded(&self) -> bool {
        self.codec.is_guarded()
    }

    /// Where this rank's own factor of the round under way goes: bytes from a byte of the factor on, as it was sent, to
    /// a byte of the state.
    pub(crate) fn own_places(&self) -> Vec<OwnPlace> {
        let (side, rank, mut from) = (self.side(self.round), self.table.rank, 0);
        let mut places = Vec::new();
        for (_, part) in self.table.compressed() {
            let (entries, stride) = (part.dimension(side) as u64, part.stride(side) as u64);
            let first = self.plan.layout.own[side as usize] + part.start(side) as u64;
            // Columns lie one after another, unless they are padded.
            let (columns, length) = if entries == stride { (1, rank as u64 * entries) } else { (rank as u64, entries) };
            for column in 0..columns {
                places.push(OwnPlace { from: 4 * from, to: 4 * (first + column * stride), bytes: 4 * length });
                from += length;
            }
        }
        places
    }
}

/// Bytes of a factor that are copied into the state.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) struct OwnPlace {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: u64,
}

impl ResidentLowRank {
    /// Elements of the gradient: those of all tensors.
    pub fn elements(&self) -> usize {
        self.table.elements
    }

    /// The type of the gradient's elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Bytes of memory for the gradient, in whole 4-byte words, as
    /// [`EncodePlan::gradient_bytes`](crate::EncodePlan::gradient_bytes).
    pub fn gradient_bytes(&self) -> u64 {
        (self.table.elements as u64 * self.dtype.bytes() as u64).next_multiple_of(4)
    }

    /// Bytes of the residual: 4 an element.
    pub fn residual_bytes(&self) -> u64 {
        4 * self.table.elements as u64
    }

    /// Bytes of the output: 4 an element.
    pub fn output_bytes(&self) -> u64 {
        4 * self.table.elements as u64
    }

    /// Bytes of the state: both factors twice, their tiles' shares, the tensors that are not compressed, and tables.
    pub fn state_bytes(&self) -> u64 {
        4 * self.plan.layout.words
    }

    /// Bytes of the largest factor that a step hands out.
    pub fn factor_bytes(&self) -> u64 {
        let sides = [Side::Left, Side::Right];
        let of = |side: Side| sides.map(|last| self.sent_len_after(last, side)).into_iter().max().unwrap_or(0);
        4 * sides.map(of).into_iter().max().unwrap_or(0) as u64
    }

    /// Entries of the most that a side's factor is sent with, by a codec whose steps begin from `last`.
    fn sent_len_after(&self, last: Side, side: Side) -> usize {
        // Two-sided steps end with the side that they began from.
        if self.rounds() > 1 && last != self.last {
            return 0;
        }
        let of = |last: Side, round: u32| if round % 2 == 1 { last.other() } else { last };
        let rounds = (1..=self.rounds()).filter(|round| of(last, *round) == side);
        rounds.map(|round| self.sent_len(side, round)).max().unwrap_or(0)
    }

    fn sent_len(&self, side: Side, round: u32) -> usize {
        self.table.factor_len(side) + if round == self.rounds() { self.table.plain_len() } else { 0 }
    }

    /// Factors that a step hands out, one after another, to be all-reduced: 2 for each power iteration, or 1 where
    /// one-sided.
    pub fn rounds(&self) -> u32 {
        self.codec.rounds()
    }

    pub(crate) fn side(&self, round: u32) -> Side {
        if round % 2 == 1 { self.last.other() } else { self.last }
    }

    /// Entries of the factor that the next call hands out, as [`LowRankState::factor_len`] has it.
    pub fn factor_len(&self) -> usize {
        if self.round == self.rounds() {
            return 0;
        }
        self.sent_len(self.side(self.round + 1), self.round + 1)
    }

    /// Entries of the factor that the last call handed out, of the step under way.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn given_len(&self) -> usize {
        if self.round == 0 { 0 } else { self.sent_len(self.side(self.round), self.round) }
    }

    /// Under [`NonFinite::Error`](crate::NonFinite::Error), refuses a mean that cannot be used, as a step in the host's
    /// memory does.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn check_reduced(&self, reduced: &[f32]) -> Result<(), Error> {
        if !self.codec.is_guarded() {
            return Ok(());
        }
        refuse_unusable(reduced, self.table.factor_len(self.side(self.round)))
    }

    /// The first bytes of the state before the first step. The others may be anything.
    pub fn image(&self) -> Vec<u8> {
        let mut words = self.plan.table.clone();
        words.resize(self.plan.layout.plain as usize, 0);
        let steps = self.plan.layout.steps as usize;
        words[steps..steps + 2].copy_from_slice(&self.seed.step_words());
        little_endian(&words).into_owned()
    }

    /// Bytes of the state that [`ResidentLowRank::outcomes`] reads.
    pub fn outcome_bytes(&self) -> Range<u64> {
        let bytes = 4 * u64::from(mark::WORDS) * self.table.parts.len() as u64;
        4 * self.plan.layout.marks..4 * self.plan.layout.marks + bytes
    }

    /// What became of each tensor in the last step that was finished, as [`LowRankState::outcome`] has it: from
    /// [`ResidentLowRank::outcome_bytes`] of the state, copied to the host.
    ///
    /// # Errors
    /// [`Error::Length`] for other than as many bytes.
    pub fn outcomes(&self, bytes: &[u8]) -> Result<Vec<Option<Outcome>>, Error> {
        let range = self.outcome_bytes();
        Error::expect_len("marks of the state", "bytes", bytes.len(), range.end - range.start)?;
        Ok(self.fates(&from_little_endian(bytes)).into_iter().map(|fate| fate.outcome).collect())
    }

    /// Of each tensor, from the marks.
    fn fates(&self, marks: &[u32]) -> Vec<Fate> {
        let mut fates = vec![Fate::default(); self.table.parts.len()];
        for (tensor, words) in self.in_order().zip(marks.chunks_exact(mark::WORDS as usize)) {
            let outcome = match words[mark::OUTCOME as usize] {
                outcome::SENT => Some(Outcome::Sent),
                outcome::KEPT => Some(Outcome::Kept),
                outcome::DROPPED => Some(Outcome::Dropped),
                _ => None,
            };
            fates[tensor] = Fate { outcome, wary: (words[mark::WARY_FOR as usize] as u8).min(Fate::WARY) };
        }
        fates
    }

    /// The tensors in the order of the device's table: those that are compressed, and then the others.
    fn in_order(&self) -> impl Iterator<Item = usize> {
        let of = |compressed: bool| {
            let parts = self.table.parts.iter().enumerate();
            parts.filter(move |(_, part)| part.compressed == compressed).map(|(index, _)| index)
        };
        of(true).chain(of(false))
    }

    /// Bytes from the beginning of the state that [`ResidentLowRank::download`] reads; the others are of no use between
    /// steps.
    pub fn saved_bytes(&self) -> u64 {
        4 * self.plan.layout.work[0]
    }

    /// The state as [`LowRankState`] has it, of memory that was copied to the host between two steps: to be written to
    /// a checkpoint, or to be absorbed.
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way; [`Error::Length`] for other than [`ResidentLowRank::saved_bytes`]
    /// and an entry of the residual for each element; [`Error::State`] for a number that no step leaves behind, such as
    /// a residual that is not finite, which [`PowerSgd::restore`] would refuse too; [`Error::Backend`] if there is
    /// no memory for it.
    pub fn download(&self, state: &[u8], residual: &[f32]) -> Result<LowRankState, Error> {
        let _environment = FloatEnvironment::standard();
        self.expect_round(0, "download")?;
        Error::expect_len("state", "bytes", state.len(), self.saved_bytes())?;
        Error::expect_len("residual", "elements", residual.len(), self.elements() as u64)?;
        let words = from_little_endian(state);
        let (layout, table) = (&self.plan.layout, &self.table);
        let numbers =
            |at: u64, count: usize| words[at as usize..at as usize + count].iter().map(|w| f32::from_bits(*w));
        let mut host = LowRankState::new(self.codec, table.clone(), self.seed)?;
        host.last = self.last;
        let [low, high] = [words[layout.steps as usize], words[layout.steps as usize + 1]];
        let [first_low, first_high] = self.seed.step_words();
        let whole = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        host.step = whole(low, high).wrapping_sub(whole(first_low, first_high));
        host.left = numbers(layout.kept[0], table.left).collect();
        host.right = numbers(layout.kept[1], table.right).collect();
        let marks = &words[layout.marks as usize..];
        host.fates = self.fates(marks);
        host.sums.copy_from_slice(residual);
        for (tensor, words) in self.in_order().zip(marks.chunks_exact(mark::WORDS as usize)) {
            let part = &table.parts[tensor];
            let sent = words[mark::SENT as usize];
            host.sent[tensor] = sent == 1;
            if sent == mark::DROPPED || !self.codec.feedback() {
                host.sums[part.first..part.first + part.elements()].fill(0.0);
            }
        }
        host.check_numbers()?;
        if self.plan.keeps_own {
            host.keep_own(&self.own(&words));
        }
        Ok(host)
    }

    /// Takes up a state, as of a checkpoint: what the state's memory is to begin with, and the residual. The seed stays
    /// that of these steps, and is to be the one that the state was made with. [`ResidentLowRank::factor_bytes`] may be
    /// others afterwards, where the state is one that one-sided steps left at the other side.
    ///
    /// # Errors
    /// [`Error::Order`] while a step of either is under way; [`Error::Shape`] for a state of other tensors or another
    /// rank, or with feedback where these steps have none, or the other way round.
    pub fn upload(&mut self, host: &LowRankState) -> Result<(Vec<u8>, Vec<f32>), Error> {
        let _environment = FloatEnvironment::standard();
        self.expect_round(0, "upload")?;
        host.expect_idle("upload")?;
        self.table.expect_same(&host.table)?;
        host.expect_feedback(self.codec.feedback())?;
        let layout = &self.plan.layout;
        let mut words = from_little_endian(&self.image());
        for (at, factors) in layout.kept.into_iter().zip([&host.left, &host.right]) {
            let to = &mut words[at as usize..at as usize + factors.len()];
            to.iter_mut().zip(factors).for_each(|(word, number)| *word = number.to_bits());
        }
        let mut residual = host.sums.clone();
        for (place, tensor) in self.in_order().enumerate() {
            let (part, fate) = (&self.table.parts[tensor], host.fates[tensor]);
            let what = match fate.outcome {
                None => 0,
                Some(Outcome::Sent) => outcome::SENT,
                Some(Outcome::Kept) => outcome::KEPT,
                Some(Outcome::Dropped) => outcome::DROPPED,
            };
            if host.sent[tensor] && !part.compressed {
                residual[part.first..part.first + part.elements()].fill(0.0);
            }
            let sent = u32::from(host.sent[tensor] && part.compressed);
            let marks = layout.marks as usize + place * mark::WORDS as usize;
            words[marks..marks + mark::WORDS as usize].copy_from_slice(&[sent, 0, fate.wary.into(), what]);
        }
        let [low, high] = self.seed.step_words();
        let step = (u64::from(high) << 32 | u64::from(low)).wrapping_add(host.step);
        let steps = layout.steps as usize;
        words[steps..steps + 2].copy_from_slice(&[step as u32, (step >> 32) as u32]);
        if self.plan.keeps_own {
            let [kept, own] = [layout.kept, layout.own].map(|places| places[host.last as usize] as usize);
            let padded = match host.last {
                Side::Left => self.table.left,
                Side::Right => self.table.right,
            };
            words.copy_within(kept..kept + padded, own);
        }
        self.last = host.last;
        Ok((little_endian(&words).into_owned(), residual))
    }

    /// This rank's own last factor as it was sent, of the words of a state that keeps it.
    fn own(&self, words: &[u32]) -> Vec<f32> {
        let (side, first) = (self.last, self.plan.layout.own[self.last as usize] as usize);
        let mut own = Vec::with_capacity(self.table.factor_len(side));
        for (_, part) in self.table.compressed() {
            let columns = words[first + part.start(side)..].chunks_exact(part.stride(side)).take(self.table.rank);
            let entries = columns.flat_map(|column| &column[..part.dimension(side)]);
            own.extend(entries.map(|word| f32::from_bits(*word)));
        }
        own
    }

    /// Gives up a step that was begun, as where a collective failed: as [`LowRankState::abandon`]. What was queued for
    /// it may still be done, up to any call, or never be submitted: the memory says whether the gradient has joined the
    /// residual. Does nothing between steps.
    pub fn abandon(&mut self) {
        self.round = 0;
    }

    /// Bytes of the state that [`ResidentLowRank::check`] reads.
    pub fn status_bytes(&self) -> Range<u64> {
        4 * self.plan.layout.status..4 * self.plan.layout.status + 4
    }

    /// What a step's first call found under the policy [`NonFinite::Error`](crate::NonFinite::Error): from
    /// [`ResidentLowRank::status_bytes`] of the state, copied to the host before the factor goes anywhere. Under the
    /// other policy there is nothing to look at. Means are not looked at under either: one that cannot be used poisons
    /// its tensor.
    ///
    /// # Errors
    /// [`Error::NotFinite`]: residual and state are as they were, and the step has not begun. [`Error::Length`] for
    /// other than four bytes; [`Error::Order`] if a step has not just begun.
    pub fn check(&mut self, status: &[u8]) -> Result<(), Error> {
        if !self.codec.is_guarded() {
            return Ok(());
        }
        self.expect_round(1, "check")?;
        Error::expect_len("status of the state", "bytes", status.len(), 4)?;
        refuse_not_finite(from_little_endian(status)[0]).inspect_err(|_| self.round = 0)
    }

    fn expect_round(&self, round: u32, asked: &'static str) -> Result<(), Error> {
        if self.round == round { Ok(()) } else { Err(Error::Order { asked, expected: self.expected() }) }
    }

    /// Which call is next.
    fn expected(&self) -> &'static str {
        match self.round {
            0 => "the step's first call, begin_low_rank",
            round if round < self.rounds() => "advance_low_rank",
            _ => "finish_low_rank",
        }
    }

    /// Bytes of each buffer of a session that [`ResidentLowRank::passes_of_step`] run in. The state is its workspace.
    pub fn sizes(&self) -> Sizes {
        self.plan.sizes()
    }

    /// The passes of the next step on a single worker, call by call, for a session: what is timed where PowerSGD is.
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way; [`Error::Limit`] if the limits are too small.
    pub fn passes_of_step(&self, limits: &Limits) -> Result<Vec<Vec<Pass>>, Error> {
        let mut steps = self.clone();
        let mut calls = Vec::new();
        for call in 0..=self.rounds() {
            calls.push(match call {
                0 => steps.begin(limits),
                last if last == self.rounds() => steps.finish(limits),
                _ => steps.advance(limits),
            }?);
            steps.went_on();
        }
        Ok(calls)
    }

    /// Whether the next call is a step's first one, and whether it is its last one.
    pub(crate) fn is_at(&self) -> (bool, bool) {
        (self.round == 0, self.round == self.rounds())
    }

    pub(crate) fn begin(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        self.expect_round(0, "begin_low_rank")?;
        let (seed, [low, high]) = (self.seed, self.seed.step_words());
        let stream = Stream { key: seed.key(), tensor: seed.tensor_word(), step: [low, high] };
        let (guarded, is_last) = (self.codec.is_guarded(), self.rounds() == 1);
        self.plan.begin_resident(self.last, stream, Start { is_last, guarded }, limits)
    }

    pub(crate) fn advance(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        if self.round == 0 || self.round == self.rounds() {
            return Err(Error::Order { asked: "advance_low_rank", expected: self.expected() });
        }
        self.plan.advance_resident(self.side(self.round), self.round + 1 == self.rounds(), limits)
    }

    pub(crate) fn finish(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        if self.round == 0 {
            return Err(Error::Order { asked: "finish_low_rank", expected: self.expected() });
        }
        self.expect_round(self.rounds(), "finish_low_rank")?;
        self.plan.finish(self.side(self.round), limits)
    }

    /// After a call whose work was queued.
    pub(crate) fn went_on(&mut self) {
        if self.round < self.rounds() {
            self.round += 1;
        } else {
            (self.last, self.round) = (self.side(self.round), 0);
        }
    }
}
