//! Selecting the entries of sparse payloads, and decoding them.

use std::borrow::Cow;

use super::{Runner, dense};
use crate::backend::cpu::Cpu;
use crate::codec::topk::{Select, Sought, SparsePlan, TopK};
use crate::embed::{
    CountAbove, HostSlice, Measures, ScanBuffers, Scatter, ScatterBuffers, Sift, SiftBuffers, SourceBuffers,
};
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, EncodePlan};
use crate::seed::Seed;
use crate::sparse::payload::SparsePayload;
use crate::sparse::select::SelectPlan;
use crate::sparse::values::{everything, is_more_than_all, own_halves, plain_values, refuse, rest};
use crate::sparse::{ENTRIES, Entries, STATISTICS, Source, estimate};
use crate::view::PayloadView;
use crate::wire::ValueFormat;
use crate::words::{little_endian, reserved, zeros};

/// The entries of largest magnitude.
pub(crate) async fn encode(
    on: Runner<'_>,
    codec: &TopK,
    gradient: Gradient<'_>,
    seed: Seed,
) -> Result<SparsePayload, Error> {
    let plan = codec.plan(gradient.len(), gradient.dtype(), false)?;
    let chosen = choose(on, &plan, gradient.into(), None).await?;
    let values = match own_halves(&plan, gradient, &chosen.indices)? {
        Some(values) => values,
        None => write_values(on, &plan, &chosen.bits, false, seed).await?,
    };
    SparsePayload::seal(plan.header(chosen.indices.len()), chosen.indices, &values)
}

/// The entries of gradient + residual that are largest; the residual becomes what was not sent, if the sum is finite.
pub(crate) async fn encode_with_feedback(
    on: Runner<'_>,
    codec: &TopK,
    gradient: Gradient<'_>,
    residual: &mut [f32],
    seed: Seed,
) -> Result<SparsePayload, Error> {
    let plan = codec.plan(gradient.len(), gradient.dtype(), true)?;
    Error::expect_len("residual", "elements", residual.len(), plan.n)?;
    let source = Source { gradient, residual: Some(residual) };
    if let Some(cpu) = on.place().cpu() {
        let fed = encode_fed(on, &plan, source, None, seed).await?;
        // Nothing fails from here on.
        if fed.is_finite(&plan, source) {
            cpu.add_to(gradient, residual);
            fed.leave_in(residual);
        }
        return Ok(fed.payload);
    }
    let mut next = zeros(plan.n, "a residual")?;
    let fed = encode_fed(on, &plan, source, Some(&mut next), seed).await?;
    if fed.is_finite(&plan, source) {
        fed.leave_in(&mut next);
        residual.copy_from_slice(&next);
    }
    Ok(fed.payload)
}

/// As [`encode_with_feedback`], with the new residual in `next`, whether it is finite or not. If this fails, that
/// memory may hold anything.
pub(crate) async fn encode_sums(
    on: Runner<'_>,
    codec: &TopK,
    gradient: Gradient<'_>,
    residual: &[f32],
    next: &mut [f32],
    seed: Seed,
) -> Result<SparsePayload, Error> {
    let plan = codec.plan(gradient.len(), gradient.dtype(), true)?;
    Error::expect_len("residual", "elements", residual.len(), plan.n)?;
    let source = Source { gradient, residual: Some(residual) };
    let fed = encode_fed(on, &plan, source, Some(&mut *next), seed).await?;
    fed.leave_in(next);
    Ok(fed.payload)
}

/// The payload of gradient + residual, and what it leaves. The sums are written as [`select`] says.
async fn encode_fed(
    on: Runner<'_>,
    plan: &SparsePlan,
    source: Source<'_>,
    sums: Option<&mut [f32]>,
    seed: Seed,
) -> Result<Fed, Error> {
    // Whether the quantizer takes that many, before anything is read.
    plan.quantizer(plan.most() as usize, true)?;
    let Entries { indices, bits } = choose(on, plan, source, sums).await?;
    let values = write_values(on, plan, &bits, true, seed).await?;
    let payload = SparsePayload::seal(plan.header(indices.len()), indices, &values)?;
    let decoded = match payload.header().values {
        ValueFormat::Plain(_) => Vec::new(),
        ValueFormat::Payload => values_of(on, &payload).await?,
    };
    Ok(Fed { payload, bits, decoded })
}

