//! The addresses of shared and local memory among generic addresses; global memory is below both.

pub(crate) const SHARED: u64 = 0x7f01_0000_0000_0000;
pub(crate) const LOCAL: u64 = 0x7f02_0000_0000_0000;
/// Bytes of either.
pub(crate) const BYTES: u64 = 1 << 32;
