//! The kernels: one file a codec, and what they share.
//!
//! Every kernel is launched with blocks of [`THREADS`](crate::params::THREADS) threads, in one dimension, and takes its
//! params struct by value and then its buffers. A buffer that a launch does not use is null.
//!
//! Loops over registers have constant bounds, so that the compiler unrolls them: an array that is indexed at run time
//! would live in local memory. Branches that stand around a shuffle or a barrier depend on parameters, on the
//! block's index and on the warp's index alone.

mod bucketed;
mod codes;
mod combine;
mod decode;
mod draws;
mod qsgd;
mod scan;
mod statistic;
mod tile;
mod uniform;
