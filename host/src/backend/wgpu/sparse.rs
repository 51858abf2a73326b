//! Sparse payloads on WGPU without a wait, for where a thread may not wait: a browser's.

use std::borrow::Cow;

use crate::backend::cpu::Cpu;
use crate::backend::wgpu::Wgpu;
use crate::codec::topk::{Select, Sought, SparsePlan, TopK};
use crate::embed::{
    CountAbove, HostSlice, Measures, ScanBuffers, Scatter, ScatterBuffers, Sift, SiftBuffers, SourceBuffers,
};
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::plan::{DecodeMode, EncodePlan};
use crate::seed::Seed;
use crate::sparse::payload::SparsePayload;
use crate::sparse::select::SelectPlan;
use crate::sparse::values::{everything, is_more_than_all, own_halves, plain_values, refuse, rest};
use crate::sparse::{Entries, Source, estimate};
use crate::view::PayloadView;
use crate::wire::ValueFormat;
use crate::words::little_endian;

impl Wgpu {
    /// Keeps the entries of largest magnitude, without a wait in a browser: what
    /// [`Device::encode_sparse`](crate::Device::encode_sparse) makes, or with a residual what
    /// [`Device::encode_sparse_with_feedback`](crate::Device::encode_sparse_with_feedback) makes and leaves, bit for
    /// bit. Elsewhere the returned future waits for the device when it is polled.
    ///
    /// ```no_run
    /// # async fn run(gradient: &[f32], residual: &mut [f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::{Seed, TopK};
    /// let gradwire = Wgpu::open_async().await?;
    /// let seed = Seed::new(42);
    /// let sent = gradwire.encode_sparse_async(&TopK::fraction(0.01), gradient.into(), Some(residual), seed).await?;
    /// let mut sum = vec![0.0; gradient.len()];
    /// gradwire.decode_sparse_async(&sent, Some(0.5), &mut sum).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Device::encode_sparse_with_feedback`](crate::Device::encode_sparse_with_feedback). The residual is as it
    /// was whenever this fails.
    pub async fn encode_sparse_async(
        &self,
        codec: &TopK,
        gradient: Gradient<'_>,
        residual: Option<&mut [f32]>,
        seed: Seed,
    ) -> Result<SparsePayload, Error> {
        let feedback = residual.is_some();
        let plan = codec.plan(gradient.len(), gradient.dtype(), feedback)?;
        if let Some(residual) = &residual {
            Error::expect_len("residual", "elements", residual.len(), plan.n)?;
            // Whether the quantizer takes that many, before anything is read.
            plan.quantizer(plan.most() as usize, true)?;
        }
        let mut sums = residual.as_deref().map(<[f32]>::to_vec);
        let mut is_finite = true;
        if plan.guarded || feedback {
            // The gradient is in the host's memory, and on its way to the device is read there anyway.
            let first = Cpu::first_not_finite(Source { gradient, residual: sums.as_deref() });
            is_finite = first.is_none();
            refuse(first.filter(|_| plan.guarded))?;
        }
        let entries = match plan.sought {
            Some(sought) => self.searched(&plan, sought, gradient, sums.as_deref_mut()).await?,
            None => self.select_async(&plan, gradient, sums.as_deref_mut(), false).await?.0,
        };
        let chosen = if is_more_than_all(&plan, &entries) {
            everything(sums.as_deref().map_or(gradient, Gradient::F32).into())?
        } else {
            entries
        };
        let own = if feedback { None } else { own_halves(&plan, gradient, &chosen.indices)? };
        let plain = if own.is_some() { own } else { plain_values(plan.values, &chosen.bits)? };
        let values = match plain {
            Some(values) => values,
            None => self.quantized(&plan, &chosen.bits, feedback, seed).await?,
        };
        let header = plan.header(chosen.indices.len());
        let payload = SparsePayload::seal(header, chosen.indices, &values)?;
        if let (Some(residual), Some(mut sums), true) = (residual, sums, is_finite) {
            let sent = self.values_of(&payload).await?;
            for ((index, bits), sent) in payload.indices().iter().zip(&chosen.bits).zip(sent) {
                sums[*index as usize] = rest(*bits, sent);
            }
            residual.copy_from_slice(&sums);
        }
        Ok(payload)
    }

