//! What a training step needs for all tensors of a model: recipes, state, and the exchange between ranks.

mod bound;
mod carry;
mod clip;
mod core;
mod description;
mod failure;
mod frame;
mod group;
mod host;
mod last;
mod mean;
mod memory;
mod method;
mod owner;
mod planes;
mod policy;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod queue;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod resident;
mod saved;
mod stamp;
mod step;
mod together;
mod traffic;
mod undo;
mod whole;
mod witness;
mod workspace;

pub use self::core::Compressor;
pub use self::policy::{Policy, Tensor};
#[cfg(feature = "cuda")]
pub use self::resident::QueuedCompressor;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub use self::resident::ResidentCompressor;
pub use self::together::MessageError;
