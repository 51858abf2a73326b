//! A device's queue: memory, scans, and groups of ranks whose operations are queued.

mod finite;
mod memory;
mod place;
#[cfg(feature = "cuda")]
mod ranks;

pub(super) use self::finite::Finite;
#[cfg(feature = "cuda")]
pub(super) use self::finite::{Scan, ScanBuffers};
pub(super) use self::memory::{AddMomentum, MomentumBuffers, Plane, Queue};
pub(super) use self::place::{Bodies, Packed, Place, pack, taken, unpack};
#[cfg(feature = "cuda")]
pub(super) use self::ranks::{Ranks, scaling};
