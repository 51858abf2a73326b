//! Buffers on a CUDA device, and passes over them.

use std::sync::atomic::Ordering;

use gradwire_kernels::params::THREADS;

use super::device::Cuda;
use super::driver::{DevicePtr, DriverError, KernelArg, StreamId};
use super::fail::failed;
use super::preset::Launch;
use super::shared::Shared;
use crate::error::Error;
use crate::kind::BackendKind;
use crate::plan::{Kernel, Params, Pass, ROLES, Role, Sizes};
use crate::session::{Clock, Session, check_copy, check_range, check_spans, room_for};

/// A [`Session`] on a CUDA device, on the stream of the [`Cuda`] that made it.
///
/// It keeps that [`Cuda`], and with it what keeps the stream and its context alive.
pub struct CudaSession {
    cuda: Cuda,
    sizes: Sizes,
    buffers: [DevicePtr; ROLES],
}

impl Cuda {
    /// Buffers of these sizes.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device has no memory left, with how much was asked and how much is free.
    pub fn session(&self, sizes: Sizes) -> Result<CudaSession, Error> {
        // Made first, so that dropping it frees what was allocated before a failure.
        let mut session = CudaSession { cuda: self.clone(), sizes, buffers: [DevicePtr::NULL; ROLES] };
        for (role, buffer) in Role::ALL.into_iter().zip(&mut session.buffers) {
            let bytes = sizes.of(role);
            let words = bytes.checked_next_multiple_of(4).ok_or(DriverError::TooLarge { bytes }).map_err(failed)?;
            *buffer = self.shared.driver.alloc(words).map_err(failed)?;
        }
        Ok(session)
    }
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        // What still runs may use the buffers. An error here is one of the device, and freeing is all that is left to
        // do.
        let driver = &self.cuda.shared.driver;
        let _ = driver.synchronize(self.cuda.stream);
        for buffer in self.buffers {
            // SAFETY: the buffer is this session's own, nothing that uses it runs any more, and it is freed once.
            unsafe { driver.free(buffer) };
        }
    }
}

impl Shared {
    /// Queues passes over buffers that begin at these addresses, in their order. Their kernels are loaded:
    /// [`Modules::ready`](super::modules::Modules::ready).
    ///
    /// A kernel that waits for the one before it by itself may begin while that one drains, where that one is of this
    /// call and waits as well. What is before the first one may be anybody's, and is done when it begins.
    ///
    /// # Safety
    /// - The caller guarantees that what the passes bind of each buffer is allocated from its address on, aligned for
    ///   its type, until they are done, and that no other work uses it meanwhile.
    /// - The caller guarantees that the stream is of the driver's context.
    pub(super) unsafe fn queue(
        &self,
        passes: &[Pass],
        buffers: &[DevicePtr; ROLES],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        let mut chain = Chain::default();
        // SAFETY: the caller answers for each.
        passes.iter().try_for_each(|pass| unsafe { self.queue_one(pass, buffers, stream, &mut chain) })
    }

    /// # Safety
    /// As [`Shared::queue`].
    unsafe fn queue_one(
        &self,
        pass: &Pass,
        buffers: &[DevicePtr; ROLES],
        stream: StreamId,
        chain: &mut Chain,
    ) -> Result<(), DriverError> {
        let at = |role: Role| DevicePtr(buffers[role as usize].0 + pass.bindings.of(role).offset);
        if pass.kernel == Kernel::Clear {
            chain.waits = false;
            return [Role::Status, Role::Workspace, Role::Output].into_iter().try_for_each(|role| {
                // SAFETY: the caller keeps the session's buffers for as long as the stream works on them.
                unsafe { self.driver.fill_zero(at(role), pass.bindings.of(role).bytes, stream) }
            });
        }
        let launch = Launch::of(pass);
        let Some(function) = self.modules.function(launch.kernel) else {
            return Err(DriverError::MissingFunction { name: launch.kernel.name().to_owned() });
        };
        let roles: &[Role] = match pass.params {
            Params::Encode(_) => {
                &[Role::Input, Role::Residual, Role::Scalars, Role::Codes, Role::Workspace, Role::Status]
            }
            Params::Decode(_) if matches!(pass.kernel, Kernel::DecodeSegments(_)) => {
                &[Role::Scalars, Role::Codes, Role::Output, Role::Workspace]
            }
            Params::Decode(_) => &[Role::Scalars, Role::Codes, Role::Output],
            Params::Select(_) => &[Role::Input, Role::Residual, Role::Workspace, Role::Indices, Role::Values],
            Params::Scatter(_) => &[Role::Indices, Role::Values, Role::Output],
            Params::Momentum(_) => &[Role::Input, Role::Residual],
            Params::Restore(_) => &[Role::Input, Role::Residual, Role::Status],
            Params::Rotate(_) | Params::Dct(_) | Params::Tiles(_) | Params::Vote(_) => &[Role::Input, Role::Output],
            Params::Gather(_) => &[Role::Input, Role::Residual, Role::Output],
            Params::Spread(_) => &[Role::Values, Role::Output],
            Params::Entropy(_) => &[Role::Codes, Role::Values, Role::Workspace, Role::Status],
            Params::LowRank(_) => {
                &[Role::Input, Role::Residual, Role::Workspace, Role::Status, Role::Output, Role::Values]
            }
        };
        let mut args = vec![KernelArg::Bytes(launch.params(pass))];
        // A null pointer tells a kernel's reader, and a sanitizer, that the launch does not use the buffer.
        let pointer = |role: Role| if pass.bindings.of(role).bytes == 0 { DevicePtr::NULL } else { at(role) };
        args.extend(roles.iter().map(|role| KernelArg::Pointer(pointer(*role))));
        let is_dependent = function.waits && chain.waits && self.may_overlap(stream, chain)?;
        // No blocks are no launch.
        if launch.groups > 0 {
            chain.waits = function.waits;
        }
        // SAFETY: the arguments are those that the kernel declares, in order; the caller answers for the buffers. The
        // module is unloaded with `self`, and the driver waits for the context's work before that. A kernel that is
        // launched as a dependent one waits, and so does the one before it. Another thread may queue work on the stream
        // between the two; where that is ours, it waits as well, or is launched after all that was queued.
        unsafe {
            if is_dependent {
                self.driver.launch_dependent(function.id, launch.groups, THREADS, &args, stream)
            } else {
                self.driver.launch(function.id, launch.groups, THREADS, &args, stream)
            }
        }
    }

