//! A device that was lost, and the calls of wgpu's that panic where one is.

use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use pollster::block_on;

use super::fail::{WAITS, failed};
use crate::error::Error;

/// Whether a device was lost, and why. A clone is of the same device.
#[derive(Clone, Default)]
pub(super) struct Loss(Arc<OnceLock<String>>);

impl Loss {
    /// Remembers that the device was lost; the first reason stays.
    pub(super) fn tell(&self, reason: &str) {
        // A device is lost once, and what follows is a consequence.
        let _ = self.0.set(reason.trim().to_owned());
    }

    /// An error once the device was lost. wgpu itself says nothing then: what is asked of a lost device is not done,
    /// and no error scope is told.
    pub(super) fn check(&self, name: &str) -> Result<(), Error> {
        match self.0.get() {
            None => Ok(()),
            Some(reason) => Err(failed(format!(
                "{name} was lost ({reason}), and does nothing any more; open a new device, and repeat the call there"
            ))),
        }
    }

    /// Has wgpu tell when this device is lost, and what goes wrong where no error scope is open, which would be a
    /// panic. Only for a device that was opened here: a caller's device has handlers of the caller's.
    pub(super) fn watch(&self, device: &wgpu::Device) {
        let lost = self.clone();
        device.set_device_lost_callback(move |reason, message| {
            lost.tell(if message.is_empty() { format!("{reason:?}") } else { message }.as_str());
        });
        let failed = self.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| failed.tell(&error.to_string())));
    }

    /// After an objection, looks whether it is one because the device was lost: of a caller's device nobody tells. On a
    /// lost device a buffer is made without a word, and cannot be mapped.
    pub(super) fn look(&self, device: &wgpu::Device, objection: &dyn std::fmt::Display) {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        if !WAITS || self.0.get().is_some() {
            return;
        }
        let objects = |work: &mut dyn FnMut()| {
            let mut scopes = [Validation, OutOfMemory, Internal].map(|filter| device.push_error_scope(filter));
            let done = catch_unwind(AssertUnwindSafe(work));
            scopes.reverse();
            scopes.map(|scope| block_on(scope.pop())).into_iter().flatten().next().is_some() || done.is_err()
        };
        let (failed, mut buffer) = (Arc::new(AtomicBool::new(false)), None);
        let descriptor = wgpu::BufferDescriptor {
            label: Some("gradwire probe"),
            size: 16,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        if objects(&mut || buffer = Some(device.create_buffer(&descriptor))) {
            // No memory says nothing of the device.
            return;
        }
        let answer = failed.clone();
        let map = |buffer: &wgpu::Buffer| {
            let answer = answer.clone();
            buffer.map_async(wgpu::MapMode::Read, .., move |result| answer.store(result.is_err(), SeqCst));
        };
        if objects(&mut || buffer.iter().for_each(map)) || failed.load(SeqCst) {
            self.tell(&objection.to_string());
        }
    }

    /// Runs calls of wgpu's. A panic of theirs is an error, and the device is given up.
    ///
    /// wgpu promises no panic, and has some: `Device::poll` panics for any failure of a wait, and assertions about a
    /// queue do not hold once memory ran out. No state of this crate changes in `work`, and wgpu's own is left to a
    /// device that is not used any more.
    pub(super) fn contain<T>(&self, name: &str, what: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
        self.check(name)?;
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
            let reason = words(&*panic);
            self.tell(&reason);
            failed(format!(
                "{what} on {name}: {reason}; the device was lost: open a new one, and repeat the call there"
            ))
        })
    }
}

/// What a panic said.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("wgpu panicked").trim().to_owned()
}

/// A queue whose drop does not panic: wgpu's waits for the device, and panics where that fails.
pub(super) struct QuietQueue(Option<wgpu::Queue>);

impl QuietQueue {
    pub(super) fn new(queue: wgpu::Queue) -> Self {
        Self(Some(queue))
    }

    /// Keeps the queue for good, where dropping it is unsound.
    pub(super) fn leak(mut self) {
        std::mem::forget(self.0.take());
    }
}

impl Deref for QuietQueue {
    type Target = wgpu::Queue;

    fn deref(&self) -> &wgpu::Queue {
        match &self.0 {
            Some(queue) => queue,
            None => unreachable!("it is taken out where it is dropped, and nowhere else"),
        }
    }
}

impl Drop for QuietQueue {
    fn drop(&mut self) {
        let queue = self.0.take();
        // An error has nobody to go to: the device is gone either way.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(queue)));
    }
}

/// A future of wgpu's whose panics are errors: enumerating adapters and requesting a device panic where the driver runs
/// out of memory at the wrong moment.
pub(super) struct Contained<F>(pub(super) Pin<Box<F>>);

impl<F: Future> Future for Contained<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(words(&*panic))),
        }
    }
}
