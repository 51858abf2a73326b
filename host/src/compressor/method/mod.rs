//! The methods that compress a group of tensors, one in each folder: in the host's memory (`host.rs`), in a device's
//! (`device.rs`), and on a stream (`stream.rs`).

mod any;
mod contract;
pub(super) mod dense;
pub(super) mod low_rank;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod on_device;
mod random;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod resident;
mod rotated;
mod sparse;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod streamed;
mod values;

pub(super) use self::any::{Part, Way};
pub(super) use self::contract::{Received, Target, Values, undecodable};
pub(super) use self::low_rank::refuse;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(super) use self::resident::{AnyResident, Model, WayOn};
