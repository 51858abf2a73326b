//! Encoding and decoding recorded into a caller's encoder, in a caller's buffers.

use std::sync::Arc;

use super::Wgpu;
use super::record::{Bound, bind, parameters, pipelines, record};
use crate::embed::{
    Access, DecodeBuffers, EncodeBuffers, LowRankBuffers, Piece, ScatterBuffers, SelectBuffers, by_role, used,
};
use crate::error::Error;
use crate::low_rank::ResidentLowRank;
use crate::model::ModelPlan;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, Pass, check_count};
use crate::seed::Seed;
use crate::sparse::Selection;
use crate::wire::MAX_ELEMENTS;

impl Wgpu {
    /// Records an encode into the caller's encoder, in the caller's buffers. Nothing is submitted, and no feature or limit
    /// is asked for that the device does not have; a tensor that is larger than a binding or a dispatch may be takes
    /// several dispatches.
    ///
    /// Determinism, formats and edge cases are those of [`Device::encode`](crate::Device::encode): once the commands have
    /// run, the body holds the same bytes. Under [`NonFinite::Error`](crate::NonFinite::Error) the verdict is in the
    /// workspace: [`EncodePlan::check_workspace`].
    ///
    /// Every buffer needs the usage `STORAGE`, and the workspace `COPY_DST` as well. Slices begin at multiples of the
    /// device's `min_storage_buffer_offset_alignment`, which is at most 256. The gradient and the workspace share a buffer
    /// with no other piece, because a dispatch reads them while it writes others.
    ///
    /// ```no_run
    /// # fn run(device: wgpu::Device, queue: wgpu::Queue, gradient: wgpu::Buffer, body: wgpu::Buffer) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::embed::EncodeBuffers;
    /// use gradwire::{Codec, Dtype, Qsgd, Seed, wgpu};
    /// let gradwire = Wgpu::on(&device, &queue)?;
    /// let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// let buffers = EncodeBuffers { gradient: gradient.slice(..), residual: None, body: body.slice(..), workspace: None };
    /// gradwire.record_encode(&plan, &mut encoder, &buffers, Seed::new(42).step(1))?;
    /// queue.submit([encoder.finish()]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Before anything is recorded: [`Error::Length`] for a slice that is too short or left out, [`Error::Memory`] for one
    /// without the usage, misaligned, or in a buffer that it cannot share; [`Error::Limit`] where a limit is too small for
    /// any part of the tensor. [`Error::Backend`] for what the device refuses.
    pub fn record_encode(
        &self,
        plan: &EncodePlan,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &EncodeBuffers<wgpu::BufferSlice<'_>>,
        seed: Seed,
    ) -> Result<(), Error> {
        let passes = plan.passes(seed, &self.limits())?;
        self.record_checked(&passes, encoder, &buffers.pieces(plan)?)
    }

    /// Records a decode of one body, or of the sum of several, over or onto an output in the caller's buffers.
    ///
    /// # Errors
    /// As [`Wgpu::record_encode`].
    pub fn record_decode(
        &self,
        plan: &DecodePlan,
        mode: DecodeMode,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &DecodeBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        let plan = plan.of_bodies();
        let passes = plan.passes(mode, &self.limits())?;
        self.record_checked(&passes, encoder, &buffers.pieces(&plan))
    }

    /// Records an encode of many tensors: [`Wgpu::record_encode`] for a [`ModelPlan`], in one launch set. `table` holds
    /// [`ModelPlan::table`], and shares a buffer with no other piece.
    ///
    /// # Errors
    /// As [`Wgpu::record_encode`], and [`Error::Limit`] for a plan that was made for a device of larger limits.
    pub fn record_encode_model(
        &self,
        plan: &ModelPlan,
        table: wgpu::BufferSlice<'_>,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &EncodeBuffers<wgpu::BufferSlice<'_>>,
        seed: Seed,
    ) -> Result<(), Error> {
        let passes = plan.encode_passes(seed);
        self.limits().check(&passes)?;
        self.record_checked(&passes, encoder, &buffers.model_pieces(plan, table)?)
    }

    /// Records a decode of many tensors' bodies, `payloads` of them one behind the other.
    ///
    /// # Errors
    /// As [`Wgpu::record_encode_model`].
    pub fn record_decode_model(
        &self,
        plan: &ModelPlan,
        table: wgpu::BufferSlice<'_>,
        mode: DecodeMode,
        payloads: u32,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &DecodeBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        check_count(payloads.into())?;
        let passes = plan.decode_passes(mode, payloads, [plan.body_bytes(); 2]);
        self.limits().check(&passes)?;
        self.record_checked(&passes, encoder, &buffers.model_pieces(plan, payloads, table))
    }

