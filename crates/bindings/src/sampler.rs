//! Python bindings of the `sampler` crate.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Run the sampler until it receives the shutdown command. Raises RuntimeError if it cannot start.
#[pyfunction]
fn sampler_main(py: Python<'_>, config: &str) -> PyResult<()> {
    py.detach(|| penstock_sampler::serve(config))
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Add the functions of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sampler_main, module)?)
}
