//! Gradwire on the contexts, streams and buffers of [cust](https://docs.rs/cust/0.3.2).
//!
//! ```no_run
//! use cust::memory::DeviceBuffer;
//! use cust::stream::{Stream, StreamFlags};
//! use gradwire::embed::{Encode, EncodeBuffers};
//! use gradwire::{Codec, Dtype, Qsgd, Seed};
//! use gradwire_cust::{OnStream, piece};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = cust::quick_init()?;
//! let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
//! let gradient = DeviceBuffer::from_slice(&vec![0.5f32; 1 << 20])?;
//! let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
//! let body = DeviceBuffer::<u8>::zeroed(plan.header().body_bytes() as usize)?;
//! let gradwire = OnStream::new(&context, &stream)?;
//! let buffers = EncodeBuffers { gradient: piece(&gradient), residual: None, body: piece(&body), workspace: None };
//! // SAFETY: the buffers live until the stream was waited for, and nothing else uses them meanwhile.
//! unsafe { gradwire.queue(Encode { plan: &plan, seed: Seed::new(42).step(1) }, buffers) }?;
//! stream.synchronize()?;
//! let payload = plan.header().seal(&body.as_host_vec()?)?;
//! # Ok(()) }
//! ```

use std::marker::PhantomData;

use cust::context::Context;
use cust::memory::{DeviceCopy, DeviceSlice};
use cust::stream::Stream;
use gradwire::Error;
use gradwire::backend::cuda::{Cuda, DeviceSlice as Piece};
use gradwire::embed::Work;
use gradwire::plan::Limits;

/// Gradwire's kernels, loaded into a context of cust's, with work going to a stream of cust's.
///
/// [`OnStream::queue`] is `unsafe` for the reason that cust's launches are: work is queued, and nothing stops a buffer
/// from being dropped before it is done.
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

    /// Queues work: [`Cuda::queue`]. [`piece`] names a buffer, whose elements are of the work's type, whatever `T` is.
    ///
    /// # Errors
    /// As [`Cuda::queue`].
    ///
    /// # Safety
    /// The caller guarantees that the buffers live until the stream was waited for, that nothing else uses them
    /// meanwhile, and that they hold what the fields of the work's buffers say.
    pub unsafe fn queue<W: Work>(&self, work: W, buffers: W::Buffers<Piece>) -> Result<(), Error> {
        // SAFETY: cust's buffers are memory that holds values; the caller answers for the rest.
        unsafe { self.cuda.queue(work, buffers) }
    }
}
