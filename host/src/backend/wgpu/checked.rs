//! Work whose objections are errors, without a wait.

use std::future::Future;

use super::device::Wgpu;
use super::fail::failed;
use crate::error::Error;

impl Wgpu {
    /// Runs `work`, which waits for nothing, so that what the device objects to comes back as an error: around
    /// [`Wgpu::record`] in a browser, where it cannot tell. `what` says in the error what was done.
    ///
    /// ```no_run
    /// # async fn run(device: wgpu::Device, queue: wgpu::Queue, gradient: wgpu::Buffer, body: wgpu::Buffer) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::embed::{Encode, EncodeBuffers};
    /// use gradwire::{Codec, Dtype, Qsgd, Seed, wgpu};
    /// let gradwire = Wgpu::on(&device, &queue)?;
    /// let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
    /// let buffers = EncodeBuffers { gradient: gradient.slice(..), residual: None, body: body.slice(..), workspace: None };
    /// gradwire
    ///     .checked("recording an encode", || {
    ///         let mut encoder = device.create_command_encoder(&Default::default());
    ///         gradwire.record(Encode { plan: &plan, seed: Seed::new(42) }, &mut encoder, buffers)?;
    ///         queue.submit([encoder.finish()]);
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What `work` gives; [`Error::Backend`] if the device objects.
    pub async fn checked<T>(&self, what: &str, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let shared = &self.shared;
        shared.loss.check(&shared.name)?;
        let (value, objections) = observed(&shared.device, work);
        if let Err(error) = told(&format!("{what} on {}", shared.name), objections).await {
            shared.loss.look(&shared.device, &error);
            shared.loss.check(&shared.name)?;
            return Err(error);
        }
        let value = value?;
        shared.loss.check(&shared.name).map(|()| value)
    }

    /// As [`Wgpu::checked`], of work that is calls of wgpu's alone: a panic there is an error. A panic of a caller's is
    /// not.
    pub(crate) async fn contained<T>(&self, what: &str, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let shared = &self.shared;
        self.checked(what, || shared.loss.contain(&shared.name, what, work)?).await
    }
}

/// Runs `work`; what the device objects to is in the futures.
///
/// All scopes are closed before any answer is awaited: in between, another future of this thread may open its own.
pub(super) fn observed<T>(
    device: &wgpu::Device,
    work: impl FnOnce() -> T,
) -> (T, [impl Future<Output = Option<wgpu::Error>>; 3]) {
    use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
    let mut scopes = [Validation, OutOfMemory, Internal].map(|filter| device.push_error_scope(filter));
    let value = work();
    // Scopes are a stack: the last one pushed is popped first.
    scopes.reverse();
    (value, scopes.map(|scope| scope.pop()))
}

/// Awaits objections. If there is one, it is an error.
pub(super) async fn told(what: &str, objections: [impl Future<Output = Option<wgpu::Error>>; 3]) -> Result<(), Error> {
    for objection in objections {
        if let Some(error) = objection.await {
            return Err(failed(format!("{what}: {error}")));
        }
    }
    Ok(())
}
