//! Memory that knows its bounds, what was written to it, and by whom.

mod buffer;
mod global;
mod order;
mod shadow;

pub(crate) use buffer::Buffer;
pub(crate) use global::Global;
pub(crate) use order::{Block as BlockOrder, Known, Words};
pub(crate) use shadow::Who;

/// Where shared and local memory lie among generic addresses; global memory is below both.
pub(crate) mod window {
    pub(crate) const SHARED: u64 = 0x7f01_0000_0000_0000;
    pub(crate) const LOCAL: u64 = 0x7f02_0000_0000_0000;
    /// Bytes of either.
    pub(crate) const BYTES: u64 = 1 << 32;
}