    /// Records a selection of the largest entries: `Cuda::select_into` for wgpu. The selection is made with
    /// [`Wgpu::limits`], and every piece has a buffer of its own.
    ///
    /// # Errors
    /// As [`Wgpu::record_encode_model`].
    pub fn record_select(
        &self,
        selection: &Selection,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &SelectBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        self.limits().check(selection.passes())?;
        self.record_checked(selection.passes(), encoder, &buffers.pieces(selection)?)
    }

    /// Records the look for what is not finite in gradient + residual, where the codec refuses it: `Cuda::scan_into` for wgpu.
    ///
    /// # Errors
    /// As [`Wgpu::record_encode_model`].
    pub fn record_scan(
        &self,
        selection: &Selection,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &SelectBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        self.limits().check(selection.scan_passes())?;
        self.record_checked(selection.scan_passes(), encoder, &buffers.scan_pieces(selection)?)
    }

    /// Records what takes off the residual of a [`TopK::lazy_selection`](crate::TopK::lazy_selection) what was sent and is still in it:
    /// `Cuda::settle_into` for wgpu. Of `buffers`, the residual and the first [`Selection::table_bytes`] of the workspace are used.
    ///
    /// # Errors
    /// As [`Wgpu::record_encode_model`].
    pub fn record_settle(
        &self,
        selection: &Selection,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &SelectBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        self.limits().check(selection.settle_passes())?;
        self.record_checked(selection.settle_passes(), encoder, &buffers.settle_pieces(selection)?)
    }

    /// Records a decode of kept entries onto a gradient of `elements`: over zeros, for which the output needs `COPY_DST`,
    /// or with a weight onto what is there.
    ///
    /// # Errors
    /// As [`Wgpu::record_encode`].
    pub fn record_scatter(
        &self,
        entries: u64,
        elements: u64,
        weight: Option<f32>,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &ScatterBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        let passes = Selection::scatter(entries, weight, elements, &self.limits())?;
        self.record_checked(&passes, encoder, &buffers.pieces(entries, elements, weight.is_none()))
    }

    /// Records the beginning of a step of PowerSGD: `Cuda::begin_low_rank_into` for wgpu. Every piece has a buffer of its own, and
    /// the state's needs the usage `COPY_DST` as well.
    ///
    /// # Errors
    /// [`Error::Order`] where another call is due; else as [`Wgpu::record_encode`], and the step has then not begun.
    pub fn record_begin_low_rank(
        &self,
        steps: &mut ResidentLowRank,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &LowRankBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        let passes = steps.begin(&self.limits())?;
        self.record_step(steps, &passes, encoder, buffers)
    }

    /// Records what is between two all-reduces: the factor in `factors` is taken, and the next one is left there.
    ///
    /// # Errors
    /// As [`Wgpu::record_begin_low_rank`], and the step is where it was.
    pub fn record_advance_low_rank(
        &self,
        steps: &mut ResidentLowRank,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &LowRankBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        let passes = steps.advance(&self.limits())?;
        self.record_step(steps, &passes, encoder, buffers)
    }

    /// Records the end of a step: the last factor in `factors` is taken, and `output` becomes what all workers together send.
    ///
    /// # Errors
    /// As [`Wgpu::record_advance_low_rank`].
    pub fn record_finish_low_rank(
        &self,
        steps: &mut ResidentLowRank,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &LowRankBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        let passes = steps.finish(&self.limits())?;
        self.record_step(steps, &passes, encoder, buffers)
    }

    fn record_step(
        &self,
        steps: &mut ResidentLowRank,
        passes: &[Pass],
        encoder: &mut wgpu::CommandEncoder,
        buffers: &LowRankBuffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        self.record_checked(passes, encoder, &buffers.pieces(steps))?;
        steps.went_on();
        Ok(())
    }

