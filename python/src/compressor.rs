//! A training step's communication.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gradwire::{Policy, Recipe, Tensor};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::device::Device;
use crate::errors::{OrRaise, exception};
use crate::group::Group;
use crate::held::{Held, Resident};
use crate::memory::{CudaView, View, written};
use crate::number::Whole;
use crate::payload::bytes_of;
use crate::stream::Stream;

/// Compresses the gradients of a model's tensors, exchanges them between ranks, and keeps what a step leaves for the
/// next one.
#[pyclass(frozen, module = "gradwire")]
pub struct Compressor {
    inner: Mutex<Held>,
    recipes: Vec<String>,
}

impl Compressor {
    /// The compressor, unless another thread uses it.
    fn lock(&self) -> PyResult<MutexGuard<'_, Held>> {
        use std::sync::TryLockError::{Poisoned, WouldBlock};
        match self.inner.try_lock() {
            Ok(inner) => Ok(inner),
            Err(Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
            Err(WouldBlock) => {
                Err(PyRuntimeError::new_err("another thread is in a call of this compressor: wait for it"))
            }
        }
    }

    /// Writes numbers of the compressor, one per element, into an array.
    fn write_into(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        numbers: fn(&gradwire::Compressor) -> Result<Vec<f32>, gradwire::Error>,
    ) -> PyResult<()> {
        let mut view = View::of(out, "output")?;
        let found = view.len();
        let output = view.values("output")?;
        let numbers = self.lock()?.copied().and_then(|inner| numbers(&inner)).or_raise(py)?;
        if found != numbers.len() {
            let text = format!("the output holds {found} elements, and {} are needed", numbers.len());
            return Err(crate::errors::of_class(py, "SettingError", text));
        }
        output.copy_from_slice(&numbers);
        written(out)
    }
}

#[pymethods]
impl Compressor {
    /// For tensors of these shapes. `recipe` is a text, and `rules` are pairs of a pattern of names and a text, of
    /// which the first that fits a tensor counts.
    #[new]
    #[pyo3(signature = (recipe, shapes, run = Whole(0), *, names = None, rules = Vec::new(), small = None, all_reduce_only = false))]
    #[expect(clippy::too_many_arguments, reason = "names in Python")]
    fn new(
        py: Python<'_>,
        recipe: &str,
        shapes: Vec<Vec<Whole<u64>>>,
        run: Whole<u64>,
        names: Option<Vec<String>>,
        rules: Vec<(String, String)>,
        small: Option<Whole<u64>>,
        all_reduce_only: bool,
    ) -> PyResult<Self> {
        let mut policy = Policy::new(recipe).or_raise(py)?;
        if let Some(Whole(elements)) = small {
            policy = policy.small(elements);
        }
        for (pattern, recipe) in &rules {
            policy = policy.named(pattern, recipe.as_str()).or_raise(py)?;
        }
        if all_reduce_only {
            policy = policy.all_reduce_only();
        }
        let names = names.unwrap_or_else(|| vec![String::new(); shapes.len()]);
        if names.len() != shapes.len() {
            let text = format!("{} names for {} shapes: give each tensor one name", names.len(), shapes.len());
            return Err(crate::errors::of_class(py, "SettingError", text));
        }
        let sides = |shape: Vec<Whole<u64>>| shape.into_iter().map(|Whole(side)| side).collect::<Vec<_>>();
        let tensors: Vec<Tensor> =
            names.into_iter().zip(shapes).map(|(name, shape)| Tensor::new(name, sides(shape))).collect();
        let inner = gradwire::Compressor::with_policy(&policy, &tensors, run.0).or_raise(py)?;
        let recipes = inner.recipes().iter().map(Recipe::to_string).collect();
        Ok(Self { inner: Mutex::new(Held::Host(Box::new(inner))), recipes })
    }

