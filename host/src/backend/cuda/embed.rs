//! Encoding and decoding on a caller's stream, in a caller's memory.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::device::Cuda;
use super::driver::{DevicePtr, MemoryAt, StreamId};
use super::fail::{failed, unavailable};
use super::real::RealDriver;
use super::shared::Shared;
use crate::embed::{Access, Piece, Work, by_role, sealed, used};
use crate::error::Error;
use crate::kind::BackendKind;
use crate::plan::{Limits, Pass};

/// A piece of device memory that a caller owns: an address and a length. Naming one touches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    address: u64,
    bytes: u64,
}

impl DeviceSlice {
    /// The `bytes` bytes from a `CUdeviceptr` on.
    pub const fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// Where it begins.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// How long it is.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

/// The contexts that were handed over, and what was loaded into each, for as long as a [`Cuda`] holds it.
static LOADED: Mutex<Vec<(usize, Weak<Shared>)>> = Mutex::new(Vec::new());

impl Cuda {
    /// Works in a caller's context, on a caller's stream.
    ///
    /// The driver compiles a codec's kernels once per context: another [`Cuda`] of it, with whatever stream, finds them
    /// for as long as any is alive. Keep one. Nothing of the caller's is retained or destroyed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no driver, the context is null, or no target's PTX can be loaded;
    /// [`Error::Stream`] for a stream of another context.
    ///
    /// # Safety
    /// - The caller guarantees that `context` is a `CUcontext` and `stream` a `CUstream`, or null for the context's
    ///   legacy default stream.
    /// - The caller guarantees that neither is destroyed before the [`Cuda`], its clones and the sessions that they
    ///   made are dropped. Dropping the last one waits for the context's work, and unloads the kernels.
    pub unsafe fn from_raw(context: *mut c_void, stream: *mut c_void) -> Result<Self, Error> {
        let key = context as usize;
        // A thread that panicked meanwhile left a list that is still whole.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|(_, shared)| shared.strong_count() > 0);
        let known = loaded.iter().find(|(context, _)| *context == key).and_then(|(_, shared)| shared.upgrade());
        let shared = match known {
            Some(shared) => shared,
            None => {
                // SAFETY: the caller answers for the context; the null stream is always there.
                let driver = unsafe { RealDriver::from_raw(context, std::ptr::null_mut()) };
                let driver = driver.map_err(|error| unavailable(error.to_string()))?;
                let shared = Self::with_driver(Arc::new(driver), None)?.shared;
                loaded.push((key, Arc::downgrade(&shared)));
                shared
            }
        };
        drop(loaded);
        // SAFETY: the caller answers for the stream.
        unsafe { Self::new(shared, StreamId::OWN).on_stream(stream) }
    }

    /// The same device and kernels, with work going to another stream of the same context.
    ///
    /// # Errors
    /// [`Error::Stream`] for a stream of another context.
    ///
    /// # Safety
    /// As [`Cuda::from_raw`] has it of the stream, and of the context: the value that is returned keeps neither.
    pub unsafe fn on_stream(&self, stream: *mut c_void) -> Result<Self, Error> {
        // SAFETY: the caller answers for the stream's life; its context is looked at before anything is queued on it.
        let id = unsafe { StreamId::from_raw(stream) };
        if !self.shared.driver.is_own_stream(id).map_err(failed)? {
            return Err(Error::Stream {
                address: stream as u64,
                problem: format!(
                    "belongs to another context than {}: hand over a stream of that context, or open that stream's \
                     context with Cuda::from_raw",
                    self.shared.name
                ),
            });
        }
        Ok(Self::new(self.shared.clone(), id))
    }

