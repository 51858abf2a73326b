//! What a training step needs for all tensors of a model: recipes, state, and the exchange between ranks.

mod algorithm;
mod bound;
mod carry;
mod clip;
mod core;
mod description;
mod factors;
mod failure;
mod frame;
mod ground;
mod last;
mod mean;
mod owner;
mod part;
mod planes;
mod policy;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod resident;
mod saved;
mod step;
mod together;
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
