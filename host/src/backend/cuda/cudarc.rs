//! The types of cudarc, which candle, burn and others hold their memory in.

use std::fmt;
use std::sync::Arc;

use ::cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr as _, DevicePtrMut as _, SyncOnDrop};
use half::{bf16, f16};

use super::device::Cuda;
use super::embed::DeviceSlice;
use super::fail::failed;
use crate::embed::{Access, Checked, Piece, Work, sealed};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::Limits;

/// A slice or a view of cudarc's, lent to work for a call of [`Cuda::queue_views`].
///
/// Elements are u8, u32, f32, f16 or bf16. Where the work has floats, they are of the type that it asks for.
pub enum View<'v> {
    /// Lent to be read.
    Read(&'v dyn Lend),
    /// Lent to be read and written.
    Write(&'v mut dyn LendMut),
}

impl<'v> View<'v> {
    /// Lends a `CudaSlice`, `CudaView` or `CudaViewMut` to be read.
    pub fn read(slice: &'v impl Lend) -> Self {
        Self::Read(slice)
    }

    /// Lends a `CudaSlice` or `CudaViewMut` to be read and written.
    pub fn write(slice: &'v mut impl LendMut) -> Self {
        Self::Write(slice)
    }

    fn ty(&self) -> Type {
        match self {
            Self::Read(slice) => slice.ty(),
            Self::Write(slice) => slice.ty(),
        }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if matches!(self, Self::Read(_)) { "Read" } else { "Write" };
        f.debug_tuple(name).field(&self.ty().name).finish()
    }
}

/// A type of elements that memory can be lent of: any bytes are one.
#[derive(Clone, Copy)]
pub struct Type {
    pub(crate) name: &'static str,
    pub(crate) dtype: Option<Dtype>,
}

/// What can be lent to be read. It is implemented here alone.
pub trait Lend: lent::Sealed {
    #[doc(hidden)]
    fn ty(&self) -> Type;
    #[doc(hidden)]
    fn lend<'a>(&'a self, stream: &'a CudaStream) -> (DeviceSlice, SyncOnDrop<'a>);
}

/// What can be lent to be written. It is implemented here alone.
pub trait LendMut: Lend {
    #[doc(hidden)]
    fn lend_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (DeviceSlice, SyncOnDrop<'a>);
}

mod lent {
    pub trait Sealed {}
}

macro_rules! lend {
    ($($element:ty, $name:literal, $dtype:expr;)*) => { $(
        lend!(@read $element, $name, $dtype, CudaSlice<$element>, CudaView<'_, $element>, CudaViewMut<'_, $element>);
        lend!(@write $element, CudaSlice<$element>, CudaViewMut<'_, $element>);
    )* };
    (@read $element:ty, $name:literal, $dtype:expr, $($slice:ty),*) => { $(
        impl lent::Sealed for $slice {}

        impl Lend for $slice {
            fn ty(&self) -> Type {
                Type { name: $name, dtype: $dtype }
            }

            fn lend<'a>(&'a self, stream: &'a CudaStream) -> (DeviceSlice, SyncOnDrop<'a>) {
                let bytes = (self.len() * size_of::<$element>()) as u64;
                let (address, guard) = self.device_ptr(stream);
                (DeviceSlice::new(address, bytes), guard)
            }
        }
    )* };
    (@write $element:ty, $($slice:ty),*) => { $(
        impl LendMut for $slice {
            fn lend_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (DeviceSlice, SyncOnDrop<'a>) {
                let bytes = (self.len() * size_of::<$element>()) as u64;
                let (address, guard) = self.device_ptr_mut(stream);
                (DeviceSlice::new(address, bytes), guard)
            }
        }
    )* };
}

lend! {
    u8, "u8", None;
    u32, "u32", None;
    f32, "f32", Some(Dtype::F32);
    f16, "f16", Some(Dtype::F16);
    bf16, "bf16", Some(Dtype::Bf16);
}

impl Cuda {
    /// Works on a stream of cudarc's, in its context.
    ///
    /// The kernels are compiled once a context: a second call finds them while the first one's [`Cuda`] lives.
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