    /// A step: the gradient of this rank becomes the mean over all ranks, in its memory. One on the host is encoded by
    /// `device`, and one in a CUDA device's memory there, on `stream`, with the state beside it. A tensor whose memory
    /// its owner could free meanwhile is copied, and the mean back, unless `in_place` says that nobody does.
    #[pyo3(signature = (device, group, gradient, *, stream = Stream::DEFAULT, in_place = false))]
    fn exchange(
        &self,
        py: Python<'_>,
        device: &Device,
        group: &Bound<'_, PyAny>,
        gradient: &Bound<'_, PyAny>,
        stream: Stream,
        in_place: bool,
    ) -> PyResult<()> {
        let mut group = Group::of(group)?;
        let mut lock = self.lock()?;
        let held = &mut *lock;
        let done = match CudaView::of(gradient, "gradient")? {
            Some(view) if in_place => {
                // SAFETY: `in_place` says that nobody frees the memory.
                py.detach(|| unsafe { held.on_cuda(view.ordinal, stream)?.exchange(&mut group, view.slice) })
            }
            Some(view) => {
                let resident = held.on_cuda(view.ordinal, stream).or_raise(py)?;
                // Again, since Python's own code may have run when another stream was let go.
                let now = CudaView::of(gradient, "gradient")?.filter(|now| now.ordinal == view.ordinal);
                let now = now.ok_or_else(|| PyRuntimeError::new_err("the gradient has left its device"))?;
                // SAFETY: the tensor has this memory, since Python's lock is held: no thread has resized it.
                unsafe { resident.copy_in(now.slice) }.or_raise(py)?;
                let done = py.detach(|| resident.exchange_copy(&mut group));
                if done.is_ok() {
                    give_back_on_cuda(gradient, &now, resident)?;
                }
                done
            }
            None => {
                let mut view = View::of(gradient, "gradient")?;
                let apart = !in_place && !view.is_held();
                let values = view.values("gradient")?;
                if apart {
                    let mut own = values.to_vec();
                    let done = py.detach(|| held.exchange(&device.inner, &mut group, &mut own));
                    if done.is_ok() {
                        give_back(gradient, &own)?;
                    }
                    done
                } else {
                    py.detach(|| held.exchange(&device.inner, &mut group, values))
                }
            }
        };
        done.map_err(|error| {
            let raised = exception(py, &error);
            if let Some(cause) = group.raised.take() {
                raised.set_cause(py, Some(cause));
            }
            raised
        })?;
        written(gradient)
    }

    /// Takes back the last step. The gradient keeps the mean.
    fn undo(&self, py: Python<'_>) -> PyResult<()> {
        match &mut *self.lock()? {
            Held::Host(inner) => inner.undo().or_raise(py),
            Held::Resident(resident) => resident.inner_mut().undo().or_raise(py),
        }
    }

    /// The state of this rank as bytes.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let lock = self.lock()?;
        let held = &*lock;
        let bytes = py.detach(|| held.copied()?.state()).or_raise(py)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Takes up saved states, those of all ranks that there were, for rank `rank` of `ranks` that there are now.
    fn restore(
        &self,
        py: Python<'_>,
        states: Vec<Bound<'_, PyAny>>,
        rank: Whole<u32>,
        ranks: Whole<u32>,
    ) -> PyResult<()> {
        let states = states.iter().map(bytes_of).collect::<PyResult<Vec<_>>>()?;
        let mut lock = self.lock()?;
        let held = &mut *lock;
        py.detach(|| held.host()?.restore(&states, rank.0, ranks.0)).or_raise(py)
    }

    /// Takes over what other compressors keep of tensors of the same names.
    fn take_over(&self, py: Python<'_>, others: Vec<Bound<'_, Self>>) -> PyResult<()> {
        let mut copies = Vec::with_capacity(others.len());
        for other in &others {
            copies.push(other.get().lock()?.copied().or_raise(py)?);
        }
        let mut lock = self.lock()?;
        let held = &mut *lock;
        py.detach(|| held.host()?.take_over(&copies.iter().collect::<Vec<_>>())).or_raise(py)
    }

    /// Writes what has not been sent so far into an array.
    fn residual_into(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write_into(py, out, gradwire::Compressor::residual)
    }

    /// Writes what this rank keeps of the sums that it quantized for all ranks into an array, as with `twophase`.
    fn owner_residual_into(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write_into(py, out, gradwire::Compressor::owner_residual)
    }

