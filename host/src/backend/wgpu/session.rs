//! Buffers on a WGPU device, and passes over them.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::device::Wgpu;
use super::fail::failed;
use super::record::{self, Bound, Ready};
use super::shared::{Shared, storage_buffer};
use crate::error::Error;
use crate::plan::{Pass, ROLES, Role, Sizes};
use crate::session::{Clock, Session, check_copy, check_range, check_spans, room_for};

/// Bytes that go to or from the device at a time.
pub(super) const STAGING: usize = 64 << 20;

/// Passes that are submitted at a time; a queue that is given much more can lose the device to a watchdog.
pub(super) const PASSES_PER_SUBMIT: usize = 64;

/// How long a mapping may be on its way to its callback once the device has done the work: another thread that polls
/// may have it in hand.
const ANSWER: Duration = Duration::from_secs(30);

/// A [`Session`] on a WGPU device.
pub struct WgpuSession {
    shared: Arc<Shared>,
    sizes: Sizes,
    buffers: [wgpu::Buffer; ROLES],
}

impl Wgpu {
    /// Buffers of these sizes.
    ///
    /// # Errors
    /// [`Error::Limit`] for a buffer above the device's `max_buffer_size`; [`Error::Backend`] if the device has no
    /// memory left.
    pub fn session(&self, sizes: Sizes) -> Result<WgpuSession, Error> {
        let shared = &self.shared;
        let limit = shared.device.limits().max_buffer_size;
        for needed in sizes.0 {
            // Buffers have whole words.
            if needed > limit / 4 * 4 {
                return Err(Error::Limit { limit: "max_buffer_size", found: limit, needed });
            }
        }
        let buffers = shared.scoped("creating buffers", || {
            Role::ALL.map(|role| storage_buffer(&shared.device, role, sizes.of(role)))
        })?;
        Ok(WgpuSession { shared: shared.clone(), sizes, buffers })
    }
}

impl WgpuSession {
    fn bound(&self) -> [Option<Bound<'_>>; ROLES] {
        self.buffers.each_ref().map(|buffer| Some(Bound { buffer, offset: 0 }))
    }

    /// Pipelines, parameters and bind groups of passes.
    fn prepare(&self, passes: &[Pass]) -> Result<Vec<Ready>, Error> {
        check_spans(&self.sizes, passes)?;
        let shared = &self.shared;
        let pipelines = record::pipelines(shared, passes)?;
        let params = record::parameters(shared, passes)?;
        shared.scoped("binding buffers", || record::bind(shared, passes, pipelines, &params, &self.bound()))
    }

    /// Records passes and submits them, without waiting.
    fn submit(&self, ready: &[Ready]) -> Result<(), Error> {
        let shared = &self.shared;
        shared.scoped("running passes", || {
            for some in ready.chunks(PASSES_PER_SUBMIT) {
                let mut encoder = shared.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                record::record(&mut encoder, some, &self.bound());
                shared.queue.submit([encoder.finish()]);
            }
        })
    }
}

impl Shared {
    /// Reads whole words into `out`.
    pub(super) fn read_words(&self, buffer: &wgpu::Buffer, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let bytes = out.len().next_multiple_of(4) as u64;
        let staging = self.scoped("reading back", || {
            let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("gradwire staging"),
                size: bytes,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, bytes);
            self.queue.submit([encoder.finish()]);
            staging
        })?;
        self.fetch(&staging, out)
    }

    /// The first bytes of a buffer that can be mapped.
    pub(super) fn fetch(&self, staging: &wgpu::Buffer, out: &mut [u8]) -> Result<(), Error> {
        let (send, receive) = mpsc::channel();
        self.scoped("mapping", || {
            staging.map_async(wgpu::MapMode::Read, .., move |result| {
                // The receiver is gone only if this function returned early, and then nobody waits for the result.
                let _ = send.send(result);
            });
        })?;
        self.wait()?;
        let broken = |error: String| failed(format!("mapping a buffer of {}: {error}", self.name));
        match receive.recv_timeout(ANSWER) {
            Ok(Ok(())) => {}
            answer => {
                // A buffer that was made a moment ago, to which nothing was objected, fails to map on a lost device
                // alone.
                let reason = answer.map_or_else(|e| e.to_string(), |e| format!("{e:?}"));
                self.loss.tell(&format!("a buffer could not be mapped: {reason}"));
                return Err(self.loss.check(&self.name).err().unwrap_or_else(|| broken(reason)));
            }
        }
        let copy = || staging.get_mapped_range(..).map(|view| out.copy_from_slice(&view[..out.len()]));
        self.loss.contain(&self.name, "mapping", copy)?.map_err(|error| broken(error.to_string()))
    }
}

impl Session for WgpuSession {
    fn write(&mut self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, bytes.len())?;
        let shared = &self.shared;
        let buffer = &self.buffers[role as usize];
        let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
        let mut at = offset;
        for part in words.chunks(STAGING) {
            shared.scoped("writing", || {
                shared.queue.write_buffer(buffer, at, part);
                // Submitting now keeps the queue's own staging memory from growing to the tensor's size.
                shared.queue.submit([]);
            })?;
            at += part.len() as u64;
        }
        if !rest.is_empty() {
            // The device copies whole words, and the buffer has room for the last one: its other bytes stay as they
            // are.
            let mut word = [0; 4];
            if at + (rest.len() as u64) < self.sizes.of(role) {
                shared.read_words(buffer, at, &mut word)?;
            }
            word[..rest.len()].copy_from_slice(rest);
            shared.scoped("writing", || shared.queue.write_buffer(buffer, at, &word))?;
        }
        Ok(())
    }

    fn read(&mut self, role: Role, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, out.len())?;
        if out.len() <= STAGING {
            return if out.is_empty() {
                Ok(())
            } else {
                self.shared.read_words(&self.buffers[role as usize], offset, out)
            };
        }
        // The device may be lost between two parts: `out` is written once all of them are here.
        let mut whole = room_for(out.len())?;
        for (part, at) in whole.chunks_mut(STAGING).zip((offset..).step_by(STAGING)) {
            self.shared.read_words(&self.buffers[role as usize], at, part)?;
        }
        out.copy_from_slice(&whole);
        Ok(())
    }

    unsafe fn run_trusted(&mut self, passes: &[Pass]) -> Result<(), Error> {
        let ready = self.prepare(passes)?;
        self.submit(&ready)?;
        self.shared.wait()
    }

    unsafe fn time_trusted(&mut self, passes: &[Pass], repeats: u32) -> Result<f64, Error> {
        let ready = self.prepare(passes)?;
        self.shared.timed(|| (0..repeats).try_for_each(|_| self.submit(&ready)))
    }

    fn time_copy(&mut self, from: Role, to: Role, repeats: u32) -> Result<(f64, u64), Error> {
        check_copy(from, to)?;
        let shared = &self.shared;
        let bytes = self.sizes.of(from).min(self.sizes.of(to)) / 4 * 4;
        let (from, to) = (&self.buffers[from as usize], &self.buffers[to as usize]);
        let seconds = shared.timed(|| {
            shared.scoped("copying", || {
                let mut encoder = shared.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                (0..repeats).for_each(|_| encoder.copy_buffer_to_buffer(from, 0, to, 0, bytes));
                shared.queue.submit([encoder.finish()]);
            })
        })?;
        Ok((seconds, bytes))
    }

    fn clock(&self) -> Clock {
        if self.shared.has_timestamps() { Clock::Device } else { Clock::Host }
    }
}
