//! A compressor whose state is in a device's memory.

mod compressor;
mod cosines;
mod device;
mod norms;
#[cfg(feature = "cuda")]
mod queued;
mod state;
#[cfg(feature = "cudarc")]
mod view;

pub use self::compressor::ResidentCompressor;
#[cfg(feature = "cuda")]
pub use self::queued::QueuedCompressor;
