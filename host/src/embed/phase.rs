//! The phases of a step on a device that runs passes, for a state that lies in this machine's memory: what goes to the
//! device, what runs there, and what comes back. A phase that fails has written nothing.

use std::borrow::Cow;
use std::ops::Range;

use gradwire_kernels::params::mark;

use super::{HostSlice, Piece, Read, Work, Written, sealed, word};
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::low_rank::LowRankState;
use crate::low_rank::passes::LowRankPlan;
use crate::plan::{Limits, Pass, ROLES, Role, Side, Sizes, Table, refuse_not_finite};
use crate::words::{little_endian, zeros};

/// A phase, as data.
pub(crate) struct Phase<'a> {
    pub(crate) sizes: Sizes,
    /// What a buffer holds before, from a byte on.
    pub(crate) writes: Vec<(Role, u64, Cow<'a, [u8]>)>,
    /// Under the policy that refuses non-finite values, the scan for them, which leaves its verdict in the status.
    pub(crate) scan: Vec<Pass>,
    pub(crate) passes: Vec<Pass>,
    /// The words that are read afterwards: the first byte, and the number of words.
    pub(crate) reads: Vec<(Role, u64, usize)>,
}

/// The words that were read, in the order of [`Phase::reads`].
pub(crate) type Answers = Vec<Vec<u32>>;

/// A phase as work on a device. `odd` is an element that is refused beside those that the device looks at.
pub(crate) struct Stage<'p> {
    pub(crate) phase: &'p Phase<'p>,
    pub(crate) odd: Option<u64>,
}

impl sealed::Sealed for Stage<'_> {
    fn asks(&self, _: &[Pass]) -> Vec<(Role, Range<u64>)> {
        (!self.phase.scan.is_empty()).then_some((Role::Status, 0..4)).into_iter().collect()
    }

    fn judge(&self, _: &[Pass], answers: &[Vec<u8>]) -> Result<u64, Error> {
        let status = if self.phase.scan.is_empty() { return Ok(0) } else { word(answers, 0) };
        refusal(Some(status), self.odd).map(|()| 0)
    }
}

impl Work for Stage<'_> {
    /// Of each role.
    type Buffers<B> = [B; ROLES];

    /// The scan changes nothing but the status.
    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let all = [&self.phase.scan[..], &self.phase.passes].concat();
        limits.check(&all).map(|()| all.into())
    }

    fn pieces<B>(&self, buffers: [B; ROLES]) -> Result<Vec<Piece<B>>, Error> {
        let piece = |(role, buffer)| {
            let piece = Piece::new("buffer of a step", buffer, self.phase.sizes.of(role), [Some((role, 0)), None]);
            if role == Role::Input { piece.read() } else { piece.scratch(0, 0) }
        };
        Ok(Role::ALL.into_iter().zip(buffers).map(piece).collect())
    }
}

impl Phase<'_> {
    /// What goes to each buffer, and what comes back of it into `answers`, which become as long as they have to be.
    pub(crate) fn buffers<'h>(&'h self, answers: &'h mut Answers) -> Result<[HostSlice<'h>; ROLES], Error> {
        let mut parts: [(Read<'h>, Written<'h>); ROLES] = Default::default();
        for (role, at, bytes) in &self.writes {
            parts[*role as usize].0.push((*at, bytes));
        }
        for (_, _, count) in &self.reads {
            answers.push(zeros(*count as u64, "what a phase reads")?);
        }
        for ((role, at, _), answer) in self.reads.iter().zip(answers) {
            parts[*role as usize].1.push((*at, bytemuck::cast_slice_mut(answer)));
        }
        Ok(parts.map(|(mut read, mut written)| {
            read.sort_unstable_by_key(|(at, _)| *at);
            written.sort_unstable_by_key(|(at, _)| *at);
            HostSlice::parts_both(read, written)
        }))
    }
}

