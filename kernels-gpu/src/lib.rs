//! Gradwire's kernels: the arithmetic, and the GPU kernels that are built from it.
//!
//! On the host this crate is the arithmetic ([`arith`]), the parameters ([`params`]) and the committed PTX ([`ptx`]).
//! Compiled for `nvptx64-nvidia-cuda` it is the kernels themselves.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, stdarch_nvptx, asm_experimental_arch, link_llvm_intrinsics))]
#![cfg_attr(
    target_arch = "nvptx64",
    allow(internal_features, reason = "shuffles have no other stable or unstable name")
)]

#[cfg(test)]
extern crate std;

pub mod arith;
pub mod params;
#[cfg(not(target_arch = "nvptx64"))]
pub mod ptx;

#[cfg(target_arch = "nvptx64")]
mod device;
#[cfg(target_arch = "nvptx64")]
mod kernels;

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // No kernel reaches a panic; a path that did would show as a call in the PTX, which the check refuses.
    loop {}
}
