//! What runs the kernels.

use std::borrow::Cow;
use std::sync::Arc;

use gradwire::{Algorithm, BackendKind, Error, Quantizer, Recipe, Seed, TopK};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::errors::{OrRaise, of_class};
use crate::memory::{View, in_memory, written};
use crate::number::{Factor, Whole};
use crate::payload::{Content, Payload, bytes_of};

/// The most elements that a payload may declare, unless it has a byte for each [`MOST_PER_BYTE`] of them: memory is
/// taken for declared elements.
const MOST: u64 = 1 << 24;
const MOST_PER_BYTE: u64 = 256;

/// A device that encodes and decodes. All devices give the same bytes.
#[pyclass(frozen, module = "gradwire")]
pub struct Device {
    pub inner: Arc<gradwire::Device>,
}

/// What encodes one gradient.
enum Codec {
    Dense(Quantizer),
    Sparse(TopK),
}

/// The codec that a text names, and whether it has error feedback.
fn codec(py: Python<'_>, text: &str) -> PyResult<(Codec, bool)> {
    let recipe: Recipe = text.parse::<Recipe>().or_raise(py)?;
    let memory = recipe.memory();
    let alone = recipe.quantizer().map(Codec::Dense).or_else(|| recipe.selection().map(Codec::Sparse));
    let plain = recipe.clipped().is_none()
        && memory.momentum.is_none()
        && memory.shift.is_none()
        && memory.beta == 1.0
        && memory.gamma == 1.0;
    // An exchange has more than one encode, and a warm-up keeps another part at each step.
    let plain = plain && recipe.algorithm() == Algorithm::Gather && recipe.part_at(0) == recipe.part_at(u64::MAX);
    match alone {
        Some(codec) if plain => Ok((codec, memory.feedback)),
        _ => {
            let text = format!(
                "{text:?} is more than one encode of one gradient: gradwire.Compressor runs it, and here a quantizer or a \
                 selection can stand, with ef or without"
            );
            Err(of_class(py, "SettingError", text))
        }
    }
}

/// Whether a codec's text has error feedback, so that an encode needs a residual.
#[pyfunction]
pub fn has_feedback(py: Python<'_>, text: &str) -> PyResult<bool> {
    Ok(codec(py, text)?.1)
}

#[pymethods]
impl Device {
    /// The best device: CUDA, else WGPU where the package was built with it, else the CPU.
    #[staticmethod]
    fn open(py: Python<'_>) -> PyResult<Self> {
        let inner = py.detach(gradwire::Device::open).or_raise(py)?;
        Ok(Self { inner: inner.into() })
    }

    /// The CPU, with vectors.
    #[staticmethod]
    pub fn cpu() -> Self {
        Self { inner: gradwire::Device::cpu().into() }
    }

    /// The first CUDA device.
    #[staticmethod]
    fn cuda(py: Python<'_>) -> PyResult<Self> {
        let inner = py.detach(|| gradwire::Device::of(BackendKind::Cuda)).or_raise(py)?;
        Ok(Self { inner: inner.into() })
    }

    /// The first device of Vulkan, Metal or DX12, where the package was built with the feature `wgpu`.
    #[staticmethod]
    fn wgpu(py: Python<'_>) -> PyResult<Self> {
        let inner = py.detach(|| gradwire::Device::of(BackendKind::Wgpu)).or_raise(py)?;
        Ok(Self { inner: inner.into() })
    }

    /// The backend: `cpu`, `cuda` or `wgpu`.
    #[getter]
    fn kind(&self) -> String {
        self.inner.kind().to_string()
    }

    /// The device's name.
    #[getter]
    fn name(&self) -> String {
        self.inner.name().to_owned()
    }

    /// What `open` passed over, and why.
    #[getter]
    fn why(&self) -> Vec<String> {
        self.inner.why().iter().map(Error::to_string).collect()
    }

    fn __repr__(&self) -> String {
        format!("<gradwire.Device {}: {}>", self.inner.kind(), self.inner.name())
    }