    pub(crate) fn record_checked(
        &self,
        passes: &[Pass],
        encoder: &mut wgpu::CommandEncoder,
        pieces: &[Piece<wgpu::BufferSlice<'_>>],
    ) -> Result<(), Error> {
        if passes.is_empty() {
            return Ok(());
        }
        let pieces = &used(pieces);
        pieces.iter().try_for_each(|piece| self.check(piece))?;
        check_sharing(pieces)?;
        let bound = by_role(pieces, None, |piece, offset| {
            Some(Bound { buffer: piece.buffer.buffer(), offset: piece.buffer.offset() + offset })
        });
        let shared = &self.shared;
        let pipelines = pipelines(shared, passes)?;
        let params = parameters(shared, passes)?;
        shared.scoped("recording passes", || {
            let ready = bind(shared, passes, pipelines, &params, &bound);
            record(encoder, &ready, &bound);
        })
    }

    fn check(&self, piece: &Piece<wgpu::BufferSlice<'_>>) -> Result<(), Error> {
        let (what, slice) = (piece.what, piece.buffer);
        let refuse = |problem: String| Err(Error::Memory { what, address: slice.offset(), problem });
        // Kernels read whole words.
        let expected = piece.needed.next_multiple_of(4);
        if slice.size() < expected {
            return Err(Error::Length { what, found: slice.size(), expected, unit: "bytes" });
        }
        let needed = match piece.access {
            Access::Scratch => wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
            Access::Read | Access::Write => wgpu::BufferUsages::STORAGE,
        };
        let usage = slice.buffer().usage();
        if !usage.contains(needed) {
            return refuse(format!("is in a buffer of usage {usage:?}: create it with {needed:?} as well"));
        }
        let alignment = self.shared.device.limits().min_storage_buffer_offset_alignment;
        if !slice.offset().is_multiple_of(alignment.into()) {
            return refuse(format!("is not aligned: a slice has to begin at a multiple of {alignment} bytes"));
        }
        Ok(())
    }

    /// The same device, with pipelines built through a cache of the caller's. Worth it where the driver keeps none
    /// itself, as on Android. Pipelines that were built before are kept as they are.
    ///
    /// # Errors
    /// [`Error::Backend`] where the device has no memory left.
    pub fn with_pipeline_cache(&self, cache: &wgpu::PipelineCache) -> Result<Self, Error> {
        let shared = &self.shared;
        let shared = super::Shared::new(&shared.device, &shared.queue, shared.loss.clone(), Some(cache.clone()))?;
        Ok(Self { shared: Arc::new(shared), limits: self.limits })
    }

    /// What of the device's features and limits would make work faster if it were requested, in sentences; nothing where
    /// nothing would.
    pub fn advice(&self) -> Vec<String> {
        let (limits, features) = (self.shared.device.limits(), self.shared.device.features());
        let mut advice = Vec::new();
        let whole = MAX_ELEMENTS * 4;
        let largest = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        if largest < whole {
            advice.push(format!(
                "max_storage_buffer_binding_size and max_buffer_size: the lesser is {largest}, so that a tensor of more \
                 than {} elements takes several dispatches; request the adapter's own",
                largest / 4
            ));
        }
        let groups = u64::from(limits.max_compute_workgroups_per_dimension) * 2048;
        if groups < largest / 4 {
            advice.push(format!(
                "max_compute_workgroups_per_dimension: it is {}, so that a decode of more than {groups} elements takes \
                 several dispatches; request the adapter's own",
                limits.max_compute_workgroups_per_dimension
            ));
        }
        if !features.contains(wgpu::Features::PIPELINE_CACHE) {
            advice.push(
                "PIPELINE_CACHE: without it, every start of the program compiles the shaders anew where the driver keeps no \
                 cache itself"
                    .to_owned(),
            );
        }
        advice
    }
}

/// Checks that no buffer is read and written by the same dispatch, and that what is written lies apart.
fn check_sharing(pieces: &[Piece<wgpu::BufferSlice<'_>>]) -> Result<(), Error> {
    for (index, a) in pieces.iter().enumerate() {
        for b in pieces[..index].iter().filter(|b| b.buffer.buffer() == a.buffer.buffer()) {
            let (from, to) = (a.buffer.offset(), b.buffer.offset());
            let refuse = |problem: String| Err(Error::Memory { what: a.what, address: from, problem });
            if !(a.access == Access::Write && b.access == Access::Write) {
                return refuse(format!(
                    "is in one buffer with the {}, and a dispatch may not read and write one buffer: give it its own",
                    b.what
                ));
            }
            if from < to + b.needed && to < from + a.needed {
                return refuse(format!("overlaps the {}: give each its own part of the buffer", b.what));
            }
        }
    }
    Ok(())
}