    /// Whether launches of a call may overlap. A graph that records them gets none that do: drivers before CUDA 12.3
    /// know no such edges in a graph, and later ones refuse to tell a graph's edges to programs that ask as before
    /// (`CUDA_ERROR_LOSSY_QUERY`).
    fn may_overlap(&self, stream: StreamId, chain: &mut Chain) -> Result<bool, DriverError> {
        if !self.overlapping.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if let Some(known) = chain.may_overlap {
            return Ok(known);
        }
        let found = !self.driver.is_capturing(stream)?;
        chain.may_overlap = Some(found);
        Ok(found)
    }
}

/// Launches of one call, one after another.
#[derive(Default)]
struct Chain {
    /// Whether what was queued last is a kernel that waits for the one before it by itself.
    waits: bool,
    /// What [`Shared::may_overlap`] found, once it was asked.
    may_overlap: Option<bool>,
}

impl CudaSession {
    /// # Safety
    /// The caller guarantees that the spans of the passes were checked, and that memory holds what they take on trust.
    unsafe fn launch_all(&self, passes: &[Pass]) -> Result<(), DriverError> {
        // SAFETY: the spans lie in this session's buffers and are aligned, as the callers checked; the buffers live
        // until the stream was waited for; the stream is of the driver's context, as `Cuda` has it.
        unsafe { self.cuda.shared.queue(passes, &self.buffers, self.cuda.stream) }
    }
}

impl Session for CudaSession {
    fn write(&mut self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, bytes.len())?;
        let to = DevicePtr(self.buffers[role as usize].0 + offset);
        let (driver, stream) = (&self.cuda.shared.driver, self.cuda.stream);
        // SAFETY: the range lies in the buffer; the stream is waited for before `bytes` can change.
        unsafe { driver.copy_in(to, bytes, stream) }.and_then(|()| driver.synchronize(stream)).map_err(failed)
    }

    fn read(&mut self, role: Role, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, out.len())?;
        let from = DevicePtr(self.buffers[role as usize].0 + offset);
        // A copy that fails may have written some of its bytes: `out` is written once all of them are here.
        let mut whole = room_for(out.len())?;
        // SAFETY: the range lies in the buffer; the call waits.
        unsafe { self.cuda.shared.driver.copy_out(&mut whole, from, self.cuda.stream) }.map_err(failed)?;
        out.copy_from_slice(&whole);
        Ok(())
    }

    unsafe fn run_trusted(&mut self, passes: &[Pass]) -> Result<(), Error> {
        let Cuda { shared, stream, .. } = &self.cuda;
        shared.limits().check_kernels(passes, BackendKind::Cuda)?;
        check_spans(&self.sizes, passes)?;
        self.cuda.warm_up_passes(passes)?;
        // SAFETY: the spans were just checked; the caller answers for what the passes take on trust.
        unsafe { self.launch_all(passes) }.and_then(|()| shared.driver.synchronize(*stream)).map_err(failed)
    }

    unsafe fn time_trusted(&mut self, passes: &[Pass], repeats: u32) -> Result<f64, Error> {
        let Cuda { shared, stream, .. } = &self.cuda;
        shared.limits().check_kernels(passes, BackendKind::Cuda)?;
        check_spans(&self.sizes, passes)?;
        self.cuda.warm_up_passes(passes)?;
        // SAFETY: as in `run_trusted`, each time they run.
        let mut work = || (0..repeats).try_for_each(|_| unsafe { self.launch_all(passes) });
        shared.driver.elapsed(*stream, &mut work).map_err(failed)
    }

    fn time_copy(&mut self, from: Role, to: Role, repeats: u32) -> Result<(f64, u64), Error> {
        check_copy(from, to)?;
        let bytes = self.sizes.of(from).min(self.sizes.of(to));
        let (from, to) = (self.buffers[from as usize], self.buffers[to as usize]);
        let (driver, stream) = (&self.cuda.shared.driver, self.cuda.stream);
        // SAFETY: both buffers hold that many bytes, they are two, and `elapsed` waits.
        let mut work = || (0..repeats).try_for_each(|_| unsafe { driver.copy_within(to, from, bytes, stream) });
        let seconds = driver.elapsed(stream, &mut work).map_err(failed)?;
        Ok((seconds, bytes))
    }

    fn clock(&self) -> Clock {
        Clock::Device
    }
}
