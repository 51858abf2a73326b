//! Where a model's tensors are in a flat buffer.

use crate::error::Error;
use crate::wire::MAX_ELEMENTS;

/// Where a tensor lies in a flat buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpan {
    /// Its first element.
    pub offset: u64,
    /// Its elements.
    pub elements: u64,
}

impl TensorSpan {
    /// The element after its last one.
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.elements)
    }
}

/// Where the tensors of a model lie in one flat buffer. A model in several flat buffers has a layout for each.
///
/// ```
/// use gradwire::Layout;
/// let layout = Layout::from_shapes([&[64, 3, 7, 7][..], &[64], &[1000, 2048]])?;
/// assert_eq!(layout.spans()[2].offset, 64 * 3 * 7 * 7 + 64);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    spans: Vec<TensorSpan>,
    elements: u64,
}

impl Layout {
    /// Tensors anywhere in the buffer, in the order in which they are numbered; none may share an element with another.
    ///
    /// # Errors
    /// [`Error::Overlap`] for two that do; [`Error::TooLong`] if the last element of the buffer is beyond 2^31.
    pub fn new(spans: Vec<TensorSpan>) -> Result<Self, Error> {
        let elements = spans.iter().map(|span| span.end()).max().unwrap_or(0);
        if elements > MAX_ELEMENTS {
            return Err(Error::TooLong { got: elements });
        }
        let mut order: Vec<usize> = (0..spans.len()).filter(|i| spans[*i].elements > 0).collect();
        order.sort_unstable_by_key(|i| spans[*i].offset);
        for pair in order.windows(2) {
            if spans[pair[0]].end() > spans[pair[1]].offset {
                return Err(Error::Overlap { first: pair[0], second: pair[1], element: spans[pair[1]].offset });
            }
        }
        Ok(Self { spans, elements })
    }

    /// Tensors one after another, without gaps.
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than 2^31 elements together.
    pub fn packed(lengths: impl IntoIterator<Item = u64>) -> Result<Self, Error> {
        let mut offset = 0;
        let place = |elements| {
            let span = TensorSpan { offset, elements };
            offset = span.end();
            span
        };
        Self::new(lengths.into_iter().map(place).collect())
    }

    /// Tensors of these shapes, one after another, without gaps.
    ///
    /// # Errors
    /// As [`Layout::packed`].
    pub fn from_shapes<'s>(shapes: impl IntoIterator<Item = &'s [u64]>) -> Result<Self, Error> {
        let elements = |shape: &[u64]| shape.iter().fold(1, |product: u64, side| product.saturating_mul(*side));
        Self::packed(shapes.into_iter().map(elements))
    }

    /// Where each tensor lies.
    pub fn spans(&self) -> &[TensorSpan] {
        &self.spans
    }

    /// Elements of the flat buffer, up to the last tensor's end.
    pub fn elements(&self) -> u64 {
        self.elements
    }
}
