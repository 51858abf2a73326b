//! Memory of other libraries, used without a copy: by the buffer protocol (numpy, `memoryview`) or by DLPack (torch,
//! JAX, CuPy).

use std::ffi::{CStr, c_void};

use gradwire::backend::cuda::DeviceSlice;
use gradwire::{Dtype, Gradient};
use half::{bf16, f16};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};

/// What DLPack calls a tensor on the host.
const ON_HOST: i32 = 1;
/// On a CUDA device, whose memory the host does not see.
const ON_CUDA: i32 = 2;
/// On the host, pinned for CUDA.
const ON_HOST_PINNED: i32 = 3;
const CAPSULE: &CStr = c"dltensor";

/// A tensor of DLPack, as `dlpack.h` lays it out, version 0 and unversioned.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    dtype: DlType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// An element type of DLPack.
#[repr(C)]
#[derive(Clone, Copy)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// What keeps the memory alive.
enum Lender {
    /// Held for the time of the view, which stops its owner from moving the memory.
    Buffer { _held: PyUntypedBuffer },
    /// Never renamed, so that it is freed with the capsule.
    Capsule { _held: Py<PyAny> },
}

/// Elements that lie one after another in somebody's memory.
pub struct View {
    data: *mut c_void,
    elements: usize,
    dtype: Dtype,
    writable: bool,
    _lender: Lender,
}

// SAFETY: the memory stays while the lender does, and the lender is only dropped with the GIL, as pyo3 sees to.
unsafe impl Send for View {}
// SAFETY: as above; a shared view only reads.
unsafe impl Sync for View {}

impl View {
    /// The memory of an object. `what` names it in errors.
    pub fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Self> {
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => Self::of_buffer(buffer, what),
            Err(_) if object.hasattr("__dlpack__")? => Self::of_tensor(object, what),
            Err(error) => {
                let found = object.get_type().name()?;
                let text =
                    format!("the {what} is a {found}: hand over a numpy array, a torch tensor, or what has __dlpack__");
                Err(caused(object.py(), PyTypeError::new_err(text), error))
            }
        }
    }

    fn of_buffer(buffer: PyUntypedBuffer, what: &str) -> PyResult<Self> {
        let format = buffer.format().to_string_lossy().into_owned();
        let dtype = match (format.trim_start_matches(['<', '=', '@']), buffer.item_size()) {
            ("f", 4) => Dtype::F32,
            ("e", 2) => Dtype::F16,
            _ => return Err(wrong_type(what, &format!("of the format {format:?}"))),
        };
        if !buffer.is_c_contiguous() {
            return Err(strided(what));
        }
        let (data, elements, writable) = (buffer.buf_ptr(), buffer.item_count(), !buffer.readonly());
        Self::checked(data, elements, dtype, writable, Lender::Buffer { _held: buffer }, what)
    }

    fn of_tensor(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Self> {
        let tensor = Tensor::of(object, what)?;
        match tensor.device {
            [ON_HOST | ON_HOST_PINNED, _] => {}
            [ON_CUDA, ordinal] => {
                let text = format!("the {what} lies on CUDA device {ordinal}: hand over {what}.cpu()");
                return Err(PyValueError::new_err(text));
            }
            [other, _] => {
                let text = format!("the {what} lies on a device of DLPack's kind {other}: copy it to the host");
                return Err(PyValueError::new_err(text));
            }
        }
        let Tensor { data, elements, dtype, capsule, .. } = tensor;
        Self::checked(data, elements, dtype, true, Lender::Capsule { _held: capsule }, what)
    }

    fn checked(
        data: *mut c_void,
        elements: usize,
        dtype: Dtype,
        writable: bool,
        lender: Lender,
        what: &str,
    ) -> PyResult<Self> {
        expect_memory(data, elements, what)?;
        if !data.addr().is_multiple_of(dtype.bytes()) {
            let text = format!("the {what} at {:#x} is not aligned to {} bytes: copy it", data.addr(), dtype.bytes());
            return Err(PyValueError::new_err(text));
        }
        Ok(Self { data, elements, dtype, writable, _lender: lender })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether its owner cannot move or free the memory while this is held. DLPack keeps a tensor, and not the memory:
    /// torch's `resize_` frees it all the same.
    pub fn is_held(&self) -> bool {
        self.elements == 0 || matches!(self._lender, Lender::Buffer { .. })
    }

    /// Where the memory begins.
    pub fn address(&self) -> usize {
        self.data.addr()
    }

    /// The elements, to read.
    pub fn gradient(&self) -> Gradient<'_> {
        match self.dtype {
            Dtype::F32 => Gradient::F32(self.slice()),
            Dtype::F16 => Gradient::F16(self.slice::<f16>()),
            Dtype::Bf16 => Gradient::Bf16(self.slice::<bf16>()),
        }
    }

    fn slice<T>(&self) -> &[T] {
        if self.elements == 0 {
            return &[];
        }
        // SAFETY: `data` points to this number of aligned elements while the lender is held. The caller guarantees that
        // nobody else writes them meanwhile, as the package's page says.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.elements) }
    }

    /// The elements, to write.
    pub fn values(&mut self, what: &str) -> PyResult<&mut [f32]> {
        if self.dtype != Dtype::F32 {
            return Err(wrong_type_of_output(what, self.dtype));
        }
        if !self.writable {
            return Err(PyValueError::new_err(format!("the {what} is read-only: hand over a copy of it")));
        }
        if self.elements == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `slice`; that nobody else reads them meanwhile is the caller's part as well.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.elements) })
    }

    /// Refuses memory that both views have.
    pub fn expect_apart(&self, other: &Self, names: [&str; 2]) -> PyResult<()> {
        let end = |view: &Self| view.address() + view.elements * view.dtype.bytes();
        if self.elements > 0 && other.elements > 0 && self.address() < end(other) && other.address() < end(self) {
            let text = format!("{} and {} share memory: hand over one of each", names[0], names[1]);
            return Err(PyValueError::new_err(text));
        }
        Ok(())
    }
}