/// The entries that are kept; the sums are written as [`select`] says.
async fn choose(
    on: Runner<'_>,
    plan: &SparsePlan,
    source: Source<'_>,
    mut sums: Option<&mut [f32]>,
) -> Result<Entries, Error> {
    let entries = match plan.sought {
        Some(sought) => searched(on, plan, sought, source, sums.as_deref_mut()).await?,
        None => select(on, plan, source, sums.as_deref_mut()).await?,
    };
    if is_more_than_all(plan, &entries) {
        return everything(sums.map_or(source, |sums| Gradient::F32(sums).into()));
    }
    Ok(entries)
}

/// The entries that a search finds, as [`choose`].
async fn searched(
    on: Runner<'_>,
    plan: &SparsePlan,
    sought: Sought,
    source: Source<'_>,
    mut sums: Option<&mut [f32]>,
) -> Result<Entries, Error> {
    let plans = estimate::plans(sought, source.len(), source.gradient.dtype(), source.residual.is_some())?;
    let partials = match sought {
        // Entries are in the host's memory anyway.
        Sought::PerSign(_) if on.place().cpu().is_some() => Vec::new(),
        _ => partials(on, &plans, source).await?,
    };
    let mut search = estimate::search(sought, plan.n, &partials);
    let mut is_first = true;
    while let Some(threshold) = search.next() {
        let above = plan.above(threshold);
        let (from, sums) = match &mut sums {
            // Once they are written, they are what is selected from.
            Some(sums) if !is_first => (Gradient::F32(sums).into(), None),
            sums => (source, sums.as_deref_mut()),
        };
        // Entries cost the CPU no more than their number.
        if search.counts() && on.place().cpu().is_none() {
            search.count(count(on, &above, from, sums).await?);
        } else {
            search.take(select(on, &above, from, sums).await?);
        }
        is_first = false;
    }
    search.end()
}

/// Partial statistics of the source by each of these plans, whose tensor is one bucket.
async fn partials(on: Runner<'_>, plans: &[EncodePlan], source: Source<'_>) -> Result<Vec<Vec<u32>>, Error> {
    let mut partials: Vec<Vec<u32>> = Vec::with_capacity(plans.len());
    for bytes in plans.iter().map(EncodePlan::statistic_bytes) {
        partials.push(zeros((bytes.end - bytes.start) / 4, STATISTICS)?);
    }
    let bytes = partials.iter_mut().map(|words| bytemuck::cast_slice_mut(words));
    let work = Measures(plans);
    let buffers = ScanBuffers {
        gradient: source.gradient.into(),
        residual: source.residual.map(HostSlice::floats),
        workspace: HostSlice::parts_out(work.statistics().map(|range| range.start).zip(bytes).collect()),
    };
    on.run(work, buffers).await?;
    Ok(partials)
}

/// The entries that are kept. Of a source with a residual, gradient + residual is written to `sums`; but zero may
/// stand where an entry is kept that is sent as it is. Without `sums` it is written nowhere. If this fails, `sums`
/// may hold anything.
pub(crate) async fn select(
    on: Runner<'_>,
    plan: &SparsePlan,
    source: Source<'_>,
    sums: Option<&mut [f32]>,
) -> Result<Entries, Error> {
    // Where a threshold keeps so much that all is sent, the sums are needed as they are.
    let exact = plan.is_exact() && !matches!(plan.select, Select::Above(_));
    let select = SelectPlan::new(&plan.select, plan.n, source.gradient.dtype(), source.residual.is_some(), exact);
    select_by(on, &select, plan, source, sums).await
}

/// As [`select`], by a plan that says what a device takes off the residual, and when.
pub(crate) async fn select_by(
    on: Runner<'_>,
    select: &SelectPlan,
    plan: &SparsePlan,
    source: Source<'_>,
    sums: Option<&mut [f32]>,
) -> Result<Entries, Error> {
    // What is not finite is largest. Where some of everything is kept, it is enough to look for it among what is,
    // and the gradient is read once more only to tell where it is first.
    let among_kept = plan.select.keeps_some_of_all();
    if plan.guarded && !among_kept {
        refuse(Cpu::first_not_finite(source))?;
    }
    let mut entries = Entries::default();
    let table = little_endian(select.table());
    let buffers = SiftBuffers {
        source: source_buffers(source, sums, HostSlice::In(&table)),
        indices: HostSlice::grown(&mut entries.indices),
        values: HostSlice::grown(&mut entries.bits),
    };
    // SAFETY: the table is the plan's own.
    unsafe { on.run_trusting(Sift { plan, select }, buffers).await? };
    if plan.guarded && among_kept && entries.bits.iter().any(|bits| !f32::from_bits(*bits).is_finite()) {
        refuse(Cpu::first_not_finite(source))?;
    }
    Ok(entries)
}

