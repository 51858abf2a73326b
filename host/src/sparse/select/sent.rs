//! The entries that a selection sent of a segment, named by two words.

/// The entries that a selection sent of a segment: elements whose key is above `key`, and elements with that key up to
/// `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// The segment's first element.
    pub(crate) start: u64,
    /// The segment's number of elements.
    pub(crate) elements: u64,
    /// The lowest key that was sent.
    pub(crate) key: u32,
    /// The last element with that key that was sent.
    pub(crate) index: u32,
}
