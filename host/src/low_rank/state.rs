//! What PowerSGD keeps from step to step, owned by the caller.

use std::sync::Arc;

use gradwire_kernels::arith::powersgd::{kept, term};

use super::factors::StepFactors;
use super::outcome::{Fate, Outcome};
use crate::codec::powersgd::PowerSgd;
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::plan::{Part, Side, Table};
use crate::seed::Seed;
use crate::threads;
use crate::words;

/// The residuals and warm-started factors of PowerSGD, for the tensors of a model.
///
/// Made by [`PowerSgd::state`]; each worker keeps one. The residual is kept as M and the factors, and M - L R^T is
/// formed when the next step reads it anyway: that saves writing it.
///
/// Memory: 4 bytes per element of the gradient; both factors twice; for the passes of the CPU, at most a byte more per
/// element and the right factors once again; and 4 bytes more per element once
/// [`Device::low_rank_step`](crate::Device::low_rank_step) was called, which keeps room for a second residual.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankState {
    pub(crate) codec: PowerSgd,
    pub(crate) table: Arc<Table>,
    pub(crate) seed: Seed,
    /// Steps that were finished.
    pub(crate) step: u64,
    /// Which factor the last step computed last: the next step starts from it.
    pub(crate) last: Side,
    /// Gradient + residual of the last step. Always finite.
    pub(crate) sums: Vec<f32>,
    /// The factors that the last finished step ended with; the step under way has its own.
    pub(crate) left: Vec<f32>,
    pub(crate) right: Vec<f32>,
    /// Of each tensor, whether L R^T, or the tensor itself, was sent and is yet to be taken off `sums`.
    pub(crate) sent: Vec<bool>,
    /// Of each tensor, its outcome in the last finished step.
    pub(crate) fates: Vec<Fate>,
    /// Of each tensor, whether a factor of the step under way could not be used.
    pub(crate) poisoned: Vec<bool>,
    /// What belongs to the step under way; empty between steps.
    pub(crate) work: StepFactors,
    /// Factors that the step under way has given out; 0 between steps.
    pub(crate) round: u32,
    /// Room for the passes, kept because new room costs as much as they do.
    pub(crate) scratch: Scratch,
    /// Room for the residual as it was before a whole step, kept for the same reason.
    pub(crate) before: Scratch,
    /// Whether the step's first call is to leave the residual in `before`, for a whole step that may fail.
    pub(crate) keep: bool,
}

/// What a step has replaced.
#[derive(Debug)]
pub(crate) struct Step {
    step: u64,
    last: Side,
    left: Vec<f32>,
    right: Vec<f32>,
    sent: Vec<bool>,
    fates: Vec<Fate>,
    poisoned: Vec<bool>,
}

/// Elements that a thread takes at a time.
const COPIED: usize = 1 << 16;
/// Elements of a row whose sums are worked out together.
const TOGETHER: usize = 64;

/// Room that is no part of a state: a copy begins without it.
#[derive(Debug, Default)]
pub(crate) struct Scratch(pub(crate) Vec<f32>);

impl Clone for Scratch {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Scratch {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The name of the memory of a state in errors.
const STATE: &str = "a state of PowerSGD";

/// Numbers, all zero.
fn zeros(count: usize) -> Result<Vec<f32>, Error> {
    words::zeros(count as u64, STATE)
}

impl LowRankState {
    pub(crate) fn new(codec: PowerSgd, table: Arc<Table>, seed: Seed) -> Result<Self, Error> {
        let tensors = table.parts.len();
        Ok(Self {
            codec,
            seed,
            step: 0,
            last: Side::Right,
            sums: zeros(table.elements)?,
            // Zeros are dependent columns, which a step replaces by seeded ones.
            left: zeros(table.left)?,
            right: zeros(table.right)?,
            sent: vec![false; tensors],
            fates: vec![Fate::default(); tensors],
            poisoned: vec![false; tensors],
            work: StepFactors::default(),
            round: 0,
            scratch: Scratch::default(),
            before: Scratch::default(),
            keep: false,
            table,
        })
    }

    /// Elements of the gradient: those of all tensors.
    pub fn elements(&self) -> usize {
        self.table.elements
    }

    /// Steps that were finished.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Factors that a step hands out, one after another, to be all-reduced: 2 for each power iteration, or 1 where
    /// one-sided.
    pub fn rounds(&self) -> u32 {
        self.codec.rounds()
    }

    /// Whether a tensor is sent as factors; `None` if there is no such tensor.
    pub fn is_compressed(&self, tensor: usize) -> Option<bool> {
        self.table.parts.get(tensor).map(|part| part.compressed)
    }

    /// What became of a tensor in the last step that was finished; `None` if there is no such tensor, or before the
    /// first.
    pub fn outcome(&self, tensor: usize) -> Option<Outcome> {
        self.fates.get(tensor)?.outcome
    }