/// Does work in the memory of views. Other threads of Python run meanwhile, unless one of them could free that memory.
pub fn in_memory<T: Send>(py: Python<'_>, held: bool, work: impl FnOnce() -> T + Send) -> T {
    if held { py.detach(work) } else { work() }
}

/// Tells torch that a tensor's memory was written, so that autograd refuses the values that it saved before.
/// Memory of any other library stays as it is.
pub fn written(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    let modules = py.import("sys")?.getattr("modules")?;
    let Ok(torch) = modules.get_item("torch") else { return Ok(()) };
    // A module that is still being imported has no tensors yet.
    let Ok(class) = torch.getattr("Tensor") else { return Ok(()) };
    if !object.is_instance(&class)? || object.call_method0("is_inference")?.is_truthy()? {
        return Ok(());
    }
    // A write of no element counts as one, in every torch from 1.13 on.
    let detached = object.call_method0("detach")?.call_method1("reshape", (-1,))?;
    detached.call_method1("narrow", (0, 0, 0))?.call_method0("zero_")?;
    Ok(())
}

/// A dense tensor of DLPack, wherever it lies.
struct Tensor {
    data: *mut c_void,
    elements: usize,
    dtype: Dtype,
    device: [i32; 2],
    capsule: Py<PyAny>,
}

