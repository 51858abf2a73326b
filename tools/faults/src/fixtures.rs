//! What operations share: the device, tensors for it, and an operation's answer.

use gradwire::backend::wgpu::Wgpu;
use gradwire::{BackendKind, Device, Error, Layout};

use super::allocator;

/// An operation that failed, and what it changed although it did.
pub(super) struct Failed {
    pub(super) error: Error,
    pub(super) changed: Option<&'static str>,
}

/// Stands for what was changed where the call was never made, since its preparation failed.
pub(super) const UNPREPARED: &str = "nothing, since it was not prepared: nothing";

/// All bytes that an operation leaves.
pub(super) type Answer = Result<Vec<u8>, Failed>;

/// A device, and on wgpu the handle that the asynchronous calls take.
pub(super) struct Opened {
    pub(super) device: Device,
    wgpu: Option<Wgpu>,
    /// The factor of all lengths: 1 where an interpreter runs the kernels, more on the CPU.
    pub(super) times: u64,
}

impl Opened {
    pub(super) fn of(kind: BackendKind) -> Result<Self, Error> {
        if kind == BackendKind::Wgpu {
            let wgpu = Wgpu::open()?;
            return Ok(Self { device: Device::from_wgpu(wgpu.clone()), wgpu: Some(wgpu), times: 1 });
        }
        let times = if kind == BackendKind::Cpu { 512 } else { 1 };
        Ok(Self { device: Device::of(kind)?, wgpu: None, times })
    }

    /// Elements of a tensor: some buckets, the last one short.
    pub(super) fn n(&self) -> usize {
        1100 * self.times as usize
    }

    /// Elements of a tensor that a selection takes in several pieces.
    pub(super) fn long(&self) -> usize {
        3 * 8192 * self.times.min(16) as usize + 5
    }

    /// As many entries of a selection, times the same factor.
    pub(super) fn entries(&self, few: u64) -> u64 {
        few * self.times
    }

    /// A model of three tensors.
    pub(super) fn layout(&self) -> Result<Layout, Error> {
        Layout::from_shapes([&[20 * self.times, 30][..], &[33 * self.times], &[17, 9]])
    }

    /// The handle.
    pub(super) fn wgpu(&self) -> Result<&Wgpu, Failed> {
        let reason = "this operation is of wgpu alone".to_owned();
        let missing = Error::Unavailable { backend: BackendKind::Wgpu, reason };
        self.wgpu.as_ref().ok_or(Failed { error: missing, changed: Some(UNPREPARED) })
    }
}

/// Numbers between -1 and 1, which a salt changes. The allocator does not count them.
pub(super) fn values(n: usize, salt: u32) -> Vec<f32> {
    let value = |i: u32| (i.wrapping_add(salt).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
    allocator::paused(|| (0..n as u32).map(value).collect())
}

/// The bits of numbers, as bytes.
pub(super) fn bytes(of: &[f32]) -> Vec<u8> {
    of.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect()
}

/// A step of preparation, during which nothing fails.
pub(super) fn ready<T>(result: Result<T, Error>) -> Result<T, Failed> {
    result.map_err(|error| Failed { error, changed: Some(UNPREPARED) })
}