    /// Entries of the factor that the next call hands out: r for each row of every compressed matrix, or for each
    /// column; the last of a step has the tensors that are not compressed after it. 0 where
    /// [`crate::Device::finish_low_rank`] is due, which hands out none.
    pub fn factor_len(&self) -> usize {
        if self.round == self.rounds() {
            return 0;
        }
        self.sent_len(self.side(self.round + 1), self.round + 1)
    }

    /// Bytes that the step under way sends, or the next where none is: 4 r (n + m) for a matrix and an iteration.
    pub fn step_bytes(&self) -> usize {
        (1..=self.rounds()).map(|round| 4 * self.sent_len(self.side(round), round)).sum()
    }

    /// Which factor a round of a step hands out.
    pub(crate) fn side(&self, round: u32) -> Side {
        if round % 2 == 1 { self.last.other() } else { self.last }
    }

    /// Entries that a round of a step hands out.
    pub(crate) fn sent_len(&self, side: Side, round: u32) -> usize {
        self.table.factor_len(side) + if round == self.rounds() { self.table.plain_len() } else { 0 }
    }

    pub(crate) fn factors(&mut self, side: Side) -> &mut Vec<f32> {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }

    /// The factors L and R of a matrix in the last step's output L R^T, column by column: n entries for each of r
    /// columns, and m for each. The one that was computed first is orthonormal, but for columns of zeros. `None` for a
    /// tensor that is not compressed.
    pub fn factors_of(&self, tensor: usize) -> Option<[Vec<f32>; 2]> {
        let part = self.table.parts.get(tensor).filter(|part| part.compressed)?;
        let of = |side: Side, factors: &[f32]| {
            let columns = factors[part.start(side)..].chunks_exact(part.stride(side)).take(self.table.rank);
            columns.flat_map(|column| &column[..part.dimension(side)]).copied().collect()
        };
        Some([of(Side::Left, &self.left), of(Side::Right, &self.right)])
    }

    /// The residual: the values that were not sent so far, an entry for each element of the gradient. All are finite:
    /// where M - L R^T overflows, nothing is kept, here as in the next step.
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way; [`Error::Backend`] if there is no memory for it.
    pub fn residual(&self) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        self.expect_idle("residual")?;
        if !self.codec.feedback() {
            return zeros(self.sums.len());
        }
        let mut residual = words::copied(&self.sums, "a residual")?;
        for (part, sent) in self.table.parts.iter().zip(&self.sent) {
            let mine = &mut residual[part.first..part.first + part.elements()];
            match (sent, part.compressed) {
                (false, _) => {}
                (true, false) => mine.fill(0.0),
                (true, true) => self.take_off(part, mine),
            }
        }
        Ok(residual)
    }

    /// Takes L R^T off the elements of a matrix.
    fn take_off(&self, part: &Part, elements: &mut [f32]) {
        let left = (&self.left[part.left..], part.row_stride());
        let right = (&self.right[part.right..], part.column_stride());
        take_off(part.columns, self.table.rank, left, right, elements);
    }

    /// Where this rank sent another factor than the mean that the last step ended with, `own` as it was sent: takes off
    /// each matrix that was sent what this rank sent of it, at once, and nothing when the next step begins. The state's
    /// factors stay those of all ranks.
    pub(crate) fn keep_own(&mut self, own: &[f32]) {
        if !self.codec.feedback() {
            return;
        }
        let (rank, last) = (self.table.rank, self.last);
        let table = self.table.clone();
        for ((index, part), own) in table.compressed().zip(table.split(last, own)) {
            if !std::mem::take(&mut self.sent[index]) {
                continue;
            }
            let mut left = (&self.left[part.left..], part.row_stride());
            let mut right = (&self.right[part.right..], part.column_stride());
            match last {
                Side::Left => left = (own, part.rows),
                Side::Right => right = (own, part.columns),
            }
            let rows = (COPIED / part.columns).max(1);
            let slabs = &mut self.sums[part.first..part.first + part.elements()];
            let slabs = threads::chunks_mut(slabs, rows * part.columns);
            slabs.enumerate().for_each(|(slab, sums)| {
                take_off(part.columns, rank, (&left.0[slab * rows..], left.1), right, sums);
            });
        }
    }

    /// Forgets the residual, and keeps the factors.
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way.
    pub fn clear_residual(&mut self) -> Result<(), Error> {
        self.expect_idle("clear_residual")?;
        self.sums.fill(0.0);
        self.sent.fill(false);
        Ok(())
    }

