//! What a device does with sparse payloads.

use std::borrow::{Borrow, Cow};

use gradwire_kernels::arith::float::canonical;
use gradwire_kernels::arith::topk::key;

use crate::backend::cpu::Cpu;
use crate::backend::slices::{self, now};
use crate::codec::topk::{SparsePlan, TopK};
use crate::device::Device;
use crate::embed::{HostSlice, ScatterBuffers, Scatters, SettleBuffers, TakeOff};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::{Dtype, Gradient};
use crate::seed::Seed;
use crate::sparse::lazy::LazyResidual;
use crate::sparse::payload::SparsePayload;
use crate::sparse::select::{SelectPlan, Sent};
use crate::sparse::settle::settle;
use crate::sparse::values::{everything, is_more_than_all, refuse, rest};
use crate::sparse::{ENTRIES, Entries, Source};
use crate::wire::ValueFormat;
use crate::words::{little_endian, reserved, zeros};

impl Device {
    /// Keeps the entries of largest magnitude. The seed matters where values are quantized.
    ///
    /// # Errors
    /// [`Error::TooFew`] if more entries are asked for than there are, unless clamped; a setting out of range; more
    /// than 2^31 elements; an element that is not finite under `NonFinite::Error`; [`Error::Limit`] if the entries
    /// or the candidates are more than a device binds at once; [`Error::Backend`] if the device fails.
    pub fn encode_sparse<'g>(
        &self,
        codec: &TopK,
        gradient: impl Into<Gradient<'g>>,
        seed: Seed,
    ) -> Result<SparsePayload, Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::sparse::encode(self.runner(), codec, gradient.into(), seed))
    }

    /// Keeps the entries of gradient + residual that are largest, and leaves the rest in `residual`: the
    /// entries that were not kept, and what rounding or quantizing took from those that were.
    ///
    /// residual' = g + e - decode(encode(g + e)), with both operations rounded to f32; an entry that is sent as it is
    /// leaves exactly zero. The residual is up to date when this returns: there is nothing to materialise before a
    /// checkpoint. [`Device::encode_sparse_lazily`] spares a GPU the writing of those zeros.
    ///
    /// If an element of g + e is NaN or infinite, the payload is that of g + e, and the residual stays as it was: the
    /// step is one that its caller skips, and what overflowed does not come back in later ones.
    ///
    /// # Errors
    /// As [`Device::encode_sparse`]; [`Error::FeedbackDiverges`] for a quantizer of the values that feedback does not
    /// admit; [`Error::Length`] for a residual of another length. The residual is as it was whenever this fails.
    pub fn encode_sparse_with_feedback<'g>(
        &self,
        codec: &TopK,
        gradient: impl Into<Gradient<'g>>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<SparsePayload, Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::sparse::encode_with_feedback(self.runner(), codec, gradient.into(), residual, seed))
    }

    /// As [`Device::encode_sparse_with_feedback`], with the new residual in `next`, whether it is finite or not. If
    /// this fails, that memory may hold anything.
    pub(crate) fn encode_sums(
        &self,
        codec: &TopK,
        gradient: Gradient<'_>,
        residual: &[f32],
        next: &mut [f32],
        seed: Seed,
    ) -> Result<SparsePayload, Error> {
        now(slices::sparse::encode_sums(self.runner(), codec, gradient, residual, next, seed))
    }

    /// The values of entries as the plan sends them.
    pub(crate) fn write_values<'b>(
        &self,
        plan: &SparsePlan,
        bits: &'b [u32],
        feedback: bool,
        seed: Seed,
    ) -> Result<Cow<'b, [u8]>, Error> {
        now(slices::sparse::write_values(self.runner(), plan, bits, feedback, seed))
    }

    /// The values of a payload's entries, as f32.
    pub(crate) fn sparse_values(&self, payload: &SparsePayload) -> Result<Vec<f32>, Error> {
        now(slices::sparse::values_of(self.runner(), payload))
    }

    /// The gradient that a sparse payload holds: zeros but for its entries.
    ///
    /// Its length is the payload's word, up to 2^31 whatever the payload's size: of bytes that are not trusted, look at
    /// [`SparsePayload::len`] first, or decode into a buffer of the length that is expected.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for it, or the device fails.
    pub fn decode_sparse(&self, payload: &SparsePayload) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        // The length is the header's word, and may be 2^31 if there is no entry.
        let mut output = zeros(payload.header().n, "the decoded gradient")?;
        now(slices::sparse::scatter(self.runner(), payload, None, &mut output))?;
        Ok(output)
    }

    /// `output = decode(payload)`.
    ///
    /// # Errors
    /// [`Error::Length`] for an output of another length than the gradient; [`Error::Backend`] if the device fails.
    /// The output is then as it was.
    pub fn decode_sparse_into(&self, payload: &SparsePayload, output: &mut [f32]) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        Error::expect_len("output", "elements", output.len(), payload.header().n)?;
        now(slices::sparse::scatter(self.runner(), payload, None, output))
    }

    /// `output += weight * decode(payload)`. Entries that the payload does not hold are not touched.
    ///
    /// # Errors
    /// As [`Device::decode_sparse_into`].
    pub fn decode_sparse_add(&self, payload: &SparsePayload, weight: f32, output: &mut [f32]) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        Error::expect_len("output", "elements", output.len(), payload.header().n)?;
        now(slices::sparse::scatter(self.runner(), payload, Some(weight), output))
    }

    /// `output = weight * decode(payload)`: what [`Device::decode_sparse_sum`] makes of one payload.
    ///
    /// # Errors
    /// As [`Device::decode_sparse_into`].
    pub fn decode_sparse_weighted_into(
        &self,
        payload: &SparsePayload,
        weight: f32,
        output: &mut [f32],
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        self.decode_sparse_sum(&[payload], weight, output)
    }

    /// `output = weight * (decode(payloads[0]) + decode(payloads[1]) + ...)`.
    ///
    /// Each term is weighted, then added in the order of the slice, so that the result is that of
    /// [`Device::decode_sparse_add`] onto zeros, bit for bit. Without payloads it is zeros.
    ///
    /// ```
    /// use gradwire::{Device, Seed, TopK};
    /// let device = Device::cpu();
    /// let worker = |g: &[f32; 4]| device.encode_sparse(&TopK::count(2), g, Seed::new(1));
    /// let payloads = [worker(&[4.0, 3.0, 0.0, 0.0])?, worker(&[0.0, 3.0, 1.0, 0.0])?];
    /// let mut mean = [7.0; 4];
    /// device.decode_sparse_sum(&payloads, 0.5, &mut mean)?;
    /// assert_eq!(mean, [2.0, 3.0, 0.5, 0.0]);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Mixed`] if the payloads are of gradients of different lengths; [`Error::Limit`] for more entries
    /// together than one buffer of the device holds; as [`Device::decode_sparse_into`].
    pub fn decode_sparse_sum(
        &self,
        payloads: &[impl Borrow<SparsePayload>],
        weight: f32,
        output: &mut [f32],
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        let payloads: Vec<&SparsePayload> = payloads.iter().map(Borrow::borrow).collect();
        if let Some(index) = payloads.iter().position(|payload| payload.len() != payloads[0].len()) {
            return Err(Error::Mixed { index, what: "length" });
        }
        let Some(first) = payloads.first() else {
            output.fill(0.0);
            return Ok(());
        };
        Error::expect_len("output", "elements", output.len(), first.header().n)?;
        let values = |payload: &&'_ SparsePayload| self.sparse_values(payload);
        let values = payloads.iter().map(values).collect::<Result<Vec<_>, _>>()?;
        let entries = values.iter().map(|values| values.len() as u64).collect();
        let work = Scatters { entries, elements: output.len() as u64, weight };
        let placed = || work.ranges().map(|range| range.start);
        let indices = placed().zip(payloads.iter().map(|payload| bytemuck::cast_slice(payload.indices())));
        let values = placed().zip(values.iter().map(|values| bytemuck::cast_slice(values)));
        let buffers = ScatterBuffers {
            indices: HostSlice::parts(indices.collect()),
            values: HostSlice::parts(values.collect()),
            output: HostSlice::floats_out(output),
        };
        // SAFETY: the indices of a payload rise, and so none is there twice in a pass.
        unsafe { self.run_trusting(work, buffers) }
    }

    /// Adds two payloads and selects anew: the step of a gTop-k tree (Shi et al., ICDCS 2019). What the selection drops
    /// is added to `residual`, the merging node's own, so that no part of either gradient is lost but to the rounding
    /// of the sums.
    ///
    /// ```
    /// use gradwire::{Device, Seed, TopK};
    /// let device = Device::cpu();
    /// let sent = |g: &[f32; 4]| device.encode_sparse(&TopK::count(2), g, Seed::new(1));
    /// let (a, b) = (sent(&[4.0, 3.0, 0.0, 0.0])?, sent(&[0.0, 3.0, 1.0, 0.0])?);
    /// let mut residual = vec![0.0; 4];
    /// let sum = device.merge_sparse(&TopK::count(2), &a, &b, &mut residual, Seed::new(2))?;
    /// assert_eq!(device.decode_sparse(&sum)?, [4.0, 6.0, 0.0, 0.0]);
    /// assert_eq!(residual, [0.0, 0.0, 1.0, 0.0]);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Mixed`] if the payloads are of gradients of different lengths; as
    /// [`Device::encode_sparse_with_feedback`]. Under `NonFinite::Error` also [`Error::NotFinite`] if the residual
    /// plus what the selection drops is not finite. The residual is as it was whenever this fails.
    ///
    /// Under `NonFinite::Propagate` the residual also stays as it was if a sum of two entries, or what would be in the
    /// residual, is not finite.
    pub fn merge_sparse(
        &self,
        codec: &TopK,
        a: &SparsePayload,
        b: &SparsePayload,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<SparsePayload, Error> {
        let _environment = FloatEnvironment::standard();
        if a.len() != b.len() {
            return Err(Error::Mixed { index: 1, what: "length" });
        }
        let plan = codec.plan(a.len(), Dtype::F32, true)?;
        Error::expect_len("residual", "elements", residual.len(), plan.n)?;
        let what = ["an estimate in a merge", "a part of each sign in a merge"];
        plan.refuse_search(what, "a count, a part, blocks, segments or a threshold")?;
        let (indices, sums) = self.union(a, b)?;
        let bad = sums.iter().position(|v| !v.is_finite()).map(|at| indices[at].into());
        if plan.guarded {
            refuse(bad)?;
        }
        plan.quantizer(indices.len().min(plan.most() as usize), true)?;
        let of_union = plan.of_union(&indices);
        let chosen = now(slices::sparse::select(self.runner(), &of_union, Gradient::F32(&sums).into(), None))?;
        let mut kept = reserved(chosen.indices.len(), ENTRIES)?;
        kept.extend(chosen.indices.iter().map(|at| indices[*at as usize]));
        let values = self.write_values(&plan, &chosen.bits, true, seed)?;
        let payload = SparsePayload::seal(plan.header(kept.len()), kept, &values)?;
        let mut left = sums;
        for ((at, bits), sent) in chosen.indices.iter().zip(&chosen.bits).zip(self.sparse_values(&payload)?) {
            left[*at as usize] = rest(*bits, sent);
        }
        let dropped = || indices.iter().zip(&left).filter(|(_, left)| left.to_bits() != 0);
        // The sum of two finite numbers may be infinite. All sums are looked at before the first is written.
        let infinite = || dropped().find(|(index, left)| !(residual[**index as usize] + **left).is_finite());
        let bad = bad.or_else(|| infinite().map(|(index, _)| (*index).into()));
        if plan.guarded {
            refuse(bad)?;
        }
        for (index, left) in dropped().filter(|_| bad.is_none()) {
            let place = &mut residual[*index as usize];
            *place = canonical(*place + left);
        }
        Ok(payload)
    }

    /// The entries of both, each index once, with the sum of its values.
    fn union(&self, a: &SparsePayload, b: &SparsePayload) -> Result<(Vec<u32>, Vec<f32>), Error> {
        let (of_a, of_b) = (self.sparse_values(a)?, self.sparse_values(b)?);
        let mut first = a.indices().iter().copied().zip(of_a).peekable();
        let mut second = b.indices().iter().copied().zip(of_b).peekable();
        let most = a.indices().len() + b.indices().len();
        let (mut indices, mut sums) = (reserved(most, MERGED)?, reserved(most, MERGED)?);
        loop {
            let next = match (first.peek(), second.peek()) {
                (None, None) => return Ok((indices, sums)),
                (Some((i, _)), None) => *i,
                (None, Some((j, _))) => *j,
                (Some((i, _)), Some((j, _))) => *i.min(j),
            };
            let take = |from: &mut dyn FnMut() -> Option<(u32, f32)>| from().map_or(0.0, |(_, value)| value);
            let x = take(&mut || first.next_if(|(i, _)| *i == next));
            let y = take(&mut || second.next_if(|(j, _)| *j == next));
            indices.push(next);
            sums.push(canonical(x + y));
        }
    }

    /// As [`Device::encode_sparse_with_feedback`], of a residual from which the sent values are subtracted as late as
    /// can be: the same payloads, and the same residual.
    ///
    /// It is late on a GPU where values are sent as they are ([`TopK`] as it comes). [`TopK::estimate`] and
    /// [`TopK::per_sign`] are never late, nor are blocks of up to 8192 elements, whose kernel has them at hand. Rounded
    /// and quantized values leave something behind that is not zero, and the CPU goes over the entries anyway: there
    /// the residual is up to date at once. Codec and device may change from step to step; where the segments change,
    /// pending values are subtracted first.
    ///
    /// # Errors
    /// As [`Device::encode_sparse_with_feedback`], and then the residual is as it was.
    pub fn encode_sparse_lazily<'g>(
        &self,
        codec: &TopK,
        gradient: impl Into<Gradient<'g>>,
        residual: &mut LazyResidual,
        seed: Seed,
    ) -> Result<SparsePayload, Error> {
        let _environment = FloatEnvironment::standard();
        let gradient = gradient.into();
        let plan = codec.plan(gradient.len(), gradient.dtype(), true)?;
        Error::expect_len("residual", "elements", residual.len(), plan.n)?;
        let is_late = plan.values == ValueFormat::Plain(Dtype::F32) && plan.sought.is_none();
        if !is_late || self.as_cpu().is_some() {
            return self.encode_sparse_with_feedback(codec, gradient, residual.materialize(), seed);
        }
        let source = Source { gradient, residual: Some(residual.sums()) };
        if !plan.guarded && Cpu::first_not_finite(source).is_some() {
            return self.encode_sparse_with_feedback(codec, gradient, residual.materialize(), seed);
        }
        let select = SelectPlan::new(&plan.select, plan.n, gradient.dtype(), true, true);
        let parts = select.parts();
        // A pass that scans for non-finite values before the filter takes the residual as it stands.
        let looks_first = plan.guarded && !plan.select.keeps_some_of_all();
        let pending = if looks_first { None } else { residual.pending_of(&parts) };
        let select = select.lazily(&pending.unwrap_or_else(|| {
            residual.materialize();
            vec![None; parts.len()]
        }));
        let mut sums = zeros(plan.n, "a residual")?;
        let source = Source { gradient, residual: Some(residual.sums()) };
        let entries = match now(slices::sparse::select_by(self.runner(), &select, &plan, source, Some(&mut sums))) {
            // Which element is the first has to be told of the residual as it is.
            Err(Error::NotFinite { .. }) if residual.is_pending() => {
                return self.encode_sparse_with_feedback(codec, gradient, residual.materialize(), seed);
            }
            outcome => outcome?,
        };
        let all = is_more_than_all(&plan, &entries);
        let chosen = if all { everything(Gradient::F32(&sums).into())? } else { entries };
        let sent = if all { Vec::new() } else { sent_of(&chosen, &parts) };
        if all {
            sums.fill(0.0);
        }
        let values = little_endian(&chosen.bits);
        let payload = SparsePayload::seal(plan.header(chosen.bits.len()), chosen.indices, &values)?;
        *residual = LazyResidual::with_pending(sums, sent);
        Ok(payload)
    }

    /// Subtracts the sent values, as [`LazyResidual::materialize`] does, on this device: one read of the segments of
    /// which something is pending. Nothing happens where nothing is.
    ///
    /// The host's own pass is at its best where the residual is in the host's memory anyway; this one spares a device
    /// that shares it, and a host whose cores have other work.
    ///
    /// ```
    /// use gradwire::{Device, LazyResidual, Seed, TopK};
    /// let device = Device::open()?;
    /// let mut residual = LazyResidual::zeros(4);
    /// device.encode_sparse_lazily(&TopK::count(1), &[4.0f32, 3.0, 0.0, -1.0], &mut residual, Seed::new(1))?;
    /// device.settle(&mut residual)?;
    /// assert!(!residual.is_pending());
    /// assert_eq!(residual.into_values(), [0.0, 3.0, 0.0, -1.0]);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Limit`] if the limits are too small for a tile or for the table of segments; [`Error::Backend`]
    /// if the device fails. The residual is as it was whenever this fails.
    pub fn settle(&self, residual: &mut LazyResidual) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        if !residual.is_pending() {
            return Ok(());
        }
        // The CPU has neither table nor passes.
        let planned = self.as_cpu().is_none().then(|| settle(residual.pending(), &self.limits())).transpose()?;
        let (table, passes) = planned.unwrap_or_default();
        let (table, elements) = (little_endian(&table), residual.len() as u64);
        let (sent, sums) = residual.unsettled();
        let buffers = SettleBuffers { residual: sums.into(), workspace: HostSlice::In(&table) };
        // SAFETY: the table is that of the sent values.
        unsafe { self.run_trusting(TakeOff { sent, elements, passes, table_bytes: table.len() as u64 }, buffers)? };
        residual.settled();
        Ok(())
    }
}

/// What entries, all that were sent, say of each of some parts.
fn sent_of(entries: &Entries, parts: &[(u64, u64)]) -> Vec<Sent> {
    let of_part = |&(start, elements): &(u64, u64)| {
        let at = |element: u64| entries.indices.partition_point(|i| u64::from(*i) < element);
        let range = at(start)..at(start + elements);
        let keys = entries.bits[range.clone()].iter().map(|bits| key(*bits)).zip(&entries.indices[range]);
        // Of the lowest key the last one: ties were kept from the first on.
        let last = keys.min_by(|(a, i), (b, j)| a.cmp(b).then(j.cmp(i)));
        last.map(|(key, index)| Sent { start, elements, key, index: *index })
    };
    let mut sent: Vec<Sent> = parts.iter().filter_map(of_part).collect();
    sent.sort_unstable_by_key(|sent| sent.start);
    sent
}

/// The name of the memory of two payloads' entries in errors.
const MERGED: &str = "the entries of both payloads";
