//! Ranks that Python connects.

use gradwire::{Collective, CollectiveError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyByteArrayMethods, PyBytes, PyList};

use crate::number::Whole;
use crate::payload::bytes_of;

/// A group whose operations are methods of a Python object: `all_gather(bytes)`, `all_to_all(list)`,
/// `all_reduce_sum(bytearray)`, `exchange(peer, bytes)` and `broadcast(root, bytes)`.
pub struct Group {
    methods: Py<PyAny>,
    rank: u32,
    ranks: u32,
    /// What Python raised, to be the cause of this crate's error.
    pub raised: Option<PyErr>,
}

impl Group {
    /// The group of an object.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let number = |name: &str| object.getattr(name)?.extract::<Whole<u32>>();
        let (Whole(rank), Whole(ranks)) = (number("rank")?, number("ranks")?);
        if rank >= ranks {
            let text = format!("the group says rank {rank} of {ranks} ranks: ranks are counted from 0 to {ranks} - 1");
            return Err(PyValueError::new_err(text));
        }
        Ok(Self { rank, ranks, methods: object.clone().unbind(), raised: None })
    }

    /// Calls Python, and keeps its exception.
    fn call<T>(
        &mut self,
        asked: &'static str,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, CollectiveError> {
        Python::attach(|py| {
            call(self.methods.bind(py)).map_err(|error| {
                let reason = format!("{asked} raised {error}. Make a new group with all ranks");
                self.raised = Some(error);
                CollectiveError::Engine { engine: "the group", code: None, reason }
            })
        })
    }
}

/// Bytes of each rank, in the buffers that there are.
fn fill(list: &Bound<'_, PyAny>, all: &mut Vec<Vec<u8>>) -> PyResult<()> {
    all.clear();
    for bytes in list.try_iter()? {
        all.push(bytes_of(&bytes?)?);
    }
    Ok(())
}

impl Collective for Group {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.call("all_gather", |group| {
            fill(&group.call_method1("all_gather", (PyBytes::new(group.py(), mine),))?, all)
        })
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        if to.len() != self.ranks as usize {
            return Err(CollectiveError::Parts { got: to.len(), ranks: self.ranks });
        }
        self.call("all_to_all", |group| {
            let py = group.py();
            let parts = PyList::new(py, to.iter().map(|part| PyBytes::new(py, part)))?;
            fill(&group.call_method1("all_to_all", (parts,))?, from)
        })
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.call("all_reduce_sum", |group| {
            let py = group.py();
            let room = PyByteArray::new_with(py, 4 * values.len(), |room| {
                room.as_chunks_mut::<4>().0.iter_mut().zip(&*values).for_each(|(to, from)| *to = from.to_ne_bytes());
                Ok(())
            })?;
            group.call_method1("all_reduce_sum", (&room,))?;
            // A copy first: what Python may still hold may change.
            let summed = room.to_vec();
            if summed.len() != 4 * values.len() {
                let (found, needed) = (summed.len(), 4 * values.len());
                let text = format!("{found} bytes were left, and {needed} are needed: float32, written in place");
                return Err(PyValueError::new_err(text));
            }
            values.iter_mut().zip(summed.as_chunks::<4>().0).for_each(|(to, from)| *to = f32::from_ne_bytes(*from));
            Ok(())
        })
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        if peer >= self.ranks || peer == self.rank {
            return Err(CollectiveError::Rank { got: peer, ranks: self.ranks });
        }
        self.call("exchange", |group| {
            *theirs = bytes_of(&group.call_method1("exchange", (peer, PyBytes::new(group.py(), mine)))?)?;
            Ok(())
        })
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        if root >= self.ranks {
            return Err(CollectiveError::Rank { got: root, ranks: self.ranks });
        }
        self.call("broadcast", |group| {
            *bytes = bytes_of(&group.call_method1("broadcast", (root, PyBytes::new(group.py(), bytes)))?)?;
            Ok(())
        })
    }
}