    /// Takes over the residual of a worker that leaves: the sum of all workers' residuals stays the same, but for
    /// the rounding of the additions.
    ///
    /// ```
    /// use gradwire::{Device, Matrix, PowerSgd, Seed};
    /// let device = Device::cpu();
    /// let mut stays = PowerSgd::rank(1).state(&[Matrix::new(16, 16)], Seed::new(1))?;
    /// let mut leaves = stays.clone();
    /// let mut output = [0.0; 256];
    /// let alone = |_: &mut [f32]| Ok::<_, gradwire::Error>(());
    /// device.low_rank_step(&mut stays, &[1.0f32; 256], &mut output, alone)?;
    /// device.low_rank_step(&mut leaves, &(0..256).map(|i| (i % 7) as f32).collect::<Vec<_>>(), &mut output, alone)?;
    /// let before = [stays.residual()?, leaves.residual()?];
    /// stays.absorb(&leaves)?;
    /// assert!(stays.residual()?.iter().enumerate().all(|(i, e)| *e == before[0][i] + before[1][i]));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if the other state is for other tensors, another rank, or one of the two has feedback and
    /// the other has none; [`Error::Overflow`] if a sum is too large for f32; [`Error::Order`] while a step of
    /// either is under way; [`Error::Backend`] if there is no memory for both. Both residuals are then as they were.
    pub fn absorb(&mut self, leaving: &Self) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        self.table.expect_same(&leaving.table)?;
        self.expect_feedback(leaving.codec.feedback())?;
        let (mut sums, theirs) = (self.residual()?, leaving.residual()?);
        sums.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        if let Some(index) = sums.iter().position(|sum| !sum.is_finite()) {
            return Err(Error::Overflow { what: "sum of the residuals", index: index as u64 });
        }
        self.sums = sums;
        self.sent.fill(false);
        Ok(())
    }

    /// The state of a worker that joins: the same factors and step, and no residual.
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way; [`Error::Backend`] if there is no memory for it.
    pub fn joining(&self) -> Result<Self, Error> {
        self.expect_idle("joining")?;
        let mut state = self.copied()?;
        state.clear_residual()?;
        Ok(state)
    }

    /// This state after `steps` steps, with this residual, and with the factors that other states have of its tensors:
    /// for each tensor a state and the tensor's number there. If there is none, factors begin anew.
    pub(crate) fn carried(
        &self,
        steps: u64,
        residual: Vec<f32>,
        from: &[Option<(&Self, usize)>],
    ) -> Result<Self, Error> {
        self.expect_idle("take_over")?;
        let mut state = Self::new(self.codec, self.table.clone(), self.seed)?;
        state.step = steps;
        if self.codec.feedback() {
            state.sums = residual;
        }
        if let Some((first, _)) = from.iter().flatten().next() {
            state.last = first.last;
        }
        for (part, (theirs, tensor)) in self.table.parts.iter().zip(from).filter_map(|(p, f)| Some((p, (*f)?))) {
            let same = |other: &Part| (other.rows, other.columns, other.compressed) == (part.rows, part.columns, true);
            let other = theirs.table.parts.get(tensor).filter(|other| same(other));
            let Some(other) = other.filter(|_| theirs.table.rank == self.table.rank && theirs.last == state.last)
            else {
                continue;
            };
            for side in [Side::Left, Side::Right] {
                let length = part.stride(side) * self.table.rank;
                let mine = part.start(side)..part.start(side) + length;
                let given = match side {
                    Side::Left => &theirs.left,
                    Side::Right => &theirs.right,
                };
                state.factors(side)[mine].copy_from_slice(&given[other.start(side)..other.start(side) + length]);
            }
        }
        Ok(state)
    }

    /// Gives up a step that was begun, as where a collective failed: nothing was sent, and with feedback the finite
    /// part of the gradient stays in the residual. All else is as before the step, its factors to the last bit, so that
    /// a worker may begin again (with a gradient of zeros) and stay in step with those that did not fail. Does nothing
    /// between steps.
    pub fn abandon(&mut self) {
        self.round = 0;
        self.work.clear();
    }

