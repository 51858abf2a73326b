//! Gradwire makes gradients small enough for the wire.
//!
//! ```
//! use gradwire::{Device, Payload, Qsgd, Seed};
//!
//! let gradient = vec![0.25f32; 10_000];
//! let mut sum = vec![0.0f32; 10_000];
//!
//! let device = Device::open()?;                          // once: CUDA, else WGPU, else CPU
//! let codec = Qsgd::bits(4).bucket(512);
//! let rank = 0;                                          // which worker this is
//! let seed = Seed::new(42).step(1).tensor(0).worker(rank); // draws of its own, the same on every machine
//!
//! let sent = device.encode(&codec, &gradient, seed)?;    // 8 times smaller, versioned, checksummed
//! let received = Payload::from_bytes(sent.as_bytes())?;  // hostile bytes end here
//! device.decode_add(&received, 0.5, &mut sum)?;          // reads the codec from the payload
//! # Ok::<(), gradwire::Error>(())
//! ```
//!
//! The bytes of a payload depend on the gradient, the codec and the seed, and on nothing else: not on the backend,
//! the number of threads, or the launch shape.
//!
//! # Seeds of many workers
//!
//! Workers whose gradients are averaged need draws of their own where values are rounded at random: [`Qsgd`],
//! [`Uniform`], and the quantized values of [`TopK`]. [`Seed::worker`] gives them, and the error of a mean over `w`
//! workers shrinks by the square root of `w`. [`PowerSgd`] needs the opposite: one seed for all, since the first
//! factors have to agree.
//!
//! # Dev builds
//!
//! A profile is the business of the crate that is built, so a dev build compiles this one without optimisation, and it
//! is up to 100 times slower. With these lines in the manifest of your crate, or of its workspace, it is as fast as in
//! a release build:
//!
//! ```toml
//! [profile.dev.package]
//! gradwire = { opt-level = 3, overflow-checks = false, debug-assertions = false }
//! gradwire-kernels = { opt-level = 3 }
//! crc32fast = { opt-level = 3 }
//! ```
//!
//! Lengths of slices on the host, [`EncodePlan::payload_bytes`] among them, are `usize`. Bytes of device memory are
//! `u64`, and so is what a header says, which may be more than a 32-bit machine can address.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod codec;
mod collective;
mod compressor;
mod device;
pub mod embed;
mod entropy;
mod error;
mod family;
mod float_environment;
mod gradient;
mod kind;
mod low_rank;
mod model;
pub mod plan;
mod random;
mod recipe;
mod rotation;
mod seed;
pub mod session;
mod sparse;
mod stream_collective;
mod threads;
mod view;
mod vote;
pub mod wire;
mod words;

pub use codec::estimate::Estimate;
pub use codec::powersgd::{Matrix, PowerSgd};
pub use codec::topk::{Segment, TopK};
pub use codec::*;
pub use collective::{Collective, CollectiveError};
#[cfg(feature = "cuda")]
pub use compressor::QueuedCompressor;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub use compressor::ResidentCompressor;
pub use compressor::{Compressor, MessageError, Policy, Tensor};
pub use device::Device;
pub use entropy::Packing;
pub use error::{Error, ExchangeError, RecipeError, SavedError, StateError};
pub use family::CodecFamily;
pub use float_environment::FloatEnvironment;
pub use gradient::{Dtype, Element, Gradient};
pub use kind::BackendKind;
pub use low_rank::{LowRankState, Outcome, ResidentLowRank};
pub use model::{Layout, ModelPlan, TensorSpan};
pub use plan::{DecodeMode, DecodePlan, EncodePlan, NonFinite};
pub use random::RandomK;
pub use recipe::{Algorithm, Memory, Method, Promise, Quantize, Recipe, Shift};
pub use rotation::{Dct, Rotation};
pub use seed::Seed;
pub use sparse::{LazyResidual, Selection, SparsePayload};
pub use stream_collective::{StreamCollective, Transfer};
pub use view::{AsPayload, PayloadView};
pub use wire::{Bucket, CodecId, Entropy, Header, IndexFormat, Payload, PayloadError, SparseHeader, ValueFormat};

#[cfg(feature = "wgpu")]
pub use wgpu;
