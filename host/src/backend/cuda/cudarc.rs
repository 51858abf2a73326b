//! The types of cudarc, which candle, burn and others hold their memory in.

use std::sync::Arc;

use ::cudarc::driver::{CudaStream, CudaView, CudaViewMut, DevicePtr as _, DevicePtrMut as _, DeviceSlice as _};

use super::{Cuda, DeviceSlice};
use crate::embed::{DecodeBuffers, EncodeBuffers, LowRankBuffers, ScatterBuffers, SelectBuffers};
use crate::error::Error;
use crate::gradient::{Dtype, Element};
use crate::low_rank::ResidentLowRank;
use crate::model::ModelPlan;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan};
use crate::seed::Seed;
use crate::sparse::Selection;

impl Cuda {
    /// Works on a stream of cudarc's, in its context.
    ///
    /// The kernels are compiled once a context: a second call finds them while the first one's [`Cuda`] lives.
    ///
    /// ```no_run
    /// # fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use cudarc::driver::CudaContext;
    /// use gradwire::backend::cuda::Cuda;
    /// use gradwire::{Codec, Dtype, Qsgd, Seed};
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let gradient = stream.clone_htod(&vec![0.5f32; 1 << 20])?;
    /// let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
    /// let mut body = stream.alloc_zeros::<u8>(plan.header().body_bytes() as usize)?;
    /// let cuda = Cuda::on(&stream)?;
    /// cuda.encode_views(&plan, &gradient.as_view(), None, &mut body.as_view_mut(), None, Seed::new(42).step(1))?;
    /// let payload = plan.header().seal(&stream.clone_dtoh(&body)?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Cuda::from_raw`].
    pub fn on(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        let context = stream.context().cu_ctx().cast();
        // SAFETY: both are alive, and stay so: the value holds the stream, and the stream its context. Modules are
        // unloaded after all work of the context is done.
        let cuda = unsafe { Self::from_raw(context, stream.cu_stream().cast()) }?;
        Ok(Self { keep: Some(stream.clone()), ..cuda })
    }

    /// Queues an encode: [`Cuda::encode_into`] for slices of cudarc's. `slice.as_view()` makes a view of a whole slice.
    ///
    /// # Errors
    /// As [`Cuda::encode_into`], and [`Error::Dtype`] where the gradient is not of the plan's type.
    pub fn encode_views<T: Element>(
        &self,
        plan: &EncodePlan,
        gradient: &CudaView<'_, T>,
        residual: Option<&mut CudaViewMut<'_, f32>>,
        body: &mut CudaViewMut<'_, u8>,
        workspace: Option<&mut CudaViewMut<'_, u8>>,
        seed: Seed,
    ) -> Result<(), Error> {
        expect_type::<T>(plan.header().dtype)?;
        let stream = self.cudarc_stream()?;
        with_buffers(stream, gradient, residual, body, workspace, |buffers| {
            // SAFETY: cudarc's slices are memory that holds values; cudarc orders work on other streams, and frees memory,
            // behind what was queued here.
            unsafe { self.encode_into(plan, buffers, seed) }
        })
    }

    /// Queues a decode: [`Cuda::decode_into`] for slices of cudarc's.
    ///
    /// # Errors
    /// As [`Cuda::decode_into`].
    pub fn decode_views(
        &self,
        plan: &DecodePlan,
        mode: DecodeMode,
        bodies: &CudaView<'_, u8>,
        output: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let stream = self.cudarc_stream()?;
        let (bodies, _read) = slice(bodies, stream);
        let (output, _written) = slice_mut(output, stream);
        // SAFETY: as in `encode_views`.
        unsafe { self.decode_into(plan, mode, &DecodeBuffers { bodies, output }) }
    }