/// The verdict, of what a device found and of an element beside it: the first of both.
pub(crate) fn refusal(status: Option<u32>, odd: Option<u64>) -> Result<(), Error> {
    match (status.map_or(Ok(()), refuse_not_finite), odd) {
        (Err(Error::NotFinite { index }), Some(odd)) => Err(Error::NotFinite { index: index.min(odd) }),
        (Ok(()), Some(index)) => Err(Error::NotFinite { index }),
        (found, _) => found,
    }
}

impl LowRankState {
    /// What makes the step's factor of the side `known`, `input`, orthonormal, forms gradient + residual of the
    /// compressed matrices, and multiplies. `None` if there are none.
    pub(crate) fn begin_phase<'a>(
        &'a self,
        gradient: Gradient<'a>,
        known: Side,
        input: &'a [f32],
        limits: &Limits,
    ) -> Result<Option<Phase<'a>>, Error> {
        let (table, guarded, feedback) = (&self.table, self.codec.is_guarded(), self.codec.feedback());
        let plan = LowRankPlan::new(table, gradient.dtype(), feedback, false);
        if plan.is_empty() {
            return Ok(None);
        }
        let layout = &plan.layout;
        let mut writes = vec![(Role::Input, 0, gradient.as_bytes().into()), (Role::Residual, 0, bytes_of(&self.sums))];
        writes.extend(table_of(&plan, table.compressed().map(|(index, _)| [self.sent[index], false])));
        for (at, factors) in layout.kept.into_iter().zip([&self.left, &self.right]).filter(|_| feedback) {
            writes.push((Role::Workspace, 4 * at, bytes_of(factors)));
        }
        let factor_at = 4 * layout.work[known as usize];
        writes.push((Role::Workspace, factor_at, bytes_of(input)));
        let mut reads =
            vec![(Role::Workspace, factor_at, input.len()), (Role::Values, 0, table.factor_len(known.other()))];
        reads.extend(runs(table).into_iter().map(|run| (Role::Residual, 4 * run.start as u64, run.len())));
        let scan = if guarded { plan.scan(known, limits)? } else { Vec::new() };
        let passes = plan.begin(known, self.stream(), limits)?;
        Ok(Some(Phase { sizes: plan.sizes(), writes, scan, passes, reads }))
    }

    /// Takes what [`LowRankState::begin_phase`] came to.
    pub(crate) fn end_begin(&mut self, answers: &Answers, input: &mut [f32], sent: &mut [f32]) {
        let [factor, product, sums @ ..] = &answers[..] else { return };
        for (run, sums) in runs(&self.table).into_iter().zip(sums) {
            self.sums[run].copy_from_slice(bytemuck::cast_slice(sums));
        }
        input.copy_from_slice(bytemuck::cast_slice(factor));
        sent.copy_from_slice(bytemuck::cast_slice(product));
    }

    /// What takes the step's factors of the side `known`, makes them orthonormal, and multiplies what was formed by
    /// them.
    pub(crate) fn advance_phase<'a>(
        &'a self,
        reduced: &'a [f32],
        known: Side,
        limits: &Limits,
    ) -> Result<Option<Phase<'a>>, Error> {
        let table = &self.table;
        let plan = LowRankPlan::new(table, Dtype::F32, true, false);
        if plan.is_empty() {
            return Ok(None);
        }
        let (mine, at) = (self.work.of(known), 4 * plan.layout.work[known as usize]);
        let mut writes = vec![
            (Role::Residual, 0, bytes_of(&self.sums)),
            (Role::Values, 0, bytes_of(&reduced[..plan.sent[known as usize] as usize])),
        ];
        writes.extend(table_of(&plan, table.compressed().map(|(index, _)| [false, self.poisoned[index]])));
        writes.push((Role::Workspace, at, bytes_of(mine)));
        let reads = vec![
            (Role::Workspace, at, mine.len()),
            marks_of(&plan, table),
            (Role::Values, 0, table.factor_len(known.other())),
        ];
        let passes = plan.advance(known, limits)?;
        Ok(Some(Phase { sizes: plan.sizes(), writes, scan: Vec::new(), passes, reads }))
    }

    /// Takes what [`LowRankState::advance_phase`] came to.
    pub(crate) fn end_advance(&mut self, answers: &Answers, known: Side, sent: &mut [f32]) {
        let [taken, marks, product] = &answers[..] else { return };
        self.take(known, taken, marks);
        sent.copy_from_slice(bytemuck::cast_slice(product));
    }

    /// What takes the step's last factors, and writes L R^T of the compressed matrices.
    pub(crate) fn finish_phase<'a>(
        &'a self,
        reduced: &'a [f32],
        last: Side,
        limits: &Limits,
    ) -> Result<Option<Phase<'a>>, Error> {
        let table = &self.table;
        let plan = LowRankPlan::new(table, Dtype::F32, true, false);
        if plan.is_empty() {
            return Ok(None);
        }
        let mut writes = vec![(Role::Values, 0, bytes_of(&reduced[..plan.sent[last as usize] as usize]))];
        writes.extend(table_of(&plan, table.compressed().map(|(index, _)| [false, self.poisoned[index]])));
        for (at, factors) in plan.layout.work.into_iter().zip([&self.work.left, &self.work.right]) {
            writes.push((Role::Workspace, 4 * at, bytes_of(factors)));
        }
        let at = 4 * plan.layout.work[last as usize];
        let mut reads = vec![(Role::Workspace, at, self.work.of(last).len()), marks_of(&plan, table)];
        reads.extend(runs(table).into_iter().map(|run| (Role::Output, 4 * run.start as u64, run.len())));
        let passes = plan.finish(last, limits)?;
        Ok(Some(Phase { sizes: plan.sizes(), writes, scan: Vec::new(), passes, reads }))
    }

    /// Takes what [`LowRankState::finish_phase`] came to.
    pub(crate) fn end_finish(&mut self, answers: &Answers, last: Side, output: &mut [f32]) {
        let [taken, marks, written @ ..] = &answers[..] else { return };
        self.take(last, taken, marks);
        for (run, values) in runs(&self.table).into_iter().zip(written) {
            output[run].copy_from_slice(bytemuck::cast_slice(values));
        }
    }

    /// Takes the factors of a side, and of each compressed matrix whether it is poisoned.
    fn take(&mut self, side: Side, factors: &[u32], marks: &[u32]) {
        self.work.factors(side).copy_from_slice(bytemuck::cast_slice(factors));
        for ((index, _), words) in self.table.compressed().zip(marks.chunks_exact(mark::WORDS as usize)) {
            self.poisoned[index] = words[mark::POISONED as usize] != 0;
        }
    }
}

