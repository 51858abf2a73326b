//! A compressor whose state lies in a device's memory.

mod compressor;
mod cosines;
mod finite;
mod ground;
mod kept;
mod memory;
mod norms;
#[cfg(feature = "cuda")]
mod queued;
mod state;
mod steps;
#[cfg(feature = "cudarc")]
mod view;

pub use self::compressor::ResidentCompressor;
#[cfg(feature = "cuda")]
pub use self::queued::QueuedCompressor;
