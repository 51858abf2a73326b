//! A caller who embeds Gradwire on wgpu: a device of its own, and memory there that a test writes and reads.

use std::ops::Range;
use std::sync::Arc;

use gradwire::BackendKind;
use gradwire::backend::wgpu::Wgpu;
use gradwire::wgpu::{self, BufferUsages};

use crate::require;

/// What a caller's buffers are used for: by kernels, and by copies both ways.
pub const EVERY: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// A caller with a device of its own, of the default limits and no feature.
#[derive(Clone)]
pub struct Caller {
    /// The device. An error that nobody has asked for fails the test.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
    /// Gradwire on both.
    pub gradwire: Wgpu,
}

impl Caller {
    /// On whatever adapter this machine has; none, with a line that says so, if it has none and need not.
    ///
    /// # Panics
    /// Where the adapter refuses what every adapter has.
    #[must_use]
    pub fn open() -> Option<Self> {
        // Whether an adapter has to be there is decided, and its absence reported, in one place.
        if let Err(error) = require::open(BackendKind::Wgpu) {
            eprintln!("not tested: {error}");
            return None;
        }
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
        let adapter = adapters.into_iter().next().expect("an adapter was there a moment ago");
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))
            .expect("the default limits are had by every adapter");
        device.on_uncaptured_error(Arc::new(|error| panic!("it reached the caller: {error}")));
        let gradwire = Wgpu::on(&device, &queue).expect("the shaders need no more than the default limits");
        Some(Self { device, queue, gradwire })
    }

    /// A buffer of at least so many bytes.
    #[must_use]
    pub fn room(&self, bytes: u64, usage: BufferUsages) -> wgpu::Buffer {
        let size = bytes.next_multiple_of(4).max(4);
        self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    }

    /// Commands to be recorded.
    #[must_use]
    pub fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Writes a buffer's first bytes, and up to three zeros after them.
    pub fn write(&self, buffer: &wgpu::Buffer, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.queue.write_buffer(buffer, 0, &bytes);
    }

    /// Reads a range of a buffer that begins at a whole word.
    ///
    /// # Panics
    /// Where the device is lost.
    #[must_use]
    pub fn read(&self, buffer: &wgpu::Buffer, bytes: Range<u64>) -> Vec<u8> {
        let count = bytes.end - bytes.start;
        if count == 0 {
            return Vec::new();
        }
        let staging = self.room(count, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(buffer, bytes.start, &staging, 0, count.next_multiple_of(4));
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |result| result.expect("the device is there"));
        self.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device is there");
        staging.get_mapped_range(..).expect("it is mapped")[..count as usize].to_vec()
    }
}
