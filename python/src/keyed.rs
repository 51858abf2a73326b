//! Messages and files that bear a key.

use std::sync::{Mutex, PoisonError};

use gradwire::{Collective as _, CollectiveError, Error};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyByteArrayMethods, PyBytes, PySlice};

use crate::errors::{exception, of_class};
use crate::group::Group;
use crate::number::Whole;
use crate::payload::bytes_of;

/// A secret of 32 bytes that every rank of a group has, and nobody else.
#[pyclass(frozen, module = "gradwire")]
pub struct Key(gradwire_collectives::Key);

#[pymethods]
impl Key {
    #[new]
    fn new(secret: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = bytes_of(secret)?;
        let found = bytes.len();
        let bytes = bytes.try_into().map_err(|_| {
            PyValueError::new_err(format!(
                "a key has 32 bytes, and this one {found}: make one with secrets.token_bytes(32)"
            ))
        })?;
        Ok(Self(gradwire_collectives::Key::new(bytes)))
    }

    /// These bytes, followed by a code of 32 that only the key gives: a payload or a state for a file.
    fn seal<'py>(&self, py: Python<'py>, data: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = bytes_of(data)?;
        let sealed = py.detach(|| self.0.seal(&bytes));
        Ok(PyBytes::new(py, &sealed))
    }

    /// The bytes that ``seal`` was given, if they are of this key and unchanged.
    fn open<'py>(&self, py: Python<'py>, sealed: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let sealed = bytes_of(sealed)?;
        match py.detach(|| self.0.open(&sealed)) {
            Ok(bytes) => Ok(PyBytes::new(py, bytes)),
            Err(error) => Err(of_class(py, "PayloadError", error.to_string())),
        }
    }

    fn __repr__(&self) -> &'static str {
        "<gradwire.Key>"
    }
}

/// A group whose messages are authenticated: each has a code of 32 bytes that only ranks with the key can make.
#[pyclass(frozen, module = "gradwire")]
pub struct Keyed {
    inner: Mutex<gradwire_collectives::Keyed<Group>>,
    group: Py<PyAny>,
    rank: u32,
    ranks: u32,
}

impl Keyed {
    /// Makes a call without the interpreter, of which the group takes hold again if it calls Python.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut gradwire_collectives::Keyed<Group>) -> Result<T, CollectiveError> + Send,
    ) -> PyResult<T> {
        use std::sync::TryLockError::{Poisoned, WouldBlock};
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(WouldBlock) => {
                return Err(PyRuntimeError::new_err("another thread is in a call of this group: wait for it"));
            }
        };
        let inner = &mut *inner;
        py.detach(|| call(inner)).map_err(|error| exception(py, &Error::from(error)))
    }
}

#[pymethods]
impl Keyed {
    /// Waits until every rank has shown that it has the key. Every rank calls this.
    #[new]
    fn new(py: Python<'_>, group: &Bound<'_, PyAny>, key: &Bound<'_, Key>) -> PyResult<Self> {
        let own = Group::of(group)?;
        let (rank, ranks, key) = (own.rank(), own.ranks(), &key.get().0);
        let inner = py.detach(|| gradwire_collectives::Keyed::new(own, key));
        let inner = inner.map_err(|error| exception(py, &Error::from(error)))?;
        Ok(Self { inner: Mutex::new(inner), group: group.clone().unbind(), rank, ranks })
    }

    /// The number of this rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    #[getter]
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn all_gather<'py>(&self, py: Python<'py>, mine: &Bound<'_, PyAny>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mine = bytes_of(mine)?;
        let mut all = Vec::new();
        self.call(py, |group| group.all_gather(&mine, &mut all))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    fn all_to_all<'py>(&self, py: Python<'py>, parts: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let parts = parts.iter().map(bytes_of).collect::<PyResult<Vec<_>>>()?;
        let mut from = Vec::new();
        self.call(py, |group| group.all_to_all(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut from))?;
        Ok(from.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Sums float32 in a bytearray, in place.
    fn all_reduce_sum(&self, py: Python<'_>, values: &Bound<'_, PyByteArray>) -> PyResult<()> {
        let bytes = values.to_vec();
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(PyValueError::new_err(format!("{} bytes are no float32 values", bytes.len())));
        }
        let mut sums: Vec<f32> = words.iter().map(|word| f32::from_ne_bytes(*word)).collect();
        self.call(py, |group| group.all_reduce_sum(&mut sums))?;
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_ne_bytes()).collect();
        values.set_item(PySlice::full(py), PyBytes::new(py, &bytes))
    }

    fn exchange<'py>(
        &self,
        py: Python<'py>,
        peer: Whole<u32>,
        mine: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mine = bytes_of(mine)?;
        let mut theirs = Vec::new();
        self.call(py, |group| group.exchange(peer.0, &mine, &mut theirs))?;
        Ok(PyBytes::new(py, &theirs))
    }

    fn broadcast<'py>(
        &self,
        py: Python<'py>,
        root: Whole<u32>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut bytes = bytes_of(data)?;
        self.call(py, |group| group.broadcast(root.0, &mut bytes))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// What else the group has.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.group.bind(py).getattr(name)
    }

    fn __repr__(&self) -> String {
        format!("<gradwire.Keyed of rank {} of {}>", self.rank, self.ranks)
    }
}