    /// Queues an encode of many tensors: [`Cuda::encode_model_into`] for slices of cudarc's.
    ///
    /// A table that is not this plan's makes the kernels read and write elsewhere, so its length is checked and its bytes
    /// are the caller's to get right: [`ModelPlan::table`], copied to the device.
    ///
    /// # Errors
    /// As [`Cuda::encode_views`].
    ///
    /// # Safety
    /// The caller guarantees that `table` holds this plan's table, but for its first eight bytes.
    #[allow(clippy::too_many_arguments, reason = "each is a buffer of its own, as in `encode_views`")]
    pub unsafe fn encode_model_views<T: Element>(
        &self,
        plan: &ModelPlan,
        table: &CudaView<'_, u8>,
        gradient: &CudaView<'_, T>,
        residual: Option<&mut CudaViewMut<'_, f32>>,
        body: &mut CudaViewMut<'_, u8>,
        workspace: Option<&mut CudaViewMut<'_, u8>>,
        seed: Seed,
    ) -> Result<(), Error> {
        expect_type::<T>(plan.dtype())?;
        let stream = self.cudarc_stream()?;
        let (table, _table) = slice(table, stream);
        with_buffers(stream, gradient, residual, body, workspace, |buffers| {
            // SAFETY: as in `encode_views`; the caller answers for the table.
            unsafe { self.encode_model_into(plan, table, buffers, seed) }
        })
    }

    /// Queues a decode of many tensors: [`Cuda::decode_model_into`] for slices of cudarc's.
    ///
    /// # Errors
    /// As [`Cuda::decode_into`].
    ///
    /// # Safety
    /// As [`Cuda::encode_model_views`].
    pub unsafe fn decode_model_views(
        &self,
        plan: &ModelPlan,
        table: &CudaView<'_, u8>,
        mode: DecodeMode,
        payloads: u32,
        bodies: &CudaView<'_, u8>,
        output: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let stream = self.cudarc_stream()?;
        let (table, _table) = slice(table, stream);
        let (bodies, _read) = slice(bodies, stream);
        let (output, _written) = slice_mut(output, stream);
        // SAFETY: as above.
        unsafe { self.decode_model_into(plan, table, mode, payloads, &DecodeBuffers { bodies, output }) }
    }

    /// Queues a selection: [`Cuda::select_into`] for slices of cudarc's.
    ///
    /// # Errors
    /// As [`Cuda::encode_views`].
    ///
    /// # Safety
    /// The caller guarantees that the workspace begins with [`Selection::table`], or what the calls before left of it.
    pub unsafe fn select_views<T: Element>(
        &self,
        selection: &Selection,
        gradient: &CudaView<'_, T>,
        residual: Option<&mut CudaViewMut<'_, f32>>,
        indices: &mut CudaViewMut<'_, u32>,
        values: &mut CudaViewMut<'_, f32>,
        workspace: &mut CudaViewMut<'_, u8>,
    ) -> Result<(), Error> {
        expect_type::<T>(selection.dtype())?;
        let stream = self.cudarc_stream()?;
        let (gradient, _read) = slice(gradient, stream);
        let residual = residual.map(|residual| slice_mut(residual, stream));
        let (indices, _indices) = slice_mut(indices, stream);
        let (values, _values) = slice_mut(values, stream);
        let (workspace, _workspace) = slice_mut(workspace, stream);
        let residual = residual.as_ref().map(|(slice, _)| *slice);
        // SAFETY: as in `encode_views`; the caller answers for the table.
        unsafe { self.select_into(selection, &SelectBuffers { gradient, residual, indices, values, workspace }) }
    }

    /// Queues the look for what is not finite: [`Cuda::scan_into`] for slices of cudarc's.
    ///
    /// # Errors
    /// As [`Cuda::scan_into`], and [`Error::Dtype`] where the gradient is not of the selection's type.
    ///
    /// # Safety
    /// As [`Cuda::select_views`].
    pub unsafe fn scan_views<T: Element>(
        &self,
        selection: &Selection,
        gradient: &CudaView<'_, T>,
        residual: Option<&mut CudaViewMut<'_, f32>>,
        workspace: &mut CudaViewMut<'_, u8>,
    ) -> Result<(), Error> {
        expect_type::<T>(selection.dtype())?;
        let stream = self.cudarc_stream()?;
        let (gradient, _read) = slice(gradient, stream);
        let residual = residual.map(|residual| slice_mut(residual, stream));
        let (workspace, _workspace) = slice_mut(workspace, stream);
        let residual = residual.as_ref().map(|(slice, _)| *slice);
        let none = DeviceSlice::new(0, 0);
        let buffers = SelectBuffers { gradient, residual, indices: none, values: none, workspace };
        // SAFETY: as in `encode_views`; the caller answers for the table.
        unsafe { self.scan_into(selection, &buffers) }
    }