/// How many elements reach the plan's threshold. Of a source with a residual, gradient + residual is written to
/// `sums`. Nothing is looked for that is not finite. If this fails, `sums` may hold anything.
async fn count(on: Runner<'_>, plan: &SparsePlan, source: Source<'_>, sums: Option<&mut [f32]>) -> Result<u64, Error> {
    let select = SelectPlan::new(&plan.select, plan.n, source.gradient.dtype(), source.residual.is_some(), false);
    let (table, mut count) = (little_endian(select.table()), [0u32]);
    let workspace =
        HostSlice::parts_both(vec![(0, &table)], vec![(select.total_at(), bytemuck::cast_slice_mut(&mut count))]);
    let buffers = source_buffers(source, sums, workspace);
    // SAFETY: the table is the plan's own.
    unsafe { on.run_trusting(CountAbove { plan, select: &select }, buffers).await? };
    Ok(count[0].into())
}

/// The values of entries as the plan sends them.
pub(crate) async fn write_values<'b>(
    on: Runner<'_>,
    plan: &SparsePlan,
    bits: &'b [u32],
    feedback: bool,
    seed: Seed,
) -> Result<Cow<'b, [u8]>, Error> {
    if let Some(values) = plain_values(plan.values, bits)? {
        return Ok(values);
    }
    let mut values: Vec<f32> = reserved(bits.len(), ENTRIES)?;
    values.extend(bits.iter().map(|b| f32::from_bits(*b)));
    Ok(match plan.quantizer(values.len(), feedback)? {
        Some(q) => dense::encode(on, &q, Gradient::F32(&values), &mut [], seed).await?.into_bytes().into(),
        None => Cow::default(),
    })
}

/// The values of a payload's entries, as f32.
pub(crate) async fn values_of(on: Runner<'_>, payload: &SparsePayload) -> Result<Vec<f32>, Error> {
    if let Some(values) = payload.plain_values()? {
        return Ok(values);
    }
    let inner = PayloadView::from_bytes(payload.value_part())?;
    let mut values = zeros(inner.header().n, ENTRIES)?;
    dense::decode(on, &[inner], DecodeMode::Write, &mut values).await?;
    Ok(values)
}

/// Over zeros, or weighted onto what `output` holds.
pub(crate) async fn scatter(
    on: Runner<'_>,
    payload: &SparsePayload,
    weight: Option<f32>,
    output: &mut [f32],
) -> Result<(), Error> {
    let values = values_of(on, payload).await?;
    let work = Scatter { entries: values.len() as u64, elements: output.len() as u64, weight };
    let buffers = ScatterBuffers {
        indices: HostSlice::In(bytemuck::cast_slice(payload.indices())),
        values: HostSlice::floats(&values),
        output: if weight.is_some() { output.into() } else { HostSlice::floats_out(output) },
    };
    // SAFETY: the indices of a payload rise, and so none is there twice.
    unsafe { on.run_trusting(work, buffers).await }
}

/// What entries are selected from, and where the sums go.
fn source_buffers<'h>(
    source: Source<'h>,
    sums: Option<&'h mut [f32]>,
    workspace: HostSlice<'h>,
) -> SourceBuffers<HostSlice<'h>> {
    let sums = sums.map(|sums| (0, sums));
    let residual = source.residual.map(|residual| HostSlice::floats_apart(residual, sums));
    SourceBuffers { gradient: source.gradient.into(), residual, workspace }
}

/// The payload of gradient + residual.
struct Fed {
    payload: SparsePayload,
    /// The sums that were chosen.
    bits: Vec<u32>,
    /// The values that the payload decodes to, if they are quantized.
    decoded: Vec<f32>,
}

impl Fed {
    /// Whether gradient + residual is finite. A plan that refuses what is not has looked for it.
    fn is_finite(&self, plan: &SparsePlan, source: Source<'_>) -> bool {
        if plan.guarded {
            return true;
        }
        // What is not finite is largest.
        if plan.select.keeps_some_of_all() {
            return self.bits.iter().all(|bits| f32::from_bits(*bits).is_finite());
        }
        Cpu::first_not_finite(source).is_none()
    }

    /// Leaves in the sums what was not sent of the entries.
    fn leave_in(&self, sums: &mut [f32]) {
        let entries = self.payload.indices().iter().zip(&self.bits).enumerate();
        match self.payload.plain_value() {
            Some(value) => {
                entries.for_each(|(entry, (index, bits))| sums[*index as usize] = rest(*bits, value(entry)));
            }
            None => {
                let sent = entries.zip(&self.decoded);
                sent.for_each(|((_, (index, bits)), sent)| sums[*index as usize] = rest(*bits, *sent));
            }
        }
    }
}
