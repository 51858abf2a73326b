//! Errors as exceptions, whose classes `gradwire/errors.py` defines.

use gradwire::{Error, ExchangeError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The class of an error, by its name in `gradwire/errors.py`.
fn class(error: &Error) -> &'static str {
    match error {
        Error::NotFinite { .. } | Error::NotFiniteFactor { .. } | Error::Overflow { .. } => "NotFiniteError",
        Error::Payload(_) | Error::Mixed { .. } | Error::Other { .. } => "PayloadError",
        Error::State(_) | Error::Saved(_) | Error::Shape { .. } => "StateError",
        Error::Exchange(ExchangeError::NotFinite { .. } | ExchangeError::NotFiniteSum { .. }) => "NotFiniteError",
        Error::Exchange(_) => "ExchangeError",
        Error::Collective(_) => "GroupError",
        Error::Unavailable { .. } => "UnavailableError",
        Error::Backend { .. } | Error::Limit { .. } | Error::Stuck | Error::Stream { .. } => "DeviceError",
        _ => "SettingError",
    }
}

/// The exception of an error, with its text.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    of_class(py, class(error), error.to_string())
}

/// An exception of a class in `gradwire/errors.py`.
pub fn of_class(py: Python<'_>, class: &str, text: String) -> PyErr {
    let found = py.import("gradwire.errors").and_then(|module| module.getattr(class));
    match found.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, text),
        Err(error) => error,
    }
}

/// Results of this crate as results of Python.
pub trait OrRaise<T> {
    /// The value, or the exception of the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Error>> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error.into()))
    }
}
