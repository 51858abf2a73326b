//! The phases of a step on a device that runs passes, for a state that lies in this machine's memory. A phase that fails has
//! written nothing.

use std::ops::Range;

use gradwire_kernels::params::mark;

use super::passes::LowRankPlan;
use super::{LowRankState, Side, Table};
use crate::device::{Device, refuse_not_finite};
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::plan::STATUS_BYTES;
use crate::session::{Role, Session};
use crate::words::little_endian;

impl Device {
    /// Makes the step's factor of the side `known`, `input`, orthonormal, forms gradient + residual of the compressed matrices
    /// in the state's sums, and writes their product as it is sent.
    pub(super) fn begin_passes(
        &self,
        state: &mut LowRankState,
        gradient: Gradient<'_>,
        known: Side,
        input: &mut [f32],
        sent: &mut [f32],
    ) -> Result<(), Error> {
        let (table, guarded, feedback) = (state.table.clone(), state.codec.is_guarded(), state.codec.feedback());
        let odd = if guarded { state.plain_not_finite(gradient) } else { None };
        let refuse = || odd.map_or(Ok(()), |index| Err(Error::NotFinite { index }));
        let plan = LowRankPlan::new(&table, gradient.dtype(), feedback, false);
        if plan.is_empty() {
            return refuse();
        }
        let limits = self.limits();
        let passes = plan.begin(known, state.stream(), &limits)?;
        let mut session = self.session(plan.sizes())?;
        session.write(Role::Input, 0, gradient.as_bytes())?;
        session.write(Role::Residual, 0, bytemuck::cast_slice(&state.sums))?;
        write_table(&mut *session, &plan, table.compressed().map(|(index, _)| [state.sent[index], false]))?;
        let layout = &plan.layout;
        for (at, factors) in layout.kept.into_iter().zip([&state.left, &state.right]).filter(|_| feedback) {
            session.write(Role::Workspace, 4 * at, bytemuck::cast_slice(factors))?;
        }
        session.write(Role::Workspace, 4 * layout.work[known as usize], bytemuck::cast_slice(input))?;
        if guarded {
            session.run(&plan.scan(&limits)?)?;
            let mut status = [0u32; STATUS_BYTES as usize / 4];
            session.read(Role::Status, 0, bytemuck::cast_slice_mut(&mut status))?;
            match (refuse_not_finite(status[0]), odd) {
                (Err(Error::NotFinite { index }), Some(odd)) => Err(Error::NotFinite { index: index.min(odd) }),
                (found, _) => found.and_then(|()| refuse()),
            }?;
        }
        session.run(&passes)?;
        let factor = read(&mut *session, Role::Workspace, layout.work[known as usize], input.len())?;
        let product = read(&mut *session, Role::Values, 0, sent.len())?;
        let formed = read_runs(&mut *session, Role::Residual, &table)?;
        // Nothing fails from here on.
        formed.into_iter().for_each(|(run, sums)| state.sums[run].copy_from_slice(&sums));
        input.copy_from_slice(&factor);
        sent.copy_from_slice(&product);
        Ok(())
    }

    /// Takes the step's factors of the side `known`, makes them orthonormal, and writes the product with what was formed as it
    /// is sent.
    pub(super) fn advance_passes(
        &self,
        state: &mut LowRankState,
        reduced: &[f32],
        known: Side,
        sent: &mut [f32],
    ) -> Result<(), Error> {
        let table = state.table.clone();
        let plan = LowRankPlan::new(&table, Dtype::F32, true, false);
        if plan.is_empty() {
            return Ok(());
        }
        let passes = plan.advance(known, &self.limits())?;
        let mut session = self.session(plan.sizes())?;
        session.write(Role::Residual, 0, bytemuck::cast_slice(&state.sums))?;
        session.write(Role::Values, 0, bytemuck::cast_slice(&reduced[..plan.sent[known as usize] as usize]))?;
        write_table(&mut *session, &plan, table.compressed().map(|(index, _)| [false, state.poisoned[index]]))?;
        let at = plan.layout.work[known as usize];
        let count = state.work.factors(known).len();
        session.write(Role::Workspace, 4 * at, bytemuck::cast_slice(state.work.factors(known)))?;
        session.run(&passes)?;
        let taken = read(&mut *session, Role::Workspace, at, count)?;
        let poisoned = read_poisoned(&mut *session, &plan, &table)?;
        let product = read(&mut *session, Role::Values, 0, sent.len())?;
        *state.work.factors(known) = taken;
        poisoned.into_iter().for_each(|(index, poisoned)| state.poisoned[index] = poisoned);
        sent.copy_from_slice(&product);
        Ok(())
    }

