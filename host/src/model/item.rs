//! What the table of a model's tensors is made from.

use crate::plan::Span;

/// A span of a tensor, by where it lies in the whole buffers.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) start: u64,
    pub(super) elements: u64,
    pub(super) first_unit: u64,
    pub(super) tensor: u32,
    pub(super) scalars: Span,
    pub(super) codes: Span,
    pub(super) beta: u32,
}