    /// Queues what takes off a residual what is late: [`Cuda::settle_into`] for slices of cudarc's.
    ///
    /// # Errors
    /// As [`Cuda::settle_into`].
    ///
    /// # Safety
    /// As [`Cuda::select_views`].
    pub unsafe fn settle_views(
        &self,
        selection: &Selection,
        residual: &mut CudaViewMut<'_, f32>,
        workspace: &mut CudaViewMut<'_, u8>,
    ) -> Result<(), Error> {
        let stream = self.cudarc_stream()?;
        let (residual, _residual) = slice_mut(residual, stream);
        let (workspace, _workspace) = slice_mut(workspace, stream);
        let none = DeviceSlice::new(0, 0);
        let residual = Some(residual);
        let buffers = SelectBuffers { gradient: none, residual, indices: none, values: none, workspace };
        // SAFETY: as in `encode_views`; the caller answers for the table.
        unsafe { self.settle_into(selection, &buffers) }
    }

    /// Queues a decode of kept entries: [`Cuda::scatter_into`] for slices of cudarc's, of all that `indices` holds onto all of
    /// `output`.
    ///
    /// # Errors
    /// As [`Cuda::scatter_into`].
    ///
    /// # Safety
    /// The caller guarantees that no index is there twice.
    pub unsafe fn scatter_views(
        &self,
        weight: Option<f32>,
        indices: &CudaView<'_, u32>,
        values: &CudaView<'_, f32>,
        output: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (entries, elements) = (indices.len() as u64, output.len() as u64);
        let stream = self.cudarc_stream()?;
        let (indices, _indices) = slice(indices, stream);
        let (values, _values) = slice(values, stream);
        let (output, _written) = slice_mut(output, stream);
        // SAFETY: as in `encode_views`; the caller answers for the indices.
        unsafe { self.scatter_into(entries, elements, weight, &ScatterBuffers { indices, values, output }) }
    }

    /// Queues the beginning of a step of PowerSGD: [`Cuda::begin_low_rank_into`] for slices of cudarc's.
    ///
    /// # Errors
    /// As [`Cuda::begin_low_rank_into`], and [`Error::Dtype`] where the gradient is not of the steps' type.
    ///
    /// # Safety
    /// The caller guarantees that residual and state hold what the calls before left there, or what [`Cuda::begin_low_rank_into`]
    /// asks for before the first one.
    pub unsafe fn begin_low_rank_views<T: Element>(
        &self,
        steps: &mut ResidentLowRank,
        gradient: &CudaView<'_, T>,
        residual: &mut CudaViewMut<'_, f32>,
        state: &mut CudaViewMut<'_, u8>,
        factors: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), Error> {
        expect_type::<T>(steps.dtype())?;
        let stream = self.cudarc_stream()?;
        let (gradient, _read) = slice(gradient, stream);
        with_state(stream, residual, state, factors, |kept| {
            // SAFETY: as in `encode_views`; the caller answers for what the state holds.
            unsafe { self.begin_low_rank_into(steps, &LowRankBuffers { gradient, ..kept }) }
        })
    }

    /// Queues what is between two all-reduces: [`Cuda::advance_low_rank_into`] for slices of cudarc's.
    ///
    /// # Errors
    /// As [`Cuda::advance_low_rank_into`].
    ///
    /// # Safety
    /// As [`Cuda::begin_low_rank_views`].
    pub unsafe fn advance_low_rank_views(
        &self,
        steps: &mut ResidentLowRank,
        residual: &mut CudaViewMut<'_, f32>,
        state: &mut CudaViewMut<'_, u8>,
        factors: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), Error> {
        with_state(self.cudarc_stream()?, residual, state, factors, |kept| {
            // SAFETY: as above.
            unsafe { self.advance_low_rank_into(steps, &kept) }
        })
    }

