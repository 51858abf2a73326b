//! A device, its queue, and what is made for them once.

use pollster::block_on;

use super::fail::{WAITS, failed, no_wait};
use super::loss::{Loss, QuietQueue};
use super::pipelines::Pipelines;
use crate::error::Error;
use crate::plan::{ROLES, Role};

pub(super) struct Shared {
    pub(super) device: wgpu::Device,
    pub(super) queue: QuietQueue,
    pub(super) loss: Loss,
    pub(super) name: String,
    pub(super) software: bool,
    pub(super) pipelines: Pipelines,
    pub(super) cache: Option<wgpu::PipelineCache>,
    /// What is bound where a pass uses no buffer, one a role so that no two writable bindings meet.
    pub(super) unused: [wgpu::Buffer; ROLES],
}

/// A buffer that every pass may use.
pub(super) fn storage_buffer(device: &wgpu::Device, role: Role, bytes: u64) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(&format!("gradwire {role:?}")),
        size: bytes.next_multiple_of(4).max(16),
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

impl Shared {
    pub(super) fn new(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        loss: Loss,
        cache: Option<wgpu::PipelineCache>,
    ) -> Result<Self, Error> {
        let info = device.adapter_info();
        let name = format!("{} ({}, {:?})", info.name, info.driver_info, info.backend);
        let unused = || Role::ALL.map(|role| storage_buffer(device, role, 16));
        Ok(Self {
            unused: scoped(device, &loss, &name, "creating buffers", unused)?,
            device: device.clone(),
            queue: QuietQueue::new(queue.clone()),
            loss,
            name,
            software: info.device_type == wgpu::DeviceType::Cpu,
            pipelines: Pipelines::default(),
            cache,
        })
    }

    /// Runs `work` so that what the device objects to comes back as an error.
    pub(super) fn scoped<T>(&self, what: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
        scoped(&self.device, &self.loss, &self.name, what, work)
    }

    /// Waits for all that was submitted.
    pub(super) fn wait(&self) -> Result<(), Error> {
        if !WAITS {
            return Err(failed(no_wait("Wgpu::encode_async and its like, or record into an encoder")));
        }
        let poll = || self.device.poll(wgpu::PollType::wait_indefinitely());
        match self.loss.contain(&self.name, "waiting", poll)? {
            Ok(_) => self.loss.check(&self.name),
            Err(error) => Err(failed(format!("waiting for {}: {error}", self.name))),
        }
    }
}

fn scoped<T>(device: &wgpu::Device, loss: &Loss, name: &str, what: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
    // Where nobody may wait for a scope's answer, an objection goes to the scopes of `Wgpu::checked`, or of the caller.
    if !WAITS {
        return Ok(work());
    }
    use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
    loss.check(name)?;
    let mut scopes = [Validation, OutOfMemory, Internal].map(|filter| device.push_error_scope(filter));
    let value = loss.contain(name, what, work);
    // Scopes are a stack: the last one pushed is popped first, and all of them before any answer is looked at.
    scopes.reverse();
    let objections = scopes.map(|scope| block_on(scope.pop()));
    if let Some(error) = objections.into_iter().flatten().next() {
        loss.look(device, &error);
        loss.check(name)?;
        return Err(failed(format!("{what} on {name}: {error}")));
    }
    let value = value?;
    loss.check(name).map(|()| value)
}
