//! Ranks that exchange gradients: compressors over groups of threads, and the engines that carry their messages.

mod bounded;
mod carry;
mod compressor;
mod dgc;
mod estimates;
mod exchanges;
mod factors;
mod gtopk;
mod keyed;
mod mean_error;
mod methods;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod nccl;
mod not_finite;
mod parted;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod resident_training;
mod threads;
mod training;
mod two_phase;
mod undone;