    /// Forgets what has not been sent.
    fn clear_residual(&self, py: Python<'_>) -> PyResult<()> {
        self.lock()?.host().and_then(|inner| inner.clear_residual()).or_raise(py)
    }

    /// Elements of the gradient.
    #[getter]
    fn elements(&self) -> PyResult<usize> {
        Ok(match &*self.lock()? {
            Held::Host(inner) => inner.elements(),
            Held::Resident(resident) => resident.inner().elements(),
        })
    }

    /// Steps that were exchanged.
    #[getter]
    fn steps(&self) -> PyResult<u64> {
        Ok(match &*self.lock()? {
            Held::Host(inner) => inner.steps(),
            Held::Resident(resident) => resident.inner().steps(),
        })
    }

    /// Bytes that this rank handed over to the group in the last step.
    #[getter]
    fn last_bytes(&self) -> PyResult<u64> {
        Ok(match &*self.lock()? {
            Held::Host(inner) => inner.last_bytes(),
            Held::Resident(resident) => resident.inner().last_bytes(),
        })
    }

    /// The recipe of each tensor, as a text.
    #[getter]
    fn recipes(&self) -> Vec<String> {
        self.recipes.clone()
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<gradwire.Compressor of {} elements, {} steps>", self.elements()?, self.steps()?))
    }
}

/// The exception if a gradient's memory has changed.
fn lost(found: &str) -> PyErr {
    let text = format!(
        "the gradient's memory changed during its exchange: {found}. The step was made on all ranks, and this one's mean is \
         lost: call undo() on all of them, or end the run"
    );
    PyRuntimeError::new_err(text)
}

fn expect_elements(found: usize, expected: usize) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    Err(lost(&format!("it has {found} elements, and had {expected}")))
}

/// Writes a mean into the gradient's memory, wherever that is by now.
fn give_back(gradient: &Bound<'_, PyAny>, mean: &[f32]) -> PyResult<()> {
    let mut view = View::of(gradient, "gradient").map_err(|error| lost(&error.to_string()))?;
    expect_elements(view.len(), mean.len())?;
    view.values("gradient")?.copy_from_slice(mean);
    Ok(())
}

/// As [`give_back`], of a mean on a CUDA device.
fn give_back_on_cuda(gradient: &Bound<'_, PyAny>, before: &CudaView, resident: &Resident) -> PyResult<()> {
    let view = CudaView::of(gradient, "gradient").map_err(|error| lost(&error.to_string()))?;
    let view = view.filter(|view| view.ordinal == before.ordinal).ok_or_else(|| lost("it has left the device"))?;
    expect_elements(view.elements(), before.elements())?;
    // SAFETY: the tensor has this memory, since Python's lock is held: no thread has resized it.
    unsafe { resident.copy_out(view.slice) }.map_err(|error| lost(&error.to_string()))
}

/// A recipe's text in full, or an exception that names its fault.
#[pyfunction]
pub fn recipe(py: Python<'_>, text: &str) -> PyResult<String> {
    Ok(text.parse::<Recipe>().or_raise(py)?.to_string())
}

/// Whether a recipe loses the entries that it leaves out: a selection that is biased, and keeps no residual.
#[pyfunction]
pub fn drops(py: Python<'_>, text: &str) -> PyResult<bool> {
    let recipe = text.parse::<Recipe>().or_raise(py)?;
    let memory = recipe.memory();
    let keeps = memory.feedback || memory.momentum.is_some() || memory.shift.is_some();
    // Of coefficients too, which `Recipe::selection` does not give.
    let written = recipe.to_string();
    let selects = written.split('+').any(|stage| stage.starts_with("topk") || stage.starts_with("randomk"));
    Ok(selects && !keeps && !recipe.promise(1 << 20).or_raise(py)?.unbiased)
}

/// The published methods by name, each with its recipe.
#[pyfunction]
pub fn methods() -> Vec<(&'static str, &'static str)> {
    Recipe::methods().iter().map(|method| (method.name, method.recipe)).collect()
}
