//! Selecting and scattering on a device that runs passes.

use gradwire_kernels::params::{ScatterParams, THREADS, scatter_flags};

use super::select::SelectPlan;
use crate::backend::cpu::Entries;
use crate::codec::Codec;
use crate::codec::topk::{Select, SparsePlan};
use crate::codec::uniform::Uniform;
use crate::device::{Device, refuse_not_finite};
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::plan::{Bindings, EncodePlan, Kernel, Limits, NonFinite, Params, Pass, Role, STATUS_BYTES, Sizes, Span};
use crate::session::Session;
use crate::sparse::ValueFormat;

/// Entries of a part of a payload begin at multiples of this many, which are 256 bytes.
const ENTRIES: u64 = 64;

impl Device {
    /// The entries that are kept. With a residual, `sums` becomes gradient + residual, and zero where a kept entry is sent
    /// as it is; `sums` holds the residual before.
    pub(super) fn select(
        &self,
        plan: &SparsePlan,
        gradient: Gradient<'_>,
        sums: Option<&mut [f32]>,
    ) -> Result<Entries, Error> {
        // Where a threshold keeps so much that all is sent, the sums are needed as they are.
        let exact = plan.values == ValueFormat::Plain(Dtype::F32) && !matches!(plan.select, Select::Above(_));
        let select = SelectPlan::new(&plan.select, plan.n, gradient.dtype(), sums.is_some(), exact);
        self.select_by(&select, plan, gradient, sums)
    }

    /// As [`Device::select`], by a plan that says what is taken off the residual, and when.
    pub(super) fn select_by(
        &self,
        select: &SelectPlan,
        plan: &SparsePlan,
        gradient: Gradient<'_>,
        sums: Option<&mut [f32]>,
    ) -> Result<Entries, Error> {
        let limits = self.limits();
        let (n, dtype) = (gradient.len(), gradient.dtype());
        let scan = if plan.guarded { scan_passes(n, dtype, sums.is_some(), &limits)? } else { Vec::new() };
        let passes = select.passes(&limits)?;
        if passes.is_empty() && scan.is_empty() {
            return Ok(Entries::default());
        }
        let mut session = self.session(select.sizes())?;
        session.write(Role::Input, 0, gradient.as_bytes())?;
        if let Some(sums) = &sums {
            session.write(Role::Residual, 0, bytemuck::cast_slice(sums))?;
        }
        let first_not_finite = |session: &mut dyn Session| {
            session.run(&scan)?;
            let mut status = [0u32; STATUS_BYTES as usize / 4];
            session.read(Role::Status, 0, bytemuck::cast_slice_mut(&mut status))?;
            refuse_not_finite(status[0])
        };
        // What is not finite is largest. Where some of everything is kept, it is enough to look for it among what is, and the
        // gradient is read once more only to tell where it is first.
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
        let [mut indices, mut bits] = [(); 2].map(|()| vec![0u32; count[0] as usize]);
        session.read(Role::Indices, 0, bytemuck::cast_slice_mut(&mut indices))?;
        session.read(Role::Values, 0, bytemuck::cast_slice_mut(&mut bits))?;
        if plan.guarded && among_kept && bits.iter().any(|b| !f32::from_bits(*b).is_finite()) {
            if let Some(sums) = &sums {
                session.write(Role::Residual, 0, bytemuck::cast_slice(sums))?;
            }
            first_not_finite(&mut *session)?;
        }
        if let Some(sums) = sums {
            session.read(Role::Residual, 0, bytemuck::cast_slice_mut(sums))?;
        }
        Ok(Entries { indices, bits })
    }

    /// Writes entries over zeros, or adds them weighted to what `output` holds.
    pub(super) fn scatter_passes(
        &self,
        indices: &[u32],
        values: &[f32],
        weight: Option<f32>,
        output: &mut [f32],
    ) -> Result<(), Error> {
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
}

impl Device {
    /// Writes the sum of several payloads' entries, each weighted and added in order onto zeros. Where this fails, `output`
    /// is as it was.
    pub(super) fn scatter_sum(
        &self,
        payloads: &[(&[u32], &[f32])],
        weight: f32,
        output: &mut [f32],
    ) -> Result<(), Error> {
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
        let mut sums = vec![0.0f32; output.len()];
        session.read(Role::Output, 0, bytemuck::cast_slice_mut(&mut sums))?;
        output.copy_from_slice(&sums);
        Ok(())
    }
}

/// Whether workgroups of these passes wait for one another.
pub(super) fn waits(passes: &[Pass]) -> bool {
    passes.iter().any(|pass| pass.kernel == Kernel::TopKRest)
}

/// The error that the word stands for in which workgroups leave that they waited in vain.
pub(super) fn refuse_stuck(word: u32) -> Result<(), Error> {
    if word == 0 { Ok(()) } else { Err(Error::Stuck) }
}

/// The passes that look for an element that is not finite.
pub(super) fn scan_passes(n: usize, dtype: Dtype, feedback: bool, limits: &Limits) -> Result<Vec<Pass>, Error> {
    // The scan does not depend on the codec.
    let plan = Uniform::bits(1).non_finite(NonFinite::Error).plan(n, dtype)?;
    EncodePlan { feedback, ..plan }.finite_scan(limits)
}

pub(super) fn scatter(entries: u64, weight: Option<f32>, elements: u64, limits: &Limits) -> Result<Vec<Pass>, Error> {
    let mut passes = Vec::new();
    let most = limits.binding_bytes / 4 / ENTRIES * ENTRIES;
    let per_pass = most.min(u64::from(limits.groups) * u64::from(THREADS));
    if per_pass == 0 {
        let (found, needed) = (limits.binding_bytes, 4 * ENTRIES);
        return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found, needed });
    }
    let span = |first: u64, count: u64| Span { offset: 4 * first, bytes: 4 * count };
    if elements == 0 {
        return Ok(passes);
    }
    if weight.is_none() {
        let bindings = Bindings { output: span(0, elements), ..Bindings::default() };
        let params = Params::Scatter(ScatterParams::default());
        passes.push(Pass { kernel: Kernel::Clear, params, bindings, groups: 1 });
    }
    for first in (0..elements).step_by(most as usize) {
        let bound = most.min(elements - first);
        for entry in (0..entries).step_by(per_pass as usize) {
            let count = per_pass.min(entries - entry);
            let params = ScatterParams {
                entries: count as u32,
                first: first as u32,
                bound: bound as u32,
                flags: weight.map_or(0, |_| scatter_flags::ACCUMULATE),
                weight: weight.unwrap_or(0.0).to_bits(),
                reserved: [0; 3],
            };
            let bindings = Bindings {
                output: span(first, bound),
                indices: span(entry, count),
                values: span(entry, count),
                ..Bindings::default()
            };
            let groups = count.div_ceil(THREADS.into()) as u32;
            passes.push(Pass { kernel: Kernel::Scatter, params: Params::Scatter(params), bindings, groups });
        }
    }
    Ok(passes)
}