    /// Queues the end of a step: [`Cuda::finish_low_rank_into`] for slices of cudarc's.
    ///
    /// # Errors
    /// As [`Cuda::finish_low_rank_into`].
    ///
    /// # Safety
    /// As [`Cuda::begin_low_rank_views`].
    pub unsafe fn finish_low_rank_views(
        &self,
        steps: &mut ResidentLowRank,
        residual: &mut CudaViewMut<'_, f32>,
        state: &mut CudaViewMut<'_, u8>,
        factors: &mut CudaViewMut<'_, f32>,
        output: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let stream = self.cudarc_stream()?;
        let (output, _written) = slice_mut(output, stream);
        with_state(stream, residual, state, factors, |kept| {
            // SAFETY: as above.
            unsafe { self.finish_low_rank_into(steps, &LowRankBuffers { output, ..kept }) }
        })
    }

    fn cudarc_stream(&self) -> Result<&CudaStream, Error> {
        self.keep.as_deref().ok_or_else(|| Error::Stream {
            address: self.stream.to_u64(),
            problem: "is not one of cudarc's: open it with Cuda::on, or use encode_into and decode_into".to_owned(),
        })
    }
}

/// Hands over the buffers of an encode while cudarc's guards are held: they make its other streams wait for what is queued
/// meanwhile.
fn with_buffers<T>(
    stream: &CudaStream,
    gradient: &CudaView<'_, T>,
    residual: Option<&mut CudaViewMut<'_, f32>>,
    body: &mut CudaViewMut<'_, u8>,
    workspace: Option<&mut CudaViewMut<'_, u8>>,
    queue: impl FnOnce(&EncodeBuffers<DeviceSlice>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (gradient, _read) = slice(gradient, stream);
    let (body, _written) = slice_mut(body, stream);
    let residual = residual.map(|r| slice_mut(r, stream));
    let workspace = workspace.map(|w| slice_mut(w, stream));
    let buffers = EncodeBuffers {
        gradient,
        residual: residual.as_ref().map(|(slice, _)| *slice),
        body,
        workspace: workspace.as_ref().map(|(slice, _)| *slice),
    };
    queue(&buffers)
}

/// Hands over what all calls of a step use, as [`with_buffers`] does it: the gradient and the output are none.
fn with_state(
    stream: &CudaStream,
    residual: &mut CudaViewMut<'_, f32>,
    state: &mut CudaViewMut<'_, u8>,
    factors: &mut CudaViewMut<'_, f32>,
    queue: impl FnOnce(LowRankBuffers<DeviceSlice>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (residual, _residual) = slice_mut(residual, stream);
    let (state, _state) = slice_mut(state, stream);
    let (factors, _factors) = slice_mut(factors, stream);
    let none = DeviceSlice::new(0, 0);
    queue(LowRankBuffers { gradient: none, residual, state, factors, output: none })
}

fn expect_type<T: Element>(expected: Dtype) -> Result<(), Error> {
    if T::DTYPE == expected {
        return Ok(());
    }
    Err(Error::Dtype { expected: expected.name(), found: T::DTYPE.name() })
}

fn slice<'v, T>(view: &'v CudaView<'v, T>, stream: &'v CudaStream) -> (DeviceSlice, ::cudarc::driver::SyncOnDrop<'v>) {
    let bytes = view.num_bytes() as u64;
    let (address, guard) = view.device_ptr(stream);
    (DeviceSlice::new(address, bytes), guard)
}

fn slice_mut<'v, T>(
    view: &'v mut CudaViewMut<'_, T>,
    stream: &'v CudaStream,
) -> (DeviceSlice, ::cudarc::driver::SyncOnDrop<'v>) {
    let bytes = view.num_bytes() as u64;
    let (address, guard) = view.device_ptr_mut(stream);
    (DeviceSlice::new(address, bytes), guard)
}
