//! Gradwire on the contexts, streams and buffers of [cust](https://docs.rs/cust/0.3.2).
//!
//! ```no_run
//! use cust::memory::DeviceBuffer;
//! use cust::stream::{Stream, StreamFlags};
//! use gradwire::{Codec, Dtype, Qsgd, Seed};
//! use gradwire_cust::OnStream;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = cust::quick_init()?;
//! let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
//! let gradient = DeviceBuffer::from_slice(&vec![0.5f32; 1 << 20])?;
//! let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
//! let mut body = DeviceBuffer::<u8>::zeroed(plan.header().body_bytes() as usize)?;
//! let gradwire = OnStream::new(&context, &stream)?;
//! // SAFETY: the buffers live until the stream was waited for, and nothing else uses them meanwhile.
//! unsafe { gradwire.encode(&plan, &gradient, None, &mut body, None, Seed::new(42).step(1)) }?;
//! stream.synchronize()?;
//! let payload = plan.header().seal(&body.as_host_vec()?)?;
//! # Ok(()) }
//! ```

use std::marker::PhantomData;

use cust::context::Context;
use cust::memory::{DeviceCopy, DeviceSlice};
use cust::stream::Stream;
use gradwire::backend::cuda::{Cuda, DeviceSlice as Piece};
use gradwire::embed::{DecodeBuffers, EncodeBuffers, LowRankBuffers, ScatterBuffers, SelectBuffers};
use gradwire::plan::Limits;
use gradwire::{DecodeMode, DecodePlan, EncodePlan, Error, ModelPlan, ResidentLowRank, Seed, Selection};

/// Gradwire's kernels, loaded into a context of cust's, with work going to a stream of cust's.
///
/// Its calls are `unsafe` for the reason that cust's launches are: work is queued, and nothing stops a buffer from being
/// dropped before it is done.
#[derive(Debug)]
pub struct OnStream<'c> {
    cuda: Cuda,
    /// Both outlive the kernels, which are unloaded with this value.
    outlives: PhantomData<(&'c Context, &'c Stream)>,
}

/// A buffer as Gradwire names it.
pub fn piece<T: DeviceCopy>(buffer: &DeviceSlice<T>) -> Piece {
    Piece::new(buffer.as_device_ptr().as_raw(), (buffer.len() * size_of::<T>()) as u64)
}

impl<'c> OnStream<'c> {
    /// Loads the kernels, once a context.
    ///
    /// # Errors
    /// As [`Cuda::from_raw`].
    pub fn new(context: &'c Context, stream: &'c Stream) -> Result<Self, Error> {
        // SAFETY: the borrows keep both alive for as long as this value, which hands out no clone of what it holds.
        let cuda = unsafe { Cuda::from_raw(context.as_raw().cast(), stream.as_inner().cast()) }?;
        Ok(Self { cuda, outlives: PhantomData })
    }

    /// What bounds a single launch, and what the device promises: selections are planned by it.
    pub fn limits(&self) -> Limits {
        self.cuda.limits()
    }

    /// The device, and which PTX was loaded.
    pub fn name(&self) -> &str {
        self.cuda.name()
    }

    /// Queues an encode: [`Cuda::encode_into`]. The gradient's elements are of the plan's type, whatever `T` is.
    ///
    /// # Errors
    /// As [`Cuda::encode_into`].
    ///
    /// # Safety
    /// The caller guarantees that the buffers live until the stream was waited for, and that nothing else uses them
    /// meanwhile.
    pub unsafe fn encode<T: DeviceCopy>(
        &self,
        plan: &EncodePlan,
        gradient: &DeviceSlice<T>,
        residual: Option<&mut DeviceSlice<f32>>,
        body: &mut DeviceSlice<u8>,
        workspace: Option<&mut DeviceSlice<u8>>,
        seed: Seed,
    ) -> Result<(), Error> {
        let buffers = encode_buffers(gradient, residual, body, workspace);
        // SAFETY: cust's buffers are memory that holds values; the caller answers for the rest.
        unsafe { self.cuda.encode_into(plan, &buffers, seed) }
    }

    /// Queues a decode: [`Cuda::decode_into`].
    ///
    /// # Errors
    /// As [`Cuda::decode_into`].
    ///
    /// # Safety
    /// As [`OnStream::encode`].
    pub unsafe fn decode(
        &self,
        plan: &DecodePlan,
        mode: DecodeMode,
        bodies: &DeviceSlice<u8>,
        output: &mut DeviceSlice<f32>,
    ) -> Result<(), Error> {
        let buffers = DecodeBuffers { bodies: piece(bodies), output: piece(output) };
        // SAFETY: as above.
        unsafe { self.cuda.decode_into(plan, mode, &buffers) }
    }