impl Tensor {
    fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Self> {
        let py = object.py();
        let unreadable = |error| {
            let text = format!(
                "the {what} cannot be read in its memory: make it dense with .to_dense() and detach it with .detach()"
            );
            caused(py, PyTypeError::new_err(text), error)
        };
        let device = object.call_method0("__dlpack_device__").map_err(unreadable)?.extract::<(i32, i32)>()?;
        let asked = PyDict::new(py);
        if device.0 == ON_CUDA {
            // The work is queued on the caller's stream, after what made the tensor: nothing has to wait.
            asked.set_item("stream", -1)?;
        }
        let capsule = object.call_method("__dlpack__", (), Some(&asked)).map_err(unreadable)?;
        let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(Some(CAPSULE))?;
        // SAFETY: a capsule of this name holds a `DLManagedTensor`, which begins with the tensor, and lives with it.
        let tensor = unsafe { pointer.cast::<DlTensor>().as_ref() };
        let DlType { code, bits, lanes } = tensor.dtype;
        let dtype = match (code, bits, lanes) {
            (2, 32, 1) => Dtype::F32,
            (2, 16, 1) => Dtype::F16,
            (4, 16, 1) => Dtype::Bf16,
            _ => {
                let kind = ["int", "uint", "float", "handle", "bfloat", "complex", "bool"].get(usize::from(code));
                return Err(wrong_type(what, &format!("of {}{bits}", kind.unwrap_or(&"type "))));
            }
        };
        let sides = usize::try_from(tensor.ndim).unwrap_or(0);
        // SAFETY: DLPack gives as many sides as `ndim` says; of strides as many, or none for rows one after another.
        let (shape, strides) = unsafe { (numbers(tensor.shape, sides), numbers(tensor.strides, sides)) };
        let elements = shape.iter().try_fold(1usize, |product, side| product.checked_mul(usize::try_from(*side).ok()?));
        let Some(elements) = elements else { return Err(strided(what)) };
        let mut expected = 1;
        for (side, stride) in shape.iter().zip(strides).rev() {
            if *side != 1 && *stride != expected && elements > 1 {
                return Err(strided(what));
            }
            // Of no elements the other sides may be any.
            expected = expected.wrapping_mul(*side);
        }
        let data = tensor.data.wrapping_byte_add(tensor.byte_offset as usize);
        Ok(Self { data, elements, dtype, device: tensor.device, capsule: capsule.unbind() })
    }
}

/// Float32 numbers in a CUDA device's memory.
pub struct CudaView {
    /// Their memory.
    pub slice: DeviceSlice,
    /// The device's number.
    pub ordinal: u32,
    _capsule: Py<PyAny>,
}

impl CudaView {
    /// Elements.
    pub const fn elements(&self) -> usize {
        (self.slice.bytes() / 4) as usize
    }

    /// The memory of an object that lies on a CUDA device; none for any other object.
    pub fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Option<Self>> {
        let place = object.call_method0("__dlpack_device__").and_then(|place| place.extract::<(i32, i32)>());
        if !place.is_ok_and(|(kind, _)| kind == ON_CUDA) {
            return Ok(None);
        }
        let Tensor { data, elements, dtype, device, capsule } = Tensor::of(object, what)?;
        if dtype != Dtype::F32 {
            return Err(wrong_type_of_output(what, dtype));
        }
        expect_memory(data, elements, what)?;
        let slice = DeviceSlice::new(data.addr() as u64, 4 * elements as u64);
        Ok(Some(Self { slice, ordinal: device[1].unsigned_abs(), _capsule: capsule }))
    }
}

/// # Safety
/// `first` points to `count` numbers, or is null.
unsafe fn numbers<'a>(first: *const i64, count: usize) -> &'a [i64] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as said above.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// Refuses a tensor whose storage was freed, as FSDP's are while they are not gathered.
fn expect_memory(data: *mut c_void, elements: usize, what: &str) -> PyResult<()> {
    if elements == 0 || !data.is_null() {
        return Ok(());
    }
    let text =
        format!("the {what} has {elements} elements and no memory: its storage was freed; hand over one that has it");
    Err(PyValueError::new_err(text))
}

fn caused(py: Python<'_>, error: PyErr, cause: PyErr) -> PyErr {
    error.set_cause(py, Some(cause));
    error
}

fn wrong_type(what: &str, found: &str) -> PyErr {
    let text = format!(
        "the {what} is {found}, and float32, float16 or bfloat16 is needed: convert it, as by x.astype(numpy.float32) or \
         x.float()"
    );
    PyTypeError::new_err(text)
}

fn wrong_type_of_output(what: &str, found: Dtype) -> PyErr {
    let text = format!("the {what} is of {}, and float32 is needed, since it is written: hand over one", found.name());
    PyTypeError::new_err(text)
}

fn strided(what: &str) -> PyErr {
    let text = format!(
        "the {what}'s elements do not lie one behind the other: hand over numpy.ascontiguousarray(x) or x.contiguous()"
    );
    PyValueError::new_err(text)
}
