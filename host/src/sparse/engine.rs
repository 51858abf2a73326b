//! What a backend does with entries of a gradient.

use super::entries::{ENTRIES, Entries, Source};
use super::lazy::LazyResidual;
use super::passes::{refuse_stuck, scan_passes, scatter, waits};
use super::select::SelectPlan;
use super::settle::settle;
use crate::codec::topk::{Select, SparsePlan};
use crate::error::Error;
use crate::plan::{EncodePlan, Role, STATUS_BYTES, Sizes, refuse_not_finite};
use crate::session::{Session, Sessions};
use crate::words::zeros;

/// What the memory of statistics is for, in an error.
pub(crate) const STATISTICS: &str = "statistics of the gradient";

/// What a backend does with a gradient of which a few entries are kept.
pub(crate) trait Sparse {
    /// The entries that are kept. Of a source with a residual, gradient + residual is written to `sums`; but zero may
    /// stand where an entry is kept that is sent as it is. On the CPU `sums` may be `None`. If this fails, `sums` may
    /// hold anything.
    fn select(&self, plan: &SparsePlan, source: Source<'_>, sums: Option<&mut [f32]>) -> Result<Entries, Error>;

    /// Partial statistics of the source by each of these plans, whose tensor is one bucket.
    fn partials(&self, plans: &[EncodePlan], source: Source<'_>) -> Result<Vec<Vec<u32>>, Error>;

    /// Selections from a residual that is late, where that saves anything.
    fn late(&self) -> Option<&dyn Late>;

    /// Takes off a residual what is late.
    fn settle(&self, residual: &mut LazyResidual) -> Result<(), Error>;

    /// Writes entries over zeros, or adds them weighted to what `output` holds.
    fn scatter(&self, indices: &[u32], values: &[f32], weight: Option<f32>, output: &mut [f32]) -> Result<(), Error>;

    /// Writes the sum of several payloads' entries, each weighted and added in order onto zeros. Where this fails,
    /// `output` is as it was.
    fn scatter_sum(&self, payloads: &[(&[u32], &[f32])], weight: f32, output: &mut [f32]) -> Result<(), Error>;
}

/// What devices do beside that: selections by a plan that says what is taken off the residual, and when; and counts.
pub(crate) trait Late {
    /// As [`Sparse::select`].
    fn select_by(
        &self,
        select: &SelectPlan,
        plan: &SparsePlan,
        source: Source<'_>,
        sums: Option<&mut [f32]>,
    ) -> Result<Entries, Error>;

    /// How many elements reach the plan's threshold. Of a source with a residual, gradient + residual is written to
    /// `sums`. Nothing is looked for that is not finite. If this fails, `sums` may hold anything.
    fn count(&self, plan: &SparsePlan, source: Source<'_>, sums: Option<&mut [f32]>) -> Result<u64, Error>;
}

impl<T: Sessions> Sparse for T {
    fn select(&self, plan: &SparsePlan, source: Source<'_>, sums: Option<&mut [f32]>) -> Result<Entries, Error> {
        // Where a threshold keeps so much that all is sent, the sums are needed as they are.
        let exact = plan.is_exact() && !matches!(plan.select, Select::Above(_));
        let select = SelectPlan::new(&plan.select, plan.n, source.gradient.dtype(), source.residual.is_some(), exact);
        self.select_by(&select, plan, source, sums)
    }

    fn partials(&self, plans: &[EncodePlan], source: Source<'_>) -> Result<Vec<Vec<u32>>, Error> {
        let Source { gradient, residual } = source;
        let limits = self.limits();
        let most = plans.iter().map(|plan| plan.scratch_bytes() as u64).max().unwrap_or(0);
        let input = gradient.as_bytes();
        let sums = residual.map_or(0, |residual| 4 * residual.len() as u64);
        let sizes = Sizes([(input.len() as u64).next_multiple_of(4), sums, 0, 0, most, STATUS_BYTES, 0, 0, 0]);
        let mut session = self.session(sizes)?;
        session.write(Role::Input, 0, input)?;
        if let Some(residual) = residual {
            session.write(Role::Residual, 0, bytemuck::cast_slice(residual))?;
        }
        let of_plan = |plan: &EncodePlan| {
            session.run(&plan.statistics(&limits)?)?;
            let bytes = plan.statistic_bytes();
            let mut words = zeros((bytes.end - bytes.start) / 4, STATISTICS)?;
            session.read(Role::Workspace, bytes.start, bytemuck::cast_slice_mut(&mut words))?;
            Ok(words)
        };
        plans.iter().map(of_plan).collect()
    }

    fn late(&self) -> Option<&dyn Late> {
        Some(self)
    }

    fn settle(&self, residual: &mut LazyResidual) -> Result<(), Error> {
        let (table, passes) = settle(residual.pending(), &self.limits())?;
        let (bytes, words) = (4 * residual.len() as u64, 4 * table.len() as u64);
        let mut session = self.session(Sizes([0, bytes, 0, 0, words, 0, 0, 0, 0]))?;
        session.write(Role::Residual, 0, bytemuck::cast_slice(residual.sums()))?;
        session.write(Role::Workspace, 0, &crate::words::little_endian(&table))?;
        // SAFETY: all passes, in a session of their own whose workspace is their table.
        unsafe { session.run_trusted(&passes)? };
        let mut settled = zeros(residual.len() as u64, "a residual")?;
        session.read(Role::Residual, 0, bytemuck::cast_slice_mut(&mut settled))?;
        *residual = LazyResidual::from(settled);
        Ok(())
    }

    fn scatter(&self, indices: &[u32], values: &[f32], weight: Option<f32>, output: &mut [f32]) -> Result<(), Error> {
        let passes = scatter(indices.len() as u64, weight, output.len() as u64, &self.limits())?;
        if passes.is_empty() {
            return Ok(());
        }
        let [entries, elements] = [indices.len(), output.len()].map(|len| 4 * len as u64);
        let mut session = self.session(Sizes([0, 0, 0, 0, 0, 0, elements, entries, entries]))?;
        session.write(Role::Indices, 0, bytemuck::cast_slice(indices))?;
        session.write(Role::Values, 0, bytemuck::cast_slice(values))?;
        if weight.is_some() {
            session.write(Role::Output, 0, bytemuck::cast_slice(output))?;
        }
        // SAFETY: the indices of a payload, or of a merge, rise, and so none is there twice.
        unsafe { session.run_trusted(&passes)? };
        session.read(Role::Output, 0, bytemuck::cast_slice_mut(output))
    }

    fn scatter_sum(&self, payloads: &[(&[u32], &[f32])], weight: f32, output: &mut [f32]) -> Result<(), Error> {
        let (limits, elements) = (self.limits(), output.len() as u64);
        if elements == 0 {
            return Ok(());
        }
        let entries = payloads.iter().map(|(indices, _)| 4 * indices.len() as u64).max().unwrap_or(0);
        let mut session = self.session(Sizes([0, 0, 0, 0, 0, 0, 4 * elements, entries, entries]))?;
        session.run(&scatter(0, None, elements, &limits)?)?;
        for (indices, values) in payloads {
            session.write(Role::Indices, 0, bytemuck::cast_slice(indices))?;
            session.write(Role::Values, 0, bytemuck::cast_slice(values))?;
            // SAFETY: the indices of a payload rise, and so none is there twice.
            unsafe { session.run_trusted(&scatter(indices.len() as u64, Some(weight), elements, &limits)?)? };
        }
        // Read whole before anything is written: a device may fail half way.
        let mut sums: Vec<f32> = zeros(elements, "the sum of payloads")?;
        session.read(Role::Output, 0, bytemuck::cast_slice_mut(&mut sums))?;
        output.copy_from_slice(&sums);
        Ok(())
    }
}

impl<T: Sessions> Late for T {
    fn select_by(
        &self,
        select: &SelectPlan,
        plan: &SparsePlan,
        source: Source<'_>,
        sums: Option<&mut [f32]>,
    ) -> Result<Entries, Error> {
        let limits = self.limits();
        let Source { gradient, residual } = source;
        let (n, dtype) = (gradient.len(), gradient.dtype());
        let scan = if plan.guarded { scan_passes(n, dtype, residual.is_some(), &limits)? } else { Vec::new() };
        let passes = select.passes(&limits)?;
        if passes.is_empty() && scan.is_empty() {
            if let (Some(residual), Some(sums)) = (residual, sums) {
                sums.copy_from_slice(residual);
            }
            return Ok(Entries::default());
        }
        let mut session = self.session(select.sizes())?;
        session.write(Role::Input, 0, gradient.as_bytes())?;
        if let Some(residual) = residual {
            session.write(Role::Residual, 0, bytemuck::cast_slice(residual))?;
        }
        let first_not_finite = |session: &mut dyn Session| {
            session.run(&scan)?;
            let mut status = [0u32; STATUS_BYTES as usize / 4];
            session.read(Role::Status, 0, bytemuck::cast_slice_mut(&mut status))?;
            refuse_not_finite(status[0])
        };
        // What is not finite is largest. Where some of everything is kept, it is enough to look for it among what is,
        // and the gradient is read once more only to tell where it is first.
        let among_kept = plan.select.keeps_some_of_all();
        if plan.guarded && !among_kept {
            first_not_finite(&mut *session)?;
        }
        session.write(Role::Workspace, 0, &crate::words::little_endian(select.table()))?;
        // SAFETY: all passes of the plan, in order, in a session of their own whose workspace begins with its table.
        unsafe { session.run_trusted(&passes)? };
        if waits(&passes) {
            let mut stuck = [0u32];
            session.read(Role::Workspace, select.stuck_at(), bytemuck::cast_slice_mut(&mut stuck))?;
            refuse_stuck(stuck[0])?;
        }
        let mut count = [select.entries() as u32];
        if let Select::Above(_) = plan.select {
            session.read(Role::Workspace, select.total_at(), bytemuck::cast_slice_mut(&mut count))?;
        }
        let (mut indices, mut bits) = (zeros(count[0].into(), ENTRIES)?, zeros::<u32>(count[0].into(), ENTRIES)?);
        session.read(Role::Indices, 0, bytemuck::cast_slice_mut::<u32, u8>(&mut indices))?;
        session.read(Role::Values, 0, bytemuck::cast_slice_mut(&mut bits))?;
        if plan.guarded && among_kept && bits.iter().any(|b| !f32::from_bits(*b).is_finite()) {
            if let Some(residual) = residual {
                session.write(Role::Residual, 0, bytemuck::cast_slice(residual))?;
            }
            first_not_finite(&mut *session)?;
        }
        if let Some(sums) = sums {
            session.read(Role::Residual, 0, bytemuck::cast_slice_mut(sums))?;
        }
        Ok(Entries { indices, bits })
    }

    fn count(&self, plan: &SparsePlan, source: Source<'_>, sums: Option<&mut [f32]>) -> Result<u64, Error> {
        let Source { gradient, residual } = source;
        let select = SelectPlan::new(&plan.select, plan.n, gradient.dtype(), residual.is_some(), false);
        let passes = select.counting_passes(&self.limits())?;
        let mut sizes = select.sizes();
        for role in [Role::Indices, Role::Values] {
            sizes.0[role as usize] = 0;
        }
        let mut session = self.session(sizes)?;
        session.write(Role::Input, 0, gradient.as_bytes())?;
        if let Some(residual) = residual {
            session.write(Role::Residual, 0, bytemuck::cast_slice(residual))?;
        }
        session.write(Role::Workspace, 0, &crate::words::little_endian(select.table()))?;
        // SAFETY: all passes of the plan but those that write entries, in order, in a session of their own whose
        // workspace begins with its table.
        unsafe { session.run_trusted(&passes)? };
        let mut count = [0u32];
        session.read(Role::Workspace, select.total_at(), bytemuck::cast_slice_mut(&mut count))?;
        if let Some(sums) = sums {
            session.read(Role::Residual, 0, bytemuck::cast_slice_mut(sums))?;
        }
        Ok(count[0].into())
    }
}