    /// Queues work on the stream, in the caller's memory: no device memory is allocated, nothing is waited for, and a
    /// capture of the stream into a CUDA graph records it.
    ///
    /// The first call of a codec has its kernels compiled, which takes a second or more; [`Cuda::warm_up`] does it
    /// beforehand, and a capture asks for that.
    ///
    /// ```no_run
    /// # fn run(context: *mut std::ffi::c_void, stream: *mut std::ffi::c_void, x: u64, body: u64) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::cuda::{Cuda, DeviceSlice};
    /// use gradwire::embed::{Encode, EncodeBuffers};
    /// use gradwire::{Codec, Dtype, Qsgd, Seed};
    /// let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
    /// // SAFETY: both are the program's, and live.
    /// let cuda = unsafe { Cuda::from_raw(context, stream) }?;
    /// let gradient = DeviceSlice::new(x, plan.gradient_bytes());
    /// let body = DeviceSlice::new(body, plan.header().body_bytes());
    /// let buffers = EncodeBuffers { gradient, residual: None, body, workspace: None };
    /// // SAFETY: the memory holds a gradient, and is not freed before the stream was waited for.
    /// unsafe { cuda.queue(Encode { plan: &plan, seed: Seed::new(42).step(1) }, buffers) }?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Before anything is queued: [`Error::Length`] for memory that is too short or left out, [`Error::Memory`] for
    /// memory that is not the device's, is misaligned, or overlaps other memory of the call; [`Error::Capturing`] if
    /// kernels have yet to be compiled and the stream is being captured; [`Error::Unavailable`] if the driver
    /// refuses them, or where work was planned by the limits of a device that promises more; those of the work. Else
    /// [`Error::Backend`].
    ///
    /// # Safety
    /// - The caller guarantees that the memory stays allocated until the stream has done the work, and that no work on
    ///   another stream uses it meanwhile.
    /// - The caller guarantees that the memory holds what the fields of the work's buffers say.
    /// - The caller guarantees that a graph that recorded the work is not launched after the last [`Cuda`] of the
    ///   context was dropped.
    /// - The caller guarantees that a kernel that is queued on the stream as a programmatic dependent launch, directly
    ///   after this call or meanwhile by another thread, waits (`griddepcontrol.wait`) before it touches memory or ends.
    pub unsafe fn queue<W: Work>(&self, work: W, buffers: W::Buffers<DeviceSlice>) -> Result<(), Error> {
        let passes = work.passes(&Limits::NONE)?;
        // SAFETY: the caller answers for the memory.
        unsafe { self.queue_pieces(&passes, &work.pieces(buffers)?) }?;
        drop(passes);
        work.queued(sealed::Surface(()));
        Ok(())
    }

    /// The stream as another library names it.
    ///
    /// # Errors
    /// [`Error::Stream`] if the driver has none.
    pub(crate) fn raw_stream(&self) -> Result<*mut c_void, Error> {
        self.shared.driver.raw_stream(self.stream).ok_or_else(|| Error::Stream {
            address: self.stream.to_u64(),
            problem: format!("is none that another library can queue on: {} has no CUstream behind it", self.name()),
        })
    }

    /// # Safety
    /// As [`Cuda::queue`].
    pub(super) unsafe fn queue_pieces(&self, passes: &[Pass], pieces: &[Piece<DeviceSlice>]) -> Result<(), Error> {
        if passes.is_empty() {
            return Ok(());
        }
        self.limits().check_kernels(passes, BackendKind::Cuda)?;
        let pieces = &used(pieces);
        pieces.iter().try_for_each(|piece| self.check_piece(piece))?;
        check_overlaps(pieces)?;
        self.warm_up_passes(passes)?;
        let buffers = by_role(pieces, DevicePtr::NULL, |piece, offset| DevicePtr(piece.buffer.address + offset));
        // SAFETY: every piece is as long as the work asks, aligned and the device's; the caller answers for the rest.
        unsafe { self.shared.queue(passes, &buffers, self.stream) }.map_err(failed)
    }

    /// Checks a piece of memory without touching it.
    pub(super) fn check_piece(&self, piece: &Piece<DeviceSlice>) -> Result<(), Error> {
        let DeviceSlice { address, bytes } = piece.buffer;
        let refuse = |problem: String| Err(Error::Memory { what: piece.what, address, problem });
        if bytes < piece.needed {
            return Err(Error::Length { what: piece.what, found: bytes, expected: piece.needed, unit: "bytes" });
        }
        if !address.is_multiple_of(piece.alignment) {
            return refuse(format!("is not aligned: it has to begin at a multiple of {} bytes", piece.alignment));
        }
        match self.shared.driver.memory_at(DevicePtr(address)).map_err(failed)? {
            MemoryAt::Device { left: Some(left) } if left < piece.needed => refuse(format!(
                "has {left} bytes to the end of its allocation, and {} are needed: allocate more",
                piece.needed
            )),
            MemoryAt::Device { .. } => Ok(()),
            MemoryAt::Host => refuse("is host memory: copy it to the device first".to_owned()),
            MemoryAt::OtherDevice(device) => {
                refuse(format!("is memory of device {device}, and the stream is of {}: copy it there", self.name()))
            }
            MemoryAt::Unknown => refuse(format!(
                "is no memory that {} knows: allocate it, and hand it over before it is freed",
                self.name()
            )),
        }
    }
}

/// Checks that nothing that is written lies over anything else.
fn check_overlaps(pieces: &[Piece<DeviceSlice>]) -> Result<(), Error> {
    for (index, a) in pieces.iter().enumerate() {
        for b in &pieces[..index] {
            let [from, to] = [a, b].map(|piece| piece.buffer.address);
            let apart = from.saturating_add(a.needed) <= to || to.saturating_add(b.needed) <= from;
            let both_read = a.access == Access::Read && b.access == Access::Read;
            if !(apart || both_read) {
                let problem = format!("overlaps the {}: give each its own memory", b.what);
                return Err(Error::Memory { what: a.what, address: from, problem });
            }
        }
    }
    Ok(())
}
