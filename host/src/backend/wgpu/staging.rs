//! Buffers that the host writes, and copies of buffers that it reads, without a wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use wgpu::BufferUsages;

use super::device::Wgpu;
use super::fail::failed;
use crate::error::Error;

impl Wgpu {
    /// An encoder of this device's.
    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        self.shared.device.create_command_encoder(&Default::default())
    }

    /// Submits what was recorded.
    pub(crate) fn submit(&self, encoder: wgpu::CommandEncoder) {
        self.shared.queue.submit([encoder.finish()]);
    }

    /// A buffer of at least this size.
    pub(crate) fn room(&self, bytes: u64, usage: BufferUsages) -> Result<wgpu::Buffer, Error> {
        let (needed, found) = (bytes.next_multiple_of(4).max(16), self.shared.device.limits().max_buffer_size);
        if needed > found {
            return Err(Error::Limit { limit: "max_buffer_size", found, needed });
        }
        let descriptor =
            wgpu::BufferDescriptor { label: Some("gradwire"), size: needed, usage, mapped_at_creation: false };
        Ok(self.shared.device.create_buffer(&descriptor))
    }

    /// Writes bytes of a buffer, from one on that is a multiple of four.
    pub(crate) fn put_at(&self, buffer: &wgpu::Buffer, at: u64, bytes: &[u8]) {
        let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
        self.shared.queue.write_buffer(buffer, at, words);
        if !rest.is_empty() {
            // The device copies whole words; the buffer has room for the last one.
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            self.shared.queue.write_buffer(buffer, at + words.len() as u64, &word);
        }
    }

    /// A buffer that the host can read, with a copy of bytes of another one recorded into it, from byte `at` on.
    pub(crate) fn copied(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        from: &wgpu::Buffer,
        at: u64,
        bytes: u64,
    ) -> Result<Copied, Error> {
        let staging = self.room(bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        if bytes > 0 {
            encoder.copy_buffer_to_buffer(from, at, &staging, 0, bytes.next_multiple_of(4));
        }
        Ok(Copied { staging, bytes: bytes as usize })
    }

    /// The bytes of a copy that was submitted.
    pub(crate) async fn read(&self, Copied { staging, bytes }: Copied) -> Result<Vec<u8>, Error> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let shared = &self.shared;
        let mapped = Mapped::default();
        let answer = Promise(mapped.clone());
        self.contained("mapping", || {
            staging.map_async(wgpu::MapMode::Read, .., move |result| answer.0.say(result));
            Ok(())
        })
        .await?;
        // A browser runs the callback by itself. Elsewhere someone has to look after the device.
        #[cfg(not(target_arch = "wasm32"))]
        shared.wait()?;
        if let Err(error) = mapped.await {
            // A buffer that was made a moment ago, to which nothing was objected, fails to map on a lost device alone.
            shared.loss.tell(&format!("a buffer could not be mapped: {error}"));
            shared.loss.check(&shared.name)?;
        }
        let copy = || staging.get_mapped_range(..).map(|view| view[..bytes].to_vec());
        let copied = shared.loss.contain(&shared.name, "mapping", copy)?;
        copied.map_err(|error| failed(format!("mapping a buffer of {}: {error}", shared.name)))
    }
}

/// Buffers that passes read and write, and that are copied to and from.
pub(crate) const SCRATCH: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_DST).union(BufferUsages::COPY_SRC);

/// A copy for the host.
pub(crate) struct Copied {
    staging: wgpu::Buffer,
    bytes: usize,
}

type Answer = Result<(), wgpu::BufferAsyncError>;

/// What a mapping came to, once it is known.
#[derive(Clone, Default)]
struct Mapped(Arc<Mutex<(Option<Answer>, Option<Waker>)>>);

impl Mapped {
    fn say(&self, answer: Answer) {
        // A thread that panicked while it held the lock left a pair that is still whole.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The first answer stands.
        state.0.get_or_insert(answer);
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}

/// What a mapping will come to. Where wgpu lets go of it without a word, as it does when a device is lost, that is an
/// answer too.
struct Promise(Mapped);

impl Drop for Promise {
    fn drop(&mut self) {
        self.0.say(Err(wgpu::BufferAsyncError));
    }
}

impl Future for Mapped {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.0.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                state.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
