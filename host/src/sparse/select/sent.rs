//! What a selection sent, as two words of each segment.

/// What was sent of neighbouring elements: those whose key is above this one, and of those that have it the first, up to an
/// index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) start: u64,
    pub(crate) elements: u64,
    pub(crate) key: u32,
    pub(crate) index: u32,
}
