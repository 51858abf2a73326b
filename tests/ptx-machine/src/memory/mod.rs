//! Memory that knows its bounds, what was written to it, and by whom.

mod buffer;
mod global;
mod order;
mod shadow;
pub(crate) mod window;

pub(crate) use buffer::Buffer;
pub(crate) use global::Global;
pub(crate) use order::{Block as BlockOrder, Known, Words};
pub(crate) use shadow::Who;
