//! Gradwire's kernels: the arithmetic, and the GPU kernels that are built from it.
//!
//! On the host this crate is the arithmetic ([`arith`], on [`integer`]), the table of codecs ([`codecs`]) and the
//! parameters ([`params`]). Compiled for `nvptx64-nvidia-cuda` it is the kernels themselves; the crate `gradwire-ptx`
//! has the PTX that they give.
#![no_std]
#![cfg_attr(
    all(target_arch = "nvptx64", not(feature = "rust-cuda")),
    feature(abi_ptx, stdarch_nvptx, asm_experimental_arch)
)]
#![cfg_attr(target_arch = "nvptx64", feature(link_llvm_intrinsics, abi_unadjusted))]
#![cfg_attr(
    feature = "rust-cuda",
    allow(unexpected_cfgs, reason = "macros of cuda_std name an architecture that rustc has dropped")
)]
#![cfg_attr(
    target_arch = "nvptx64",
    allow(internal_features, reason = "shuffles have no other stable or unstable name")
)]

#[cfg(test)]
extern crate std;

pub mod arith;
pub mod codecs;
pub mod integer;
pub mod params;
pub mod presets;

#[cfg(any(target_arch = "nvptx64", feature = "rust-cuda"))]
mod device;
#[cfg(any(target_arch = "nvptx64", feature = "rust-cuda"))]
mod kernels;

// cuda_std has one of its own.
#[cfg(all(target_arch = "nvptx64", not(feature = "rust-cuda")))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // No kernel reaches a panic; a path that did would show as a call in the PTX, which the check refuses.
    loop {}
}
