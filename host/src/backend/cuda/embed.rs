//! Encoding and decoding on a caller's stream, in a caller's memory.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::driver::{DevicePtr, MemoryAt, StreamId};
use super::{Cuda, RealDriver, Shared, failed, unavailable};
use crate::embed::{
    Access, DecodeBuffers, EncodeBuffers, LowRankBuffers, Piece, ScatterBuffers, SelectBuffers, by_role, used,
};
use crate::error::Error;
use crate::kind::BackendKind;
use crate::low_rank::ResidentLowRank;
use crate::model::ModelPlan;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, Limits, Pass, check_count};
use crate::seed::Seed;
use crate::sparse::Selection;

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
    /// The driver compiles a codec's kernels once per context: another [`Cuda`] of it, with whatever stream, finds them for as
    /// long as any is alive. Keep one. Nothing of the caller's is retained or destroyed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no driver, the context is null, or no target's PTX can be loaded;
    /// [`Error::Stream`] for a stream of another context.
    ///
    /// # Safety
    /// - The caller guarantees that `context` is a `CUcontext` and `stream` a `CUstream`, or null for the context's legacy
    ///   default stream.
    /// - The caller guarantees that neither is destroyed before the [`Cuda`], its clones and the sessions that they made are
    ///   dropped. Dropping the last one waits for the context's work, and unloads the kernels.
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

    /// Queues an encode on the stream, in the caller's memory: no device memory is allocated, nothing is waited for, and
    /// a capture of the stream into a CUDA graph records it.
    ///
    /// The first call of a codec has its kernels compiled, which takes a second or more; [`Cuda::warm_up`] does it beforehand,
    /// and a capture asks for that.
    ///
    /// Determinism, formats and edge cases are those of [`Device::encode`](crate::Device::encode): once the stream has
    /// come that far, the body holds the same bytes. Under [`NonFinite::Error`](crate::NonFinite::Error) the verdict is
    /// in the workspace: [`EncodePlan::check_workspace`]. A graph repeats the seed that it was captured with.
    ///
    /// # Errors
    /// Before anything is queued: [`Error::Length`] for memory that is too short or left out, [`Error::Memory`] for
    /// memory that is not the device's, is misaligned, or overlaps other memory of the call; [`Error::Capturing`] where
    /// kernels have yet to be compiled and the stream is being captured; [`Error::Unavailable`] where the driver refuses
    /// them. Else [`Error::Backend`].
    ///
    /// # Safety
    /// - The caller guarantees that the memory stays allocated until the stream has done the work, that no work on another
    ///   stream uses it meanwhile, and that the gradient and the residual hold values.
    /// - The caller guarantees that a graph that recorded the work is not launched after the last [`Cuda`] of the context
    ///   was dropped.
    pub unsafe fn encode_into(
        &self,
        plan: &EncodePlan,
        buffers: &EncodeBuffers<DeviceSlice>,
        seed: Seed,
    ) -> Result<(), Error> {
        let passes = plan.passes(seed, &Limits::NONE)?;
        // SAFETY: the caller keeps the memory until the stream is done, and what is read of it holds values.
        unsafe { self.queue_checked(&passes, &buffers.pieces(plan)?) }
    }

    /// Queues a decode of one body, or of the sum of several, over or onto an output in the caller's memory.
    ///
    /// # Errors
    /// As [`Cuda::encode_into`].
    ///
    /// # Safety
    /// As [`Cuda::encode_into`]: the bodies hold bytes, any bytes; with [`DecodeMode::Add`] the output holds values.
    pub unsafe fn decode_into(
        &self,
        plan: &DecodePlan,
        mode: DecodeMode,
        buffers: &DecodeBuffers<DeviceSlice>,
    ) -> Result<(), Error> {
        let plan = plan.of_bodies();
        let passes = plan.passes(mode, &Limits::NONE)?;
        // SAFETY: the caller keeps the memory until the stream is done, and what is read of it holds values.
        unsafe { self.queue_checked(&passes, &buffers.pieces(&plan)) }
    }

    /// Queues an encode of many tensors: [`Cuda::encode_into`] for a [`ModelPlan`], in one launch set. `table` holds
    /// [`ModelPlan::table`].
    ///
    /// # Errors
    /// As [`Cuda::encode_into`].
    ///
    /// # Safety
    /// As [`Cuda::encode_into`]; and the caller guarantees that the table is this plan's, but for its first eight bytes.
    pub unsafe fn encode_model_into(
        &self,
        plan: &ModelPlan,
        table: DeviceSlice,
        buffers: &EncodeBuffers<DeviceSlice>,
        seed: Seed,
    ) -> Result<(), Error> {
        // SAFETY: the caller keeps the memory until the stream is done, and the table is this plan's.
        unsafe { self.queue_checked(&plan.encode_passes(seed), &buffers.model_pieces(plan, table)?) }
    }

    /// Queues a decode of many tensors' bodies, `payloads` of them one behind the other.
    ///
    /// # Errors
    /// As [`Cuda::encode_into`].
    ///
    /// # Safety
    /// As [`Cuda::decode_into`] and [`Cuda::encode_model_into`].
    pub unsafe fn decode_model_into(
        &self,
        plan: &ModelPlan,
        table: DeviceSlice,
        mode: DecodeMode,
        payloads: u32,
        buffers: &DecodeBuffers<DeviceSlice>,
    ) -> Result<(), Error> {
        check_count(payloads.into())?;
        let passes = plan.decode_passes(mode, payloads, [plan.body_bytes(); 2]);
        // SAFETY: the caller keeps the memory until the stream is done, and the table is this plan's.
        unsafe { self.queue_checked(&passes, &buffers.model_pieces(plan, payloads, table)) }
    }

    /// Queues a selection of the largest entries, all of a model's segments in one launch set.
    ///
    /// Once the stream has come that far, `indices` and `values` hold [`Selection::entries`] entries, the same on every
    /// backend, and [`Selection::seal`] makes a payload of them; [`Selection::check_end`] tells where another stream has disturbed
    /// them. With feedback the residual is gradient + residual, and zero
    /// where an entry was kept; where the selection [is lazy](Selection::is_lazy) that is so once it is settled.
    ///
    /// # Errors
    /// As [`Cuda::encode_into`]; [`Error::Unavailable`] where the selection was planned by the limits of a device that promises more.
    ///
    /// # Safety
    /// As [`Cuda::encode_into`]; and the caller guarantees that the workspace begins with [`Selection::table`], or what the calls
    /// before left of it.
    pub unsafe fn select_into(&self, selection: &Selection, buffers: &SelectBuffers<DeviceSlice>) -> Result<(), Error> {
        // SAFETY: the caller keeps the memory until the stream is done, and the workspace begins with the selection's table.
        unsafe { self.queue_checked(selection.passes(), &buffers.pieces(selection)?) }
    }

    /// Queues the look for what is not finite in gradient + residual, where the codec refuses it
    /// ([`NonFinite::Error`](crate::NonFinite::Error)): nothing under the other policy. Of `buffers`, gradient, residual and workspace are used. Once
    /// [`Selection::status_bytes`] of the workspace are copied to the host, [`Selection::check`] tells whether to go on with
    /// [`Cuda::select_into`], which looks for nothing. A residual that is late is settled first.
    ///
    /// # Errors
    /// As [`Cuda::encode_into`].
    ///
    /// # Safety
    /// As [`Cuda::select_into`].
    pub unsafe fn scan_into(&self, selection: &Selection, buffers: &SelectBuffers<DeviceSlice>) -> Result<(), Error> {
        // SAFETY: the caller keeps the memory until the stream is done, and the workspace begins with the selection's table.
        unsafe { self.queue_checked(selection.scan_passes(), &buffers.scan_pieces(selection)?) }
    }

    /// Queues what takes off the residual of a [`TopK::lazy_selection`](crate::TopK::lazy_selection) what was sent and is still in it: for a
    /// checkpoint, or before anything but the next selection reads or writes it. Of `buffers`, the residual and the first
    /// [`Selection::table_bytes`] of the workspace are used. The next selection goes on from there. Nothing is queued where nothing
    /// is ever late.
    ///
    /// It is one read of the segments that may be late, and a sector for each entry that becomes zero:
    /// [`Device::settle`](crate::Device::settle) where the state is in the caller's memory.
    ///
    /// # Errors
    /// As [`Cuda::encode_into`].
    ///
    /// # Safety
    /// As [`Cuda::select_into`].
    pub unsafe fn settle_into(&self, selection: &Selection, buffers: &SelectBuffers<DeviceSlice>) -> Result<(), Error> {
        // SAFETY: the caller keeps the memory until the stream is done, and the workspace begins with the selection's table.
        unsafe { self.queue_checked(selection.settle_passes(), &buffers.settle_pieces(selection)?) }
    }

    /// Queues a decode of kept entries onto a gradient of `elements`: over zeros, or with a weight onto what is there.
    ///
    /// # Errors
    /// As [`Cuda::encode_into`].
    ///
    /// # Safety
    /// As [`Cuda::decode_into`]; and the caller guarantees that no index is there twice. One that is beyond the elements is
    /// not looked at.
    pub unsafe fn scatter_into(
        &self,
        entries: u64,
        elements: u64,
        weight: Option<f32>,
        buffers: &ScatterBuffers<DeviceSlice>,
    ) -> Result<(), Error> {
        let passes = Selection::scatter(entries, weight, elements, &Limits::NONE)?;
        // SAFETY: the caller keeps the memory until the stream is done, and no index is there twice.
        unsafe { self.queue_checked(&passes, &buffers.pieces(entries, elements, weight.is_none())) }
    }

    /// Queues the beginning of a step of PowerSGD, in the caller's memory: [`Device::begin_low_rank`](crate::Device::begin_low_rank)
    /// where nothing leaves the device. Once the stream has come that far, `factors` holds the first factor, to be all-reduced there.
    ///
    /// # Errors
    /// [`Error::Order`] where another call is due; else as [`Cuda::encode_into`]. The step has then not begun; but after
    /// [`Error::Backend`], which may come when a part is queued, a state has to be uploaded anew.
    ///
    /// # Safety
    /// As [`Cuda::encode_into`]; and the caller guarantees that residual and state hold what the calls before left there, or before
    /// the first one [`ResidentLowRank::image`] and zeros, or what [`ResidentLowRank::upload`] gave.
    pub unsafe fn begin_low_rank_into(
        &self,
        steps: &mut ResidentLowRank,
        buffers: &LowRankBuffers<DeviceSlice>,
    ) -> Result<(), Error> {
        let passes = steps.begin(&Limits::NONE)?;
        // SAFETY: the caller keeps the memory until the stream is done, and residual, state and factors hold what the calls before left.
        unsafe { self.queue_step(steps, &passes, buffers) }
    }

    /// Queues what is between two all-reduces: the factor in `factors` is taken, and the next one is left there.
    ///
    /// # Errors
    /// As [`Cuda::begin_low_rank_into`], and the step is where it was.
    ///
    /// # Safety
    /// As [`Cuda::begin_low_rank_into`]; and the caller guarantees that `factors` holds values.
    pub unsafe fn advance_low_rank_into(
        &self,
        steps: &mut ResidentLowRank,
        buffers: &LowRankBuffers<DeviceSlice>,
    ) -> Result<(), Error> {
        let passes = steps.advance(&Limits::NONE)?;
        // SAFETY: the caller keeps the memory until the stream is done, and residual, state and factors hold what the calls before left.
        unsafe { self.queue_step(steps, &passes, buffers) }
    }

    /// Queues the end of a step: the last factor in `factors` is taken, and `output` becomes what all workers together send.
    ///
    /// # Errors
    /// As [`Cuda::advance_low_rank_into`].
    ///
    /// # Safety
    /// As [`Cuda::advance_low_rank_into`].
    pub unsafe fn finish_low_rank_into(
        &self,
        steps: &mut ResidentLowRank,
        buffers: &LowRankBuffers<DeviceSlice>,
    ) -> Result<(), Error> {
        let passes = steps.finish(&Limits::NONE)?;
        // SAFETY: the caller keeps the memory until the stream is done, and residual, state and factors hold what the calls before left.
        unsafe { self.queue_step(steps, &passes, buffers) }
    }

    /// # Safety
    /// As [`Cuda::advance_low_rank_into`].
    unsafe fn queue_step(
        &self,
        steps: &mut ResidentLowRank,
        passes: &[Pass],
        buffers: &LowRankBuffers<DeviceSlice>,
    ) -> Result<(), Error> {
        // SAFETY: the caller keeps the memory until the stream is done, and residual, state and factors hold what the calls before left.
        unsafe { self.queue_checked(passes, &buffers.pieces(steps)) }?;
        steps.went_on();
        Ok(())
    }

    /// # Safety
    /// As [`Cuda::encode_into`].
    unsafe fn queue_checked(&self, passes: &[Pass], pieces: &[Piece<DeviceSlice>]) -> Result<(), Error> {
        if passes.is_empty() {
            return Ok(());
        }
        self.limits().check_kernels(passes, BackendKind::Cuda)?;
        let pieces = &used(pieces);
        pieces.iter().try_for_each(|piece| self.check(piece))?;
        check_overlaps(pieces)?;
        self.warm_up_passes(passes)?;
        let buffers = by_role(pieces, DevicePtr::NULL, |piece, offset| DevicePtr(piece.buffer.address + offset));
        // SAFETY: every piece is as long as the plan asks, aligned and the device's; the caller answers for the rest.
        let mut queue = |pass| unsafe { self.shared.queue(pass, &buffers, self.stream) };
        passes.iter().try_for_each(&mut queue).map_err(failed)
    }

    /// Checks a piece of memory without touching it.
    fn check(&self, piece: &Piece<DeviceSlice>) -> Result<(), Error> {
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
