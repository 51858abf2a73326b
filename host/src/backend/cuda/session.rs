//! Buffers on a CUDA device, and passes over them.

use std::sync::Arc;

use gradwire_kernels::params::THREADS;

use super::driver::{DevicePtr, DriverError, KernelArg, StreamId};
use super::{Cuda, Shared, failed};
use crate::error::Error;
use crate::plan::{Kernel, Params, Pass};
use crate::session::{ROLES, Role, Session, Sizes, check_range, check_spans};

/// A [`Session`] on a CUDA device, on the driver's own stream.
pub struct CudaSession {
    shared: Arc<Shared>,
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
        let mut session = CudaSession { shared: self.shared.clone(), sizes, buffers: [DevicePtr::NULL; ROLES] };
        for (role, buffer) in Role::ALL.into_iter().zip(&mut session.buffers) {
            *buffer = self.shared.driver.alloc(sizes.of(role).next_multiple_of(4)).map_err(failed)?;
        }
        Ok(session)
    }
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        // What still runs may use the buffers. An error here is one of the device, and freeing is all that is left to do.
        let _ = self.shared.driver.synchronize(StreamId::OWN);
        for buffer in self.buffers {
            // SAFETY: the buffer is this session's own, nothing that uses it runs any more, and it is freed once.
            unsafe { self.shared.driver.free(buffer) };
        }
    }
}

impl CudaSession {
    fn pointer(&self, pass: &Pass, role: Role) -> KernelArg<'static> {
        let span = pass.bindings.of(role);
        // A null pointer tells a kernel's reader, and a sanitizer, that the launch does not use the buffer.
        let base = self.buffers[role as usize];
        KernelArg::Pointer(if span.bytes == 0 { DevicePtr::NULL } else { DevicePtr(base.0 + span.offset) })
    }

    /// Queues a pass.
    fn launch(&self, pass: &Pass) -> Result<(), DriverError> {
        let driver = &self.shared.driver;
        if pass.kernel == Kernel::Clear {
            return [Role::Status, Role::Workspace, Role::Output].into_iter().try_for_each(|role| {
                let span = pass.bindings.of(role);
                let at = DevicePtr(self.buffers[role as usize].0 + span.offset);
                // SAFETY: the span lies in the buffer, which lives as long as the session.
                unsafe { driver.fill_zero(at, span.bytes, StreamId::OWN) }
            });
        }
        let Some(function) = self.shared.functions.get(&pass.kernel) else {
            return Err(DriverError::MissingFunction { name: pass.kernel.name().to_owned() });
        };
        let roles: &[Role] = match pass.params {
            Params::Encode(_) => {
                &[Role::Input, Role::Residual, Role::Scalars, Role::Codes, Role::Workspace, Role::Status]
            }
            Params::Decode(_) => &[Role::Scalars, Role::Codes, Role::Output],
            Params::Select(_) => &[Role::Input, Role::Residual, Role::Workspace, Role::Indices, Role::Values],
            Params::Scatter(_) => &[Role::Indices, Role::Values, Role::Output],
            Params::LowRank(_) => {
                &[Role::Input, Role::Residual, Role::Workspace, Role::Status, Role::Output, Role::Values]
            }
        };
        let mut args = vec![KernelArg::Bytes(pass.params.as_bytes())];
        args.extend(roles.iter().map(|role| self.pointer(pass, *role)));
        // SAFETY: the arguments are those that the kernel declares, in order; a plan's spans lie within the sizes that the
        // plan asks for, which `run` checked this session to have; the buffers live until the stream was waited for.
        unsafe { driver.launch(*function, pass.groups, THREADS, &args, StreamId::OWN) }
    }

    fn launch_all(&self, passes: &[Pass]) -> Result<(), DriverError> {
        passes.iter().try_for_each(|pass| self.launch(pass))
    }
}

impl Session for CudaSession {
    fn write(&mut self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, bytes.len())?;
        let to = DevicePtr(self.buffers[role as usize].0 + offset);
        let driver = &self.shared.driver;
        // SAFETY: the range lies in the buffer; the stream is waited for before `bytes` can change.
        unsafe { driver.copy_in(to, bytes, StreamId::OWN) }
            .and_then(|()| driver.synchronize(StreamId::OWN))
            .map_err(failed)
    }

    fn read(&mut self, role: Role, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, out.len())?;
        let from = DevicePtr(self.buffers[role as usize].0 + offset);
        // SAFETY: the range lies in the buffer; the call waits.
        unsafe { self.shared.driver.copy_out(out, from, StreamId::OWN) }.map_err(failed)
    }

    fn run(&mut self, passes: &[Pass]) -> Result<(), Error> {
        check_spans(&self.sizes, passes)?;
        self.launch_all(passes).and_then(|()| self.shared.driver.synchronize(StreamId::OWN)).map_err(failed)
    }

    fn time(&mut self, passes: &[Pass], repeats: u32) -> Result<f64, Error> {
        check_spans(&self.sizes, passes)?;
        let mut work = || (0..repeats).try_for_each(|_| self.launch_all(passes));
        self.shared.driver.elapsed(StreamId::OWN, &mut work).map_err(failed)
    }

    fn time_copy(&mut self, from: Role, to: Role, repeats: u32) -> Result<(f64, u64), Error> {
        let bytes = self.sizes.of(from).min(self.sizes.of(to));
        let (from, to) = (self.buffers[from as usize], self.buffers[to as usize]);
        let driver = &self.shared.driver;
        // SAFETY: both buffers hold that many bytes, and `elapsed` waits.
        let mut work = || (0..repeats).try_for_each(|_| unsafe { driver.copy_within(to, from, bytes, StreamId::OWN) });
        let seconds = driver.elapsed(StreamId::OWN, &mut work).map_err(failed)?;
        Ok((seconds, bytes))
    }
}
