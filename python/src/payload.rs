//! Compressed gradients.

use gradwire::{Payload as Dense, PayloadError, SparsePayload};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::OrRaise;

/// What a payload holds.
#[derive(Clone, PartialEq)]
pub enum Content {
    /// Every element.
    Dense(Dense),
    /// Entries that were selected.
    Sparse(SparsePayload),
}

impl Content {
    /// Checks bytes of either kind, and their number of elements if `elements` has one.
    pub fn read(bytes: Vec<u8>, elements: Option<u64>) -> Result<Self, PayloadError> {
        match Dense::from_bytes(&bytes) {
            Ok(payload) => Ok(Self::Dense(payload)),
            Err(PayloadError::Kind { .. }) => match elements {
                Some(elements) => SparsePayload::from_bytes_of(&bytes, elements).map(Self::Sparse),
                None => SparsePayload::from_vec(bytes).map(Self::Sparse),
            },
            Err(error) => Err(error),
        }
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Dense(payload) => payload.as_bytes(),
            Self::Sparse(payload) => payload.as_bytes(),
        }
    }

    /// Elements of the gradient.
    pub fn elements(&self) -> usize {
        match self {
            Self::Dense(payload) => payload.len(),
            Self::Sparse(payload) => payload.len(),
        }
    }
}

/// A compressed gradient, complete and checked. Pickles as its bytes.
#[pyclass(frozen, eq, module = "gradwire")]
#[derive(Clone, PartialEq)]
pub struct Payload {
    pub content: Content,
}

#[pymethods]
impl Payload {
    /// Checks received bytes, and keeps a copy.
    #[new]
    fn new(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = bytes_of(data)?;
        let content = py.detach(|| Content::read(bytes, None)).or_raise(py)?;
        Ok(Self { content })
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.content.bytes())
    }

    /// Elements of the gradient.
    fn __len__(&self) -> usize {
        self.content.elements()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((slf.get_type().into_any(), (slf.get().__bytes__(slf.py()),)))
    }

    fn __repr__(&self) -> String {
        let (codec, elements) = (self.codec(), self.content.elements());
        format!("<gradwire.Payload {codec}, {elements} elements in {} bytes>", self.nbytes())
    }

    /// Bytes of the payload.
    #[getter]
    fn nbytes(&self) -> usize {
        self.content.bytes().len()
    }

    /// The codec's name.
    #[getter]
    fn codec(&self) -> &'static str {
        match &self.content {
            Content::Dense(payload) => payload.header().codec().name(),
            Content::Sparse(_) => "topk",
        }
    }

    /// Entries that are sent: all elements, or those that were selected.
    #[getter]
    fn entries(&self) -> usize {
        match &self.content {
            Content::Dense(payload) => payload.len(),
            Content::Sparse(payload) => payload.indices().len(),
        }
    }
}

/// A copy of the bytes of an object.
pub fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    PyBuffer::<u8>::get(data)?.to_vec(data.py())
}