    /// Decodes a sparse payload without a wait in a browser: over zeros, or with a weight onto what `output` holds.
    ///
    /// # Errors
    /// As [`Device::decode_sparse_into`](crate::Device::decode_sparse_into). The output is as it was whenever this
    /// fails.
    pub async fn decode_sparse_async(
        &self,
        payload: &SparsePayload,
        weight: Option<f32>,
        output: &mut [f32],
    ) -> Result<(), Error> {
        let elements = payload.header().n;
        Error::expect_len("output", "elements", output.len(), elements)?;
        if elements == 0 {
            return Ok(());
        }
        let values = self.values_of(payload).await?;
        let entries = values.len() as u64;
        let indices = little_endian(payload.indices());
        let output = bytemuck::cast_slice_mut(output);
        let buffers = ScatterBuffers {
            indices: HostSlice::In(&indices),
            values: Gradient::F32(&values).into(),
            output: if weight.is_some() { HostSlice::InOut(output) } else { HostSlice::Out(output) },
        };
        self.run_async(Scatter { entries, elements, weight }, buffers).await
    }

    /// The entries that are kept, and their number; with `counts`, of a threshold, the number alone. With `sums`, which
    /// hold the residual, they are gradient + residual afterwards.
    async fn select_async(
        &self,
        plan: &SparsePlan,
        gradient: Gradient<'_>,
        sums: Option<&mut [f32]>,
        counts: bool,
    ) -> Result<(Entries, u64), Error> {
        let is_counted = matches!(plan.select, Select::Above(_));
        // Where a threshold keeps so much that all is sent, the sums are needed as they are.
        let exact = plan.values == ValueFormat::Plain(Dtype::F32) && !is_counted;
        let select = SelectPlan::new(&plan.select, plan.n, gradient.dtype(), sums.is_some(), exact);
        let table = little_endian(select.table());
        let (mut count, mut entries) = ([0; 4], Entries::default());
        let workspace = match counts {
            true => HostSlice::parts_both(vec![(0, &table)], vec![(select.total_at(), &mut count)]),
            false => HostSlice::In(&table),
        };
        let source = SourceBuffers { gradient: gradient.into(), residual: sums.map(HostSlice::from), workspace };
        if counts {
            self.run_async(CountAbove { plan, select: &select }, source).await?;
        } else {
            let indices = HostSlice::grown(&mut entries.indices);
            let values = HostSlice::grown(&mut entries.bits);
            self.run_async(Sift { plan, select: &select }, SiftBuffers { source, indices, values }).await?;
        }
        Ok((entries, u32::from_le_bytes(count).into()))
    }

    /// The entries that a search finds; with `sums` as [`Wgpu::select_async`].
    async fn searched(
        &self,
        plan: &SparsePlan,
        sought: Sought,
        gradient: Gradient<'_>,
        mut sums: Option<&mut [f32]>,
    ) -> Result<Entries, Error> {
        let plans = estimate::plans(sought, gradient.len(), gradient.dtype(), sums.is_some())?;
        let words = |plan: &EncodePlan| vec![0u32; plan.statistic_bytes().count() / 4];
        let mut partials: Vec<Vec<u32>> = plans.iter().map(words).collect();
        let bytes = partials.iter_mut().map(|words| bytemuck::cast_slice_mut(words));
        let work = Measures(&plans);
        let buffers = ScanBuffers {
            gradient: gradient.into(),
            residual: sums.as_deref().map(HostSlice::floats),
            workspace: HostSlice::parts_out(work.statistics().map(|range| range.start).zip(bytes).collect()),
        };
        self.run_async(work, buffers).await?;
        let mut search = estimate::search(sought, plan.n, &partials);
        let mut is_first = true;
        while let Some(threshold) = search.next() {
            let above = plan.above(threshold);
            let counts = search.counts();
            let (entries, reached) = match &mut sums {
                // Once they are written, they are what is selected from.
                Some(sums) if !is_first => self.select_async(&above, Gradient::F32(sums), None, counts).await?,
                sums => self.select_async(&above, gradient, sums.as_deref_mut(), counts).await?,
            };
            match counts {
                true => search.count(reached),
                false => search.take(entries),
            }
            is_first = false;
        }
        search.end()
    }

    /// Values as the codec quantizes them.
    async fn quantized(
        &self,
        plan: &SparsePlan,
        bits: &[u32],
        feedback: bool,
        seed: Seed,
    ) -> Result<Cow<'static, [u8]>, Error> {
        let Some(quantizer) = plan.quantizer(bits.len(), feedback)? else { return Ok(Cow::default()) };
        let values: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
        let payload = self.encode_async(&quantizer, Gradient::F32(&values), &mut [], seed).await?;
        Ok(payload.into_bytes().into())
    }

    /// The values of a payload's entries, as f32.
    async fn values_of(&self, payload: &SparsePayload) -> Result<Vec<f32>, Error> {
        if let Some(values) = payload.plain_values()? {
            return Ok(values);
        }
        let inner = PayloadView::from_bytes(payload.value_part())?;
        let mut values = vec![0.0; inner.header().n as usize];
        self.decode_async(&inner, DecodeMode::Write, &mut values).await?;
        Ok(values)
    }
}