    /// Takes the step's last factors, and writes L R^T of the compressed matrices.
    pub(super) fn finish_passes(
        &self,
        state: &mut LowRankState,
        reduced: &[f32],
        last: Side,
        output: &mut [f32],
    ) -> Result<(), Error> {
        let table = state.table.clone();
        let plan = LowRankPlan::new(&table, Dtype::F32, true, false);
        if plan.is_empty() {
            return Ok(());
        }
        let passes = plan.finish(last, &self.limits())?;
        let mut session = self.session(plan.sizes())?;
        session.write(Role::Values, 0, bytemuck::cast_slice(&reduced[..plan.sent[last as usize] as usize]))?;
        write_table(&mut *session, &plan, table.compressed().map(|(index, _)| [false, state.poisoned[index]]))?;
        for (at, factors) in plan.layout.work.into_iter().zip([&state.work.left, &state.work.right]) {
            session.write(Role::Workspace, 4 * at, bytemuck::cast_slice(factors))?;
        }
        session.run(&passes)?;
        let count = state.work.factors(last).len();
        let taken = read(&mut *session, Role::Workspace, plan.layout.work[last as usize], count)?;
        let poisoned = read_poisoned(&mut *session, &plan, &table)?;
        let written = read_runs(&mut *session, Role::Output, &table)?;
        *state.work.factors(last) = taken;
        poisoned.into_iter().for_each(|(index, poisoned)| state.poisoned[index] = poisoned);
        written.into_iter().for_each(|(run, values)| output[run].copy_from_slice(&values));
        Ok(())
    }
}

/// Writes what a phase finds in the workspace: the table, and whether each matrix was sent and is poisoned.
fn write_table(
    session: &mut dyn Session,
    plan: &LowRankPlan,
    marks: impl Iterator<Item = [bool; 2]>,
) -> Result<(), Error> {
    // The other marks are of a state that is on the device.
    let marks: Vec<u32> = marks.flat_map(|[sent, poisoned]| [sent.into(), poisoned.into(), 0, 0]).collect();
    session.write(Role::Workspace, 0, &little_endian(&plan.table))?;
    session.write(Role::Workspace, 4 * plan.layout.marks, &little_endian(&marks))
}

/// Reads numbers, from the one at `first` on.
fn read(session: &mut dyn Session, role: Role, first: u64, count: usize) -> Result<Vec<f32>, Error> {
    let mut numbers = vec![0.0; count];
    session.read(role, 4 * first, bytemuck::cast_slice_mut(&mut numbers))?;
    Ok(numbers)
}

/// Of each compressed matrix, its place among the tensors and whether it is poisoned.
fn read_poisoned(session: &mut dyn Session, plan: &LowRankPlan, table: &Table) -> Result<Vec<(usize, bool)>, Error> {
    let mut marks = vec![0u32; table.compressed().count() * mark::WORDS as usize];
    session.read(Role::Workspace, 4 * plan.layout.marks, bytemuck::cast_slice_mut(&mut marks))?;
    let poisoned = marks.chunks_exact(mark::WORDS as usize).map(|words| words[mark::POISONED as usize] != 0);
    Ok(table.compressed().map(|(index, _)| index).zip(poisoned).collect())
}

/// Elements, and what is there.
type Run = (Range<usize>, Vec<f32>);

/// Reads the elements of the compressed matrices, neighbours together.
fn read_runs(session: &mut dyn Session, role: Role, table: &Table) -> Result<Vec<Run>, Error> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (_, part) in table.compressed() {
        let next = part.first..part.first + part.elements();
        match runs.last_mut() {
            Some(last) if last.end == next.start => last.end = next.end,
            _ => runs.push(next),
        }
    }
    runs.into_iter().map(|run| Ok((run.clone(), read(session, role, run.start as u64, run.len())?))).collect()
}