fn bytes_of(numbers: &[f32]) -> Cow<'_, [u8]> {
    bytemuck::cast_slice(numbers).into()
}

/// What a phase finds in the workspace: the table, and whether each matrix was sent and is poisoned.
fn table_of<'a>(plan: &LowRankPlan, marks: impl Iterator<Item = [bool; 2]>) -> [(Role, u64, Cow<'a, [u8]>); 2] {
    // The other marks are of a state that is on the device.
    let marks: Vec<u32> = marks.flat_map(|[sent, poisoned]| [sent.into(), poisoned.into(), 0, 0]).collect();
    let of = |words: &[u32]| Cow::Owned(little_endian(words).into_owned());
    [(Role::Workspace, 0, of(&plan.table)), (Role::Workspace, 4 * plan.layout.marks, of(&marks))]
}

/// Where the marks of the compressed matrices are.
fn marks_of(plan: &LowRankPlan, table: &Table) -> (Role, u64, usize) {
    (Role::Workspace, 4 * plan.layout.marks, table.compressed().count() * mark::WORDS as usize)
}

/// The elements of the compressed matrices, neighbours together.
fn runs(table: &Table) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (_, part) in table.compressed() {
        let next = part.first..part.first + part.elements();
        match runs.last_mut() {
            Some(last) if last.end == next.start => last.end = next.end,
            _ => runs.push(next),
        }
    }
    runs
}
