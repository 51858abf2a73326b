//! CUDA streams, as the libraries of Python name them.

use gradwire::backend::cuda::driver::StreamId;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// A CUDA stream. A number alone could be anything, and CUDA has no call that would tell: an object says that it is one.
pub struct Stream {
    handle: u64,
    /// Keeps the stream.
    _owner: Option<Py<PyAny>>,
}

impl Stream {
    /// The legacy default stream of a device.
    pub const DEFAULT: Self = Self { handle: 0, _owner: None };

    /// The `CUstream`.
    pub const fn handle(&self) -> u64 {
        self.handle
    }

    pub fn id(&self) -> StreamId {
        // SAFETY: the object says that it is a stream, and is kept.
        unsafe { StreamId::from_raw(self.handle as *mut std::ffi::c_void) }
    }

    /// The handle that an object gives: by CUDA Python's protocol, or as torch's streams have it.
    fn handle_of(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        if object.hasattr("__cuda_stream__")? {
            let (version, handle) = object.call_method0("__cuda_stream__")?.extract::<(u64, u64)>()?;
            if version != 0 {
                let text = format!("the stream has version {version} of __cuda_stream__, and 0 is known");
                return Err(PyValueError::new_err(text));
            }
            return Ok(Some(handle));
        }
        if object.hasattr("cuda_stream")? {
            return object.getattr("cuda_stream")?.extract().map(Some);
        }
        Ok(None)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Stream {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if object.extract::<u64>().is_ok_and(|number| number == 0) {
            return Ok(Self::DEFAULT);
        }
        if let Some(handle) = Self::handle_of(&object)? {
            return Ok(Self { handle, _owner: Some(object.to_owned().unbind()) });
        }
        let found = object.get_type().name()?;
        let text = format!(
            "the stream is a {found}: hand over a torch.cuda.Stream, an object with __cuda_stream__, or 0 for the \
             default stream"
        );
        Err(PyTypeError::new_err(text))
    }
}