    /// Queues an encode of many tensors: [`Cuda::encode_model_into`].
    ///
    /// # Errors
    /// As [`Cuda::encode_model_into`].
    ///
    /// # Safety
    /// As [`OnStream::encode`], and `table` holds [`ModelPlan::table`].
    #[allow(clippy::too_many_arguments, reason = "each is a buffer of its own, as in `encode`")]
    pub unsafe fn encode_model<T: DeviceCopy>(
        &self,
        plan: &ModelPlan,
        table: &DeviceSlice<u8>,
        gradient: &DeviceSlice<T>,
        residual: Option<&mut DeviceSlice<f32>>,
        body: &mut DeviceSlice<u8>,
        workspace: Option<&mut DeviceSlice<u8>>,
        seed: Seed,
    ) -> Result<(), Error> {
        let buffers = encode_buffers(gradient, residual, body, workspace);
        // SAFETY: as above.
        unsafe { self.cuda.encode_model_into(plan, piece(table), &buffers, seed) }
    }

    /// Queues a decode of many tensors: [`Cuda::decode_model_into`].
    ///
    /// # Errors
    /// As [`Cuda::decode_model_into`].
    ///
    /// # Safety
    /// As [`OnStream::encode_model`].
    pub unsafe fn decode_model(
        &self,
        plan: &ModelPlan,
        table: &DeviceSlice<u8>,
        mode: DecodeMode,
        payloads: u32,
        bodies: &DeviceSlice<u8>,
        output: &mut DeviceSlice<f32>,
    ) -> Result<(), Error> {
        let buffers = DecodeBuffers { bodies: piece(bodies), output: piece(output) };
        // SAFETY: as above.
        unsafe { self.cuda.decode_model_into(plan, piece(table), mode, payloads, &buffers) }
    }

    /// Queues a selection of the largest entries: [`Cuda::select_into`].
    ///
    /// # Errors
    /// As [`Cuda::select_into`].
    ///
    /// # Safety
    /// As [`OnStream::encode`], and the workspace begins with [`Selection::table`], or what the calls before left of it.
    pub unsafe fn select<T: DeviceCopy>(
        &self,
        selection: &Selection,
        gradient: &DeviceSlice<T>,
        residual: Option<&mut DeviceSlice<f32>>,
        indices: &mut DeviceSlice<u32>,
        values: &mut DeviceSlice<f32>,
        workspace: &mut DeviceSlice<u8>,
    ) -> Result<(), Error> {
        let buffers = SelectBuffers {
            gradient: piece(gradient),
            residual: residual.map(|buffer| piece(buffer)),
            indices: piece(indices),
            values: piece(values),
            workspace: piece(workspace),
        };
        // SAFETY: as above.
        unsafe { self.cuda.select_into(selection, &buffers) }
    }

    /// Queues the look for what is not finite: [`Cuda::scan_into`].
    ///
    /// # Errors
    /// As [`Cuda::scan_into`].
    ///
    /// # Safety
    /// As [`OnStream::select`].
    pub unsafe fn scan<T: DeviceCopy>(
        &self,
        selection: &Selection,
        gradient: &DeviceSlice<T>,
        residual: Option<&mut DeviceSlice<f32>>,
        workspace: &mut DeviceSlice<u8>,
    ) -> Result<(), Error> {
        let (none, residual) = (Piece::new(0, 0), residual.map(|buffer| piece(buffer)));
        let (gradient, workspace) = (piece(gradient), piece(workspace));
        let buffers = SelectBuffers { gradient, residual, indices: none, values: none, workspace };
        // SAFETY: as above.
        unsafe { self.cuda.scan_into(selection, &buffers) }
    }

    /// Queues what takes off a residual what is late: [`Cuda::settle_into`].
    ///
    /// # Errors
    /// As [`Cuda::settle_into`].
    ///
    /// # Safety
    /// As [`OnStream::select`].
    pub unsafe fn settle(
        &self,
        selection: &Selection,
        residual: &mut DeviceSlice<f32>,
        workspace: &mut DeviceSlice<u8>,
    ) -> Result<(), Error> {
        let none = Piece::new(0, 0);
        let (residual, workspace) = (Some(piece(residual)), piece(workspace));
        let buffers = SelectBuffers { gradient: none, residual, indices: none, values: none, workspace };
        // SAFETY: as above.
        unsafe { self.cuda.settle_into(selection, &buffers) }
    }