    /// Queues work on slices of cudarc's: [`Cuda::queue`] for an encode or a decode, which trust nothing that they find
    /// in memory.
    ///
    /// ```no_run
    /// # fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use cudarc::driver::CudaContext;
    /// use gradwire::backend::cuda::{Cuda, View};
    /// use gradwire::embed::{Encode, EncodeBuffers};
    /// use gradwire::{Codec, Dtype, Qsgd, Seed};
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let gradient = stream.clone_htod(&vec![0.5f32; 1 << 20])?;
    /// let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
    /// let mut body = stream.alloc_zeros::<u8>(plan.header().body_bytes() as usize)?;
    /// let cuda = Cuda::on(&stream)?;
    /// let (gradient, to) = (View::read(&gradient), View::write(&mut body));
    /// let buffers = EncodeBuffers { gradient, residual: None, body: to, workspace: None };
    /// cuda.queue_views(Encode { plan: &plan, seed: Seed::new(42).step(1) }, buffers)?;
    /// let payload = plan.header().seal(&stream.clone_dtoh(&body)?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Cuda::queue`]; [`Error::Dtype`] for floats of another type than the work's; [`Error::Memory`] for what is
    /// written and was lent to be read; [`Error::Stream`] if this value was not made by [`Cuda::on`], or while the
    /// stream is being captured.
    pub fn queue_views<W: Checked>(&self, work: W, buffers: W::Buffers<View<'_>>) -> Result<(), Error> {
        self.refuse_capture("Cuda::queue_views_trusted records it, on a contract")?;
        // SAFETY: the work trusts nothing that it finds, and no graph records it.
        unsafe { self.queue_views_trusted(work, buffers) }
    }

    /// Queues any work on slices of cudarc's: [`Cuda::queue_views`] for what trusts what it finds in memory.
    ///
    /// # Errors
    /// As [`Cuda::queue_views`].
    ///
    /// # Safety
    /// - The caller guarantees that the memory holds what the fields of the work's buffers say, such as a table.
    /// - The caller guarantees that a graph that recorded the work is not launched after a slice or the last [`Cuda`]
    ///   of the context was dropped.
    pub unsafe fn queue_views_trusted<W: Work>(&self, work: W, buffers: W::Buffers<View<'_>>) -> Result<(), Error> {
        let stream = self.of_cudarc("use Cuda::queue")?;
        let passes = work.passes(&Limits::NONE)?;
        let pieces = work.pieces(buffers)?;
        pieces.iter().try_for_each(|piece| expect_lent(piece, stream))?;
        // The guards make cudarc's other streams wait for what is queued while they are held.
        let mut guards = Vec::with_capacity(pieces.len());
        let mut lend = |view| {
            let (slice, guard) = match view {
                View::Read(slice) => slice.lend(stream),
                View::Write(slice) => slice.lend_mut(stream),
            };
            guards.push(guard);
            slice
        };
        let pieces: Vec<_> = pieces.into_iter().map(|piece| piece.map(&mut lend)).collect();
        // SAFETY: cudarc's slices are memory that holds values; cudarc orders work on other streams, and frees memory,
        // after what was queued here. The caller answers for what else it holds.
        unsafe { self.queue_pieces(&passes, &pieces) }?;
        drop(passes);
        work.queued(sealed::Surface(()));
        Ok(())
    }

    pub(crate) fn refuse_capture(&self, remedy: &str) -> Result<(), Error> {
        if !self.shared.driver.is_capturing(self.stream).map_err(failed)? {
            return Ok(());
        }
        let problem = format!(
            "is being captured into a CUDA graph, which may be launched when slices and kernels are gone: {remedy}"
        );
        Err(Error::Stream { address: self.stream.to_u64(), problem })
    }

    /// The stream of cudarc's that this value was made of.
    pub(crate) fn of_cudarc(&self, otherwise: &str) -> Result<&CudaStream, Error> {
        self.keep.as_deref().ok_or_else(|| Error::Stream {
            address: self.stream.to_u64(),
            problem: format!("is not one of cudarc's: open it with Cuda::on, or {otherwise}"),
        })
    }
}

/// Checks that a piece was lent for what is done with it.
fn expect_lent(piece: &Piece<View<'_>>, stream: &CudaStream) -> Result<(), Error> {
    let (found, expected) = (piece.buffer.ty(), piece.dtype);
    if let Some(expected) = expected.filter(|_| expected != found.dtype) {
        return Err(Error::Dtype { expected: expected.name(), found: found.name });
    }
    match piece.buffer {
        View::Read(slice) if piece.access != Access::Read => {
            let address = slice.lend(stream).0.address();
            let problem = "is written, and was lent to be read: lend it by View::write".to_owned();
            Err(Error::Memory { what: piece.what, address, problem })
        }
        _ => Ok(()),
    }
}
