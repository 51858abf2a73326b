//! Numbers of Python, and a `ValueError` for those that do not fit.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// A whole number from 0 to the largest of its type.
#[derive(Clone, Copy)]
pub struct Whole<T>(pub T);

/// A type of whole numbers from 0 on.
pub trait Bounded {
    /// The largest number.
    const LARGEST: u64;
}

impl Bounded for u32 {
    const LARGEST: u64 = Self::MAX as u64;
}

impl Bounded for u64 {
    const LARGEST: u64 = Self::MAX;
}

impl<'a, 'py, T: FromPyObject<'a, 'py, Error = PyErr> + Bounded> FromPyObject<'a, 'py> for Whole<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let needed = || format!("a whole number from 0 to {} is needed", T::LARGEST);
        object.extract().map(Self).map_err(|error| outside(object, error, needed))
    }
}

/// A factor.
#[derive(Clone, Copy)]
pub struct Factor(pub f32);

impl<'a, 'py> FromPyObject<'a, 'py> for Factor {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        object.extract().map(Self).map_err(|error| outside(object, error, || "a float is needed".into()))
    }
}

/// A number that does not fit, as a `ValueError`; any other error as it is.
fn outside(object: Borrowed<'_, '_, PyAny>, error: PyErr, needed: impl FnOnce() -> String) -> PyErr {
    let py = object.py();
    if !error.is_instance_of::<PyOverflowError>(py) {
        return error;
    }
    // A number of a million digits would fill the screen.
    let found = object.str().map_or_else(|_| "a larger number".into(), |text| text.to_string());
    let found = if found.len() > 40 { format!("a number of {} characters", found.len()) } else { found };
    let raised = PyValueError::new_err(format!("{found} was handed over, and {}", needed()));
    raised.set_cause(py, Some(error));
    raised
}