    /// Compresses a gradient by a codec's text, as `"qsgd:bits=4,bucket=64"` or `"topk:0.01+f16"`.
    #[pyo3(signature = (codec, gradient, *, run = Whole(0), step = Whole(0), worker = Whole(0), tensor = Whole(0), residual = None))]
    #[expect(clippy::too_many_arguments, reason = "names in Python")]
    fn encode(
        &self,
        py: Python<'_>,
        codec: &str,
        gradient: &Bound<'_, PyAny>,
        run: Whole<u64>,
        step: Whole<u64>,
        worker: Whole<u32>,
        tensor: Whole<u32>,
        residual: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Payload> {
        let (codec, feedback) = self::codec(py, codec)?;
        let view = View::of(gradient, "gradient")?;
        let given = residual;
        let mut residual = residual.map(|residual| View::of(residual, "residual")).transpose()?;
        match (&residual, feedback) {
            (None, true) => {
                let text = "the codec has error feedback: hand over residual=numpy.zeros(n, numpy.float32), the same array \
                            at each step, or add +noef";
                return Err(of_class(py, "SettingError", text.into()));
            }
            (Some(_), false) => {
                let text = "a residual was handed over, and the codec has no error feedback: add +ef, or leave it out";
                return Err(of_class(py, "SettingError", text.into()));
            }
            _ => {}
        }
        if let Some(residual) = &residual {
            residual.expect_apart(&view, ["residual", "gradient"])?;
        }
        let held = view.is_held() && residual.as_ref().is_none_or(View::is_held);
        let kept = residual.as_mut().map(|view| view.values("residual")).transpose()?;
        let seed = Seed::new(run.0).step(step.0).worker(worker.0).tensor(tensor.0);
        let (device, gradient) = (&self.inner, view.gradient());
        let encode = || match (codec, kept) {
            (Codec::Dense(codec), None) => device.encode(&codec, gradient, seed).map(Content::Dense),
            (Codec::Dense(codec), Some(kept)) => {
                device.encode_with_feedback(&codec, gradient, kept, seed).map(Content::Dense)
            }
            (Codec::Sparse(codec), None) => device.encode_sparse(&codec, gradient, seed).map(Content::Sparse),
            (Codec::Sparse(codec), Some(kept)) => {
                device.encode_sparse_with_feedback(&codec, gradient, kept, seed).map(Content::Sparse)
            }
        };
        let content = in_memory(py, held, encode).or_raise(py)?;
        given.map_or(Ok(()), written)?;
        Ok(Payload { content })
    }

    /// `out = decode(payload)`, and returns `out`: a new numpy array of float32, unless one is handed over. `elements`
    /// is how many are expected.
    #[pyo3(signature = (payload, out = None, *, elements = None))]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        payload: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        elements: Option<Whole<u64>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let expected = elements.as_ref().map(|Whole(expected)| *expected);
        let length = out.as_ref().map(|out| View::of(out, "output").map(|view| view.len() as u64)).transpose()?;
        let content = content(payload, expected.or(length))?;
        let found = content.elements() as u64;
        let out = match (out, elements) {
            (_, Some(Whole(expected))) if expected != found => {
                let text = format!("the payload has {found} elements, and {expected} are expected");
                return Err(of_class(py, "SettingError", text));
            }
            (Some(out), _) => out,
            (None, None) if found > MOST && found / content.bytes().len() as u64 > MOST_PER_BYTE => {
                let text = format!(
                    "a payload of {} bytes says that it has {found} elements, which take {} MB: if you expect so many, \
                     say so with elements={found}, or hand over out",
                    content.bytes().len(),
                    found / 250_000
                );
                return Err(of_class(py, "SettingError", text));
            }
            (None, _) => py.import("numpy")?.call_method1("empty", (found, "float32"))?,
        };
        let mut view = View::of(&out, "output")?;
        let held = view.is_held();
        let output = view.values("output")?;
        let decode = || match &*content {
            Content::Dense(payload) => self.inner.decode_into(payload, output),
            Content::Sparse(payload) => self.inner.decode_sparse_into(payload, output),
        };
        in_memory(py, held, decode).or_raise(py)?;
        written(&out)?;
        Ok(out)
    }

    /// `out += weight * decode(payload)`.
    #[pyo3(signature = (payload, out, weight = Factor(1.0)))]
    fn decode_add(
        &self,
        py: Python<'_>,
        payload: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        weight: Factor,
    ) -> PyResult<()> {
        let mut view = View::of(out, "output")?;
        let content = content(payload, Some(view.len() as u64))?;
        let held = view.is_held();
        let output = view.values("output")?;
        let decode = || match &*content {
            Content::Dense(payload) => self.inner.decode_add(payload, weight.0, output),
            Content::Sparse(payload) => self.inner.decode_sparse_add(payload, weight.0, output),
        };
        in_memory(py, held, decode).or_raise(py)?;
        written(out)
    }

    /// `out = weight * (decode(payloads[0]) + decode(payloads[1]) + ...)`, in this order.
    #[pyo3(signature = (payloads, out, weight = Factor(1.0)))]
    fn decode_sum(
        &self,
        py: Python<'_>,
        payloads: Vec<Bound<'_, PyAny>>,
        out: &Bound<'_, PyAny>,
        weight: Factor,
    ) -> PyResult<()> {
        let mut view = View::of(out, "output")?;
        let length = view.len() as u64;
        let contents = payloads.iter().map(|payload| content(payload, Some(length))).collect::<PyResult<Vec<_>>>()?;
        let (mut dense, mut sparse) = (Vec::new(), Vec::new());
        for content in &contents {
            match &**content {
                Content::Dense(payload) => dense.push(payload),
                Content::Sparse(payload) => sparse.push(payload.clone()),
            }
        }
        if !dense.is_empty() && !sparse.is_empty() {
            let text = "payloads of selections and of all elements were handed over: sum each kind by itself";
            return Err(of_class(py, "PayloadError", text.into()));
        }
        let held = view.is_held();
        let output = view.values("output")?;
        let decode = || match sparse.is_empty() {
            true => self.inner.decode_sum(&dense, weight.0, output),
            false => self.inner.decode_sparse_sum(&sparse, weight.0, output),
        };
        in_memory(py, held, decode).or_raise(py)?;
        written(out)
    }
}

/// A payload, or bytes of one, which are refused before memory is taken for indices if they are of another number of
/// elements than is expected.
fn content<'a>(payload: &'a Bound<'_, PyAny>, elements: Option<u64>) -> PyResult<Cow<'a, Content>> {
    if let Ok(payload) = payload.cast::<Payload>() {
        return Ok(Cow::Borrowed(&payload.get().content));
    }
    let bytes = bytes_of(payload).map_err(|_| {
        let found = payload.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
        PyTypeError::new_err(format!("a payload or its bytes are needed; got a {found}"))
    })?;
    Content::read(bytes, elements).map(Cow::Owned).or_raise(payload.py())
}