    /// Does a whole step, and where that fails leaves the state as it was. A step that was under way before stays so.
    pub(crate) fn attempt<E: From<Error>>(&mut self, step: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<(), E> {
        self.expect_idle("begin_low_rank")?;
        let before = &mut self.before.0;
        if before.len() != self.sums.len() {
            let bytes = 4 * self.sums.len() as u64;
            before.try_reserve_exact(self.sums.len()).map_err(|_| Error::no_memory("a second residual", bytes))?;
            before.resize(self.sums.len(), 0.0);
        }
        // All that a step changes before its last call, which changes the rest and cannot fail after that.
        let (sent, poisoned) = (self.sent.clone(), self.poisoned.clone());
        self.keep = true;
        let done = step(self);
        let is_kept = !std::mem::take(&mut self.keep);
        if done.is_err() {
            self.abandon();
            if is_kept {
                std::mem::swap(&mut self.sums, &mut self.before.0);
            }
            (self.sent, self.poisoned) = (sent, poisoned);
        }
        done
    }

    /// Moves the residual to `before`, for a whole step alone, and says whether it did. Whoever calls it goes on to
    /// write the sums of every compressed matrix from there; those of the other tensors are copied back.
    pub(crate) fn move_aside(&mut self) -> bool {
        if !self.takes_keep() {
            return false;
        }
        let before = &mut self.before.0;
        std::mem::swap(&mut self.sums, before);
        for part in self.table.parts.iter().filter(|part| !part.compressed) {
            let place = part.first..part.first + part.elements();
            self.sums[place.clone()].copy_from_slice(&before[place]);
        }
        true
    }

    /// Copies the residual to `before`, for a whole step alone.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn copy_aside(&mut self) {
        if self.takes_keep() {
            let pieces = threads::chunks_mut(&mut self.before.0, COPIED).zip(threads::chunks(&self.sums, COPIED));
            pieces.for_each(|(to, from)| to.copy_from_slice(from));
        }
    }

    fn takes_keep(&mut self) -> bool {
        // A step that ended in a panic leaves the wish, and its clone has no room.
        std::mem::take(&mut self.keep) && self.before.0.len() == self.sums.len()
    }

    /// What a step will replace, but for the residual, which a step leaves in `before`.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for a copy of the factors.
    pub(crate) fn begin_undo(&self) -> Result<Step, Error> {
        Ok(Step {
            step: self.step,
            last: self.last,
            left: words::copied(&self.left, STATE)?,
            right: words::copied(&self.right, STATE)?,
            sent: self.sent.clone(),
            fates: self.fates.clone(),
            poisoned: self.poisoned.clone(),
        })
    }

    /// A clone between steps.
    ///
    /// # Errors
    /// As [`LowRankState::begin_undo`].
    pub(crate) fn copied(&self) -> Result<Self, Error> {
        let Step { step, last, left, right, sent, fates, poisoned } = self.begin_undo()?;
        let sums = words::copied(&self.sums, STATE)?;
        let (table, work, scratch) = (self.table.clone(), StepFactors::default(), Scratch::default());
        let (codec, seed, before) = (self.codec, self.seed, Scratch::default());
        Ok(Self {
            codec,
            table,
            seed,
            step,
            last,
            sums,
            left,
            right,
            sent,
            fates,
            poisoned,
            work,
            round: 0,
            scratch,
            before,
            keep: false,
        })
    }

    /// Takes back a whole step that was made since.
    pub(crate) fn undo(&mut self, before: Step) {
        let Step { step, last, left, right, sent, fates, poisoned } = before;
        (self.step, self.last, self.left, self.right) = (step, last, left, right);
        (self.sent, self.fates, self.poisoned) = (sent, fates, poisoned);
        std::mem::swap(&mut self.sums, &mut self.before.0);
    }

    pub(crate) fn expect_feedback(&self, found: bool) -> Result<(), Error> {
        let expected = self.codec.feedback();
        if found == expected {
            return Ok(());
        }
        let [found, expected] = [found, expected].map(u64::from);
        Err(Error::Shape { what: "error feedback (0 without, 1 with)", tensor: None, found, expected })
    }

    pub(crate) fn expect_idle(&self, asked: &'static str) -> Result<(), Error> {
        if self.round == 0 { Ok(()) } else { Err(Error::Order { asked, expected: self.expected() }) }
    }

    /// Which call is next.
    pub(crate) fn expected(&self) -> &'static str {
        match self.round {
            0 => "begin_low_rank",
            round if round < self.rounds() => "advance_low_rank",
            _ => "finish_low_rank",
        }
    }
}

/// Takes L R^T off rows of a matrix. Each factor comes with the entries from one of its columns to the next; the left
/// one begins at the first of the rows.
fn take_off(
    columns: usize,
    rank: usize,
    (left, row_stride): (&[f32], usize),
    (right, column_stride): (&[f32], usize),
    rows: &mut [f32],
) {
    for (i, row) in rows.chunks_exact_mut(columns).enumerate() {
        for (first, elements) in (0..).step_by(TOGETHER).zip(row.chunks_mut(TOGETHER)) {
            let mut sums = [0.0f32; TOGETHER];
            let begin = sums.iter_mut().zip(&right[first..]).take(elements.len());
            begin.for_each(|(sum, right)| *sum = left[i] * right);
            for k in 1..rank {
                let left = left[k * row_stride + i];
                let column = &right[k * column_stride + first..];
                let terms = sums.iter_mut().zip(column).take(elements.len());
                terms.for_each(|(sum, right)| *sum = term(*sum, left, *right));
            }
            elements.iter_mut().zip(&sums).for_each(|(element, sum)| *element = kept(*element - sum, 0.0));
        }
    }
}
