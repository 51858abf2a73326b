//! Integer functions that a GPU computes in its own way.

#[cfg(all(target_arch = "nvptx64", not(feature = "rust-cuda")))]
use core::arch::asm;

#[cfg(feature = "rust-cuda")]
use cuda_std::GpuFloat;

/// The upper and the lower half of a product.
///
/// LLVM would carry a product of two `u64`, and whatever is made of its halves, in 64 bits, and Philox would take half
/// as many instructions again.
#[cfg(all(target_arch = "nvptx64", not(feature = "rust-cuda")))]
#[inline(always)]
pub(crate) fn product(a: u32, b: u32) -> [u32; 2] {
    let (high, low);
    // SAFETY: instructions on registers.
    unsafe {
        asm!(
            "mul.wide.u32 {product}, {a}, {b};",
            "mov.b64 {{{low}, {high}}}, {product};",
            a = in(reg32) a,
            b = in(reg32) b,
            low = lateout(reg32) low,
            high = lateout(reg32) high,
            product = out(reg64) _,
            options(pure, nomem, nostack)
        )
    }
    [high, low]
}

/// The upper and the lower half of a product.
#[cfg(feature = "rust-cuda")]
#[cfg_attr(not(target_arch = "nvptx64"), allow(dead_code, reason = "the arithmetic of other machines has its own"))]
#[inline(always)]
pub(crate) fn product(a: u32, b: u32) -> [u32; 2] {
    let product = u64::from(a) * u64::from(b);
    [(product >> 32) as u32, product as u32]
}

/// The largest integer whose square is at most `value`, for values below 2^62: `arith::norm::isqrt`.
#[cfg(all(target_arch = "nvptx64", not(feature = "rust-cuda")))]
#[inline(always)]
pub(crate) fn isqrt(value: u64) -> u32 {
    let root: f64;
    // SAFETY: an instruction on registers.
    unsafe {
        asm!("sqrt.rn.f64 {}, {};", lateout(reg64) root, in(reg64) value as f64, options(pure, nomem, nostack));
    }
    // The value and its root are each off by 2^-53 of themselves at most, which is far less than 1 of the root: its
    // integer part is the one wanted, or one beside it.
    // SAFETY: the root of a value below 2^62 is at most 2^31.
    let root = u64::from(unsafe { root.to_int_unchecked::<u32>() });
    let root = root - u64::from(root * root > value);
    let next = root + 1;
    (root + u64::from(next * next <= value)) as u32
}

/// The largest integer whose square is at most `value`, for values below 2^62: `arith::norm::isqrt`.
#[cfg(feature = "rust-cuda")]
#[cfg_attr(not(target_arch = "nvptx64"), allow(dead_code, reason = "the arithmetic of other machines has its own"))]
#[inline(always)]
pub(crate) fn isqrt(value: u64) -> u32 {
    // The value and its root are each off by 2^-53 of themselves at most, which is far less than 1 of the root: its
    // integer part is the one wanted, or one beside it.
    let root = GpuFloat::sqrt(value as f64) as u64;
    let root = root - u64::from(root * root > value);
    let next = root + 1;
    (root + u64::from(next * next <= value)) as u32
}
