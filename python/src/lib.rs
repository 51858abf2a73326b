//! Gradwire for Python: the classes of the package `gradwire`, which `gradwire/__init__.py` gathers.

mod apart;
mod compressor;
mod device;
mod errors;
mod group;
mod held;
mod keyed;
mod memory;
mod number;
mod payload;
mod stream;

use pyo3::prelude::*;

/// The classes and functions that Python sees.
#[pymodule]
fn _gradwire(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<device::Device>()?;
    module.add_class::<payload::Payload>()?;
    module.add_class::<compressor::Compressor>()?;
    module.add_class::<keyed::Key>()?;
    module.add_class::<keyed::Keyed>()?;
    module.add_function(wrap_pyfunction!(device::has_feedback, module)?)?;
    module.add_function(wrap_pyfunction!(compressor::drops, module)?)?;
    module.add_function(wrap_pyfunction!(compressor::recipe, module)?)?;
    module.add_function(wrap_pyfunction!(compressor::methods, module)?)
}
