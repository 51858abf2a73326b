//! The kernels. Those of the bucketed quantizers are made for any formula; `entries` has their contracts.
//!
//! Every kernel is launched with blocks of [`THREADS`](crate::params::THREADS) threads, in one dimension, and takes its
//! params struct by value and then its buffers. A buffer that a launch does not use is null.
//!
//! Loops over registers have constant bounds, so that the compiler unrolls them: an array that is indexed at run time
//! would live in local memory. Branches that stand around a shuffle or a barrier depend on parameters, on the
//! block's index and on the warp's index alone.

#![allow(clippy::needless_range_loop, reason = "an index is a slot or a unit, of several register arrays at once")]

/// Declares an entry point of the PTX module. With `rust-cuda`, it is cuda_std that declares it.
///
/// Kernels of one family repeat their arguments: a macro that wrote them could not show their names to a body that it
/// did not write, too.
macro_rules! kernel {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        #[cfg(all(target_arch = "nvptx64", not(feature = "rust-cuda")))]
        #[unsafe(no_mangle)]
        pub(in crate::kernels) unsafe extern "ptx-kernel" fn $name($($arg: $ty),*) $body

        $(#[$doc])*
        #[cfg(feature = "rust-cuda")]
        #[cuda_std::kernel]
        pub(in crate::kernels) unsafe fn $name($($arg: $ty),*) $body
    };
}

mod bucketed;
mod codes;
mod combine;
mod dct;
mod decode;
mod draws;
mod entries;
mod entropy;
mod fixed;
mod fixed_decode;
mod memory;
mod powersgd;
mod quantile;
mod quantizer;
mod random;
mod rotate;
mod scan;
mod sparse;
mod statistic;
mod tile;
mod tiles;
mod topk;
mod vote;
