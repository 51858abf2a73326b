//! How long work takes on the device: by timestamps in its queue where the device has them, else by this machine's
//! clock.

use std::time::Instant;

use super::fail::failed;
use super::shared::Shared;
use crate::error::Error;

/// What timestamps between submissions need.
const NEEDED: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

/// The features to ask of an adapter that offers these: both or neither, since one alone is of no use.
pub(super) fn wanted(offered: wgpu::Features) -> wgpu::Features {
    if offered.contains(NEEDED) { NEEDED } else { wgpu::Features::empty() }
}

impl Shared {
    /// Whether [`Shared::timed`] reads the device's clock. A caller's device may lack it, and is not asked for more.
    pub(super) fn has_timestamps(&self) -> bool {
        self.device.features().contains(NEEDED)
    }

    /// Seconds that the device takes for what `work` submits.
    pub(super) fn timed(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
        // What was queued before, such as parameters, is not part of it.
        self.scoped("submitting", || self.queue.submit([]))?;
        self.wait()?;
        if self.has_timestamps() {
            return self.timed_by_device(work);
        }
        let start = Instant::now();
        work()?;
        self.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn timed_by_device(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
        const BYTES: u64 = 2 * wgpu::QUERY_SIZE as u64;
        let device = &self.device;
        let (queries, resolved, staging) = self.scoped("creating timestamps", || {
            let queries = device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("gradwire timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            });
            let buffer = |usage| {
                device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("gradwire timestamps"),
                    size: BYTES,
                    usage,
                    mapped_at_creation: false,
                })
            };
            let resolved = buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC);
            (queries, resolved, buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST))
        })?;
        let encoder = || device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.scoped("writing a timestamp", || {
            let mut encoder = encoder();
            encoder.write_timestamp(&queries, 0);
            self.queue.submit([encoder.finish()]);
        })?;
        work()?;
        self.scoped("writing a timestamp", || {
            let mut encoder = encoder();
            encoder.write_timestamp(&queries, 1);
            encoder.resolve_query_set(&queries, 0..2, &resolved, 0);
            encoder.copy_buffer_to_buffer(&resolved, 0, &staging, 0, BYTES);
            self.queue.submit([encoder.finish()]);
        })?;
        let mut ticks = [0u64; 2];
        self.fetch(&staging, bytemuck::cast_slice_mut(&mut ticks))?;
        let Some(passed) = ticks[1].checked_sub(ticks[0]) else {
            return Err(failed(format!("the timestamps of {} run backwards: {ticks:?}; update its driver", self.name)));
        };
        Ok(passed as f64 * f64::from(self.queue.get_timestamp_period()) * 1e-9)
    }
}