    /// Queues a decode of kept entries: [`Cuda::scatter_into`], of all that `indices` holds onto all of `output`.
    ///
    /// # Errors
    /// As [`Cuda::scatter_into`].
    ///
    /// # Safety
    /// As [`OnStream::encode`], and no index is there twice.
    pub unsafe fn scatter(
        &self,
        weight: Option<f32>,
        indices: &DeviceSlice<u32>,
        values: &DeviceSlice<f32>,
        output: &mut DeviceSlice<f32>,
    ) -> Result<(), Error> {
        let (entries, elements) = (indices.len() as u64, output.len() as u64);
        let buffers = ScatterBuffers { indices: piece(indices), values: piece(values), output: piece(output) };
        // SAFETY: as above.
        unsafe { self.cuda.scatter_into(entries, elements, weight, &buffers) }
    }

    /// Queues the beginning of a step of PowerSGD: [`Cuda::begin_low_rank_into`].
    ///
    /// # Errors
    /// As [`Cuda::begin_low_rank_into`].
    ///
    /// # Safety
    /// As [`OnStream::encode`], and residual and state hold what the calls before left there, or what [`Cuda::begin_low_rank_into`]
    /// asks for before the first one.
    pub unsafe fn begin_low_rank<T: DeviceCopy>(
        &self,
        steps: &mut ResidentLowRank,
        gradient: &DeviceSlice<T>,
        residual: &mut DeviceSlice<f32>,
        state: &mut DeviceSlice<u8>,
        factors: &mut DeviceSlice<f32>,
    ) -> Result<(), Error> {
        let buffers = LowRankBuffers { gradient: piece(gradient), ..low_rank_buffers(residual, state, factors) };
        // SAFETY: as above.
        unsafe { self.cuda.begin_low_rank_into(steps, &buffers) }
    }

    /// Queues what is between two all-reduces of a step: [`Cuda::advance_low_rank_into`].
    ///
    /// # Errors
    /// As [`Cuda::advance_low_rank_into`].
    ///
    /// # Safety
    /// As [`OnStream::begin_low_rank`].
    pub unsafe fn advance_low_rank(
        &self,
        steps: &mut ResidentLowRank,
        residual: &mut DeviceSlice<f32>,
        state: &mut DeviceSlice<u8>,
        factors: &mut DeviceSlice<f32>,
    ) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe { self.cuda.advance_low_rank_into(steps, &low_rank_buffers(residual, state, factors)) }
    }

    /// Queues the end of a step of PowerSGD: [`Cuda::finish_low_rank_into`].
    ///
    /// # Errors
    /// As [`Cuda::finish_low_rank_into`].
    ///
    /// # Safety
    /// As [`OnStream::begin_low_rank`].
    pub unsafe fn finish_low_rank(
        &self,
        steps: &mut ResidentLowRank,
        residual: &mut DeviceSlice<f32>,
        state: &mut DeviceSlice<u8>,
        factors: &mut DeviceSlice<f32>,
        output: &mut DeviceSlice<f32>,
    ) -> Result<(), Error> {
        let buffers = LowRankBuffers { output: piece(output), ..low_rank_buffers(residual, state, factors) };
        // SAFETY: as above.
        unsafe { self.cuda.finish_low_rank_into(steps, &buffers) }
    }
}

/// What all calls of a step use: the gradient and the output are none.
fn low_rank_buffers(
    residual: &DeviceSlice<f32>,
    state: &DeviceSlice<u8>,
    factors: &DeviceSlice<f32>,
) -> LowRankBuffers<Piece> {
    let none = Piece::new(0, 0);
    LowRankBuffers {
        gradient: none,
        residual: piece(residual),
        state: piece(state),
        factors: piece(factors),
        output: none,
    }
}

fn encode_buffers<T: DeviceCopy>(
    gradient: &DeviceSlice<T>,
    residual: Option<&mut DeviceSlice<f32>>,
    body: &mut DeviceSlice<u8>,
    workspace: Option<&mut DeviceSlice<u8>>,
) -> EncodeBuffers<Piece> {
    EncodeBuffers {
        gradient: piece(gradient),
        residual: residual.map(|buffer| piece(buffer)),
        body: piece(body),
        workspace: workspace.map(|buffer| piece(buffer)),
    }
}
