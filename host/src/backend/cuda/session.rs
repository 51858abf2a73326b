//! Buffers on a CUDA device, and passes over them.

use std::sync::Arc;

use gradwire_kernels::params::THREADS;

use super::driver::{DevicePtr, DriverError, KernelArg, StreamId};
use super::{Cuda, Shared, failed};
use crate::device::BackendKind;
use crate::error::Error;
use crate::plan::{Kernel, Params, Pass};
use crate::session::{Clock, ROLES, Role, Session, Sizes, check_range, check_spans, room_for};

/// A [`Session`] on a CUDA device, on the stream of the [`Cuda`] that made it.
pub struct CudaSession {
    shared: Arc<Shared>,
    stream: StreamId,
    sizes: Sizes,
    buffers: [DevicePtr; ROLES],
}

impl Cuda {
    /// Buffers of these sizes.
    ///
    /// # Errors
    /// [`Error::Backend`] where the device has no memory left, with how much was asked and how much is free.
    pub fn session(&self, sizes: Sizes) -> Result<CudaSession, Error> {
        // Made first, so that dropping it frees what was allocated before a failure.
        let mut session =
            CudaSession { shared: self.shared.clone(), stream: self.stream, sizes, buffers: [DevicePtr::NULL; ROLES] };
        for (role, buffer) in Role::ALL.into_iter().zip(&mut session.buffers) {
            *buffer = self.shared.driver.alloc(sizes.of(role).next_multiple_of(4)).map_err(failed)?;
        }
        Ok(session)
    }
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        // What still runs may use the buffers. An error here is one of the device, and freeing is all that is left to do.
        let _ = self.shared.driver.synchronize(self.stream);
        for buffer in self.buffers {
            // SAFETY: the buffer is this session's own, nothing that uses it runs any more, and it is freed once.
            unsafe { self.shared.driver.free(buffer) };
        }
    }
}

impl Shared {
    /// Queues a pass over buffers that begin at these addresses.
    ///
    /// # Safety
    /// - The caller guarantees that what the pass binds of each buffer is allocated from its address on, aligned for its
    ///   type, until the pass is done, and that no other work uses it meanwhile.
    /// - The caller guarantees that the stream is of the driver's context.
    pub(super) unsafe fn queue(
        &self,
        pass: &Pass,
        buffers: &[DevicePtr; ROLES],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        let at = |role: Role| DevicePtr(buffers[role as usize].0 + pass.bindings.of(role).offset);
        if pass.kernel == Kernel::Clear {
            return [Role::Status, Role::Workspace, Role::Output].into_iter().try_for_each(|role| {
                // SAFETY: the caller's, word for word.
                unsafe { self.driver.fill_zero(at(role), pass.bindings.of(role).bytes, stream) }
            });
        }
        let Some(function) = self.functions.get(&pass.kernel) else {
            return Err(DriverError::MissingFunction { name: pass.kernel.name().to_owned() });
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
            Params::LowRank(_) => {
                &[Role::Input, Role::Residual, Role::Workspace, Role::Status, Role::Output, Role::Values]
            }
        };
        let mut args = vec![KernelArg::Bytes(pass.params.as_bytes())];
        // A null pointer tells a kernel's reader, and a sanitizer, that the launch does not use the buffer.
        let pointer = |role: Role| if pass.bindings.of(role).bytes == 0 { DevicePtr::NULL } else { at(role) };
        args.extend(roles.iter().map(|role| KernelArg::Pointer(pointer(*role))));
        // SAFETY: the arguments are those that the kernel declares, in order; the caller answers for the buffers. The
        // module is unloaded with `self`, and the driver waits for the context's work before that.
        unsafe { self.driver.launch(*function, pass.groups, THREADS, &args, stream) }
    }
}

impl CudaSession {
    fn launch_all(&self, passes: &[Pass]) -> Result<(), DriverError> {
        // SAFETY: a plan's spans lie within the sizes that the plan asks for, which the callers checked this session to
        // have; the buffers live until the stream was waited for.
        passes.iter().try_for_each(|pass| unsafe { self.shared.queue(pass, &self.buffers, self.stream) })
    }
}

impl Session for CudaSession {
    fn write(&mut self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, bytes.len())?;
        let to = DevicePtr(self.buffers[role as usize].0 + offset);
        let driver = &self.shared.driver;
        // SAFETY: the range lies in the buffer; the stream is waited for before `bytes` can change.
        unsafe { driver.copy_in(to, bytes, self.stream) }.and_then(|()| driver.synchronize(self.stream)).map_err(failed)
    }

    fn read(&mut self, role: Role, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, out.len())?;
        let from = DevicePtr(self.buffers[role as usize].0 + offset);
        // A copy that fails may have written some of its bytes: `out` is written once all of them are here.
        let mut whole = room_for(out.len())?;
        // SAFETY: the range lies in the buffer; the call waits.
        unsafe { self.shared.driver.copy_out(&mut whole, from, self.stream) }.map_err(failed)?;
        out.copy_from_slice(&whole);
        Ok(())
    }

    fn run(&mut self, passes: &[Pass]) -> Result<(), Error> {
        self.shared.limits().check_kernels(passes, BackendKind::Cuda)?;
        check_spans(&self.sizes, passes)?;
        self.launch_all(passes).and_then(|()| self.shared.driver.synchronize(self.stream)).map_err(failed)
    }

    fn time(&mut self, passes: &[Pass], repeats: u32) -> Result<f64, Error> {
        self.shared.limits().check_kernels(passes, BackendKind::Cuda)?;
        check_spans(&self.sizes, passes)?;
        let mut work = || (0..repeats).try_for_each(|_| self.launch_all(passes));
        self.shared.driver.elapsed(self.stream, &mut work).map_err(failed)
    }

    fn time_copy(&mut self, from: Role, to: Role, repeats: u32) -> Result<(f64, u64), Error> {
        let bytes = self.sizes.of(from).min(self.sizes.of(to));
        let (from, to) = (self.buffers[from as usize], self.buffers[to as usize]);
        let driver = &self.shared.driver;
        // SAFETY: both buffers hold that many bytes, and `elapsed` waits.
        let mut work = || (0..repeats).try_for_each(|_| unsafe { driver.copy_within(to, from, bytes, self.stream) });
        let seconds = driver.elapsed(self.stream, &mut work).map_err(failed)?;
        Ok((seconds, bytes))
    }

    fn clock(&self) -> Clock {
        Clock::Device
    }
}
