//! The entries from which the table of a model's tensors is made.

use crate::plan::Span;

/// A span of a tensor, by where it lies in the whole buffers.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub(crate) start: u64,
    pub(crate) elements: u64,
    pub(crate) first_unit: u64,
    pub(crate) tensor: u32,
    pub(crate) scalars: Span,
    pub(crate) codes: Span,
    pub(crate) beta: u32,
}
