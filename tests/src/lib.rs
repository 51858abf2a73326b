//! The suite that every backend passes: conformance (equality of bytes) and properties (theorems of the literature).
//!
//! It is a library so that `cargo test` and the self-contained binary of `cargo xtask verify` run the same checks.

pub mod averages;
pub mod bounds;
#[cfg(feature = "wgpu")]
pub mod caller;
#[cfg(feature = "cuda")]
pub mod capture;
pub mod cases;
pub mod conformance;
pub mod data;
mod depth;
pub mod formula;
pub mod hostile;
pub mod late;
pub mod launches;
#[cfg(feature = "cuda")]
pub mod loads;
pub mod low_rank;
pub mod low_rank_checks;
#[cfg(feature = "cuda")]
pub mod low_rank_models;
#[cfg(feature = "cuda")]
pub mod low_rank_traffic;
pub mod meter;
pub mod models;
pub mod oracle;
pub mod properties;
#[cfg(feature = "cuda")]
pub mod reads;
pub mod require;
pub mod resident;
pub mod selections;
pub mod sparse;
pub mod suite;
#[cfg(feature = "cuda")]
pub mod totals;
#[cfg(feature = "cuda")]
pub mod traffic;
pub mod transforms;
pub mod vectors;

pub use depth::Depth;

/// Whether a device is the interpreter of PTX, which takes a thousand times as long as what it stands for.
#[must_use]
pub fn is_ptx_machine(device: &gradwire::Device) -> bool {
    device.name().contains("PTX machine")
}

/// The pages that crates.io and the repository show: their examples are compiled, and run if they are whole
/// programs.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    struct Repository;
    #[doc = include_str!("../../docs/distributed.md")]
    struct Distributed;
    #[doc = include_str!("../../docs/embedding.md")]
    struct Embedding;
    #[doc = include_str!("../../docs/training.md")]
    struct Training;
    #[doc = include_str!("../../host/README.md")]
    struct Host;
    #[doc = include_str!("../../kernels-gpu/README.md")]
    struct Kernels;
    #[doc = include_str!("../../ptx/README.md")]
    struct Ptx;
    #[doc = include_str!("../../shaders/README.md")]
    struct Shaders;
}
