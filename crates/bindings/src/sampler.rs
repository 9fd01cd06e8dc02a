//! Python names of the `sampler` crate.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Runs the sampler until it is told to shut down. Raises RuntimeError if it cannot start.
#[pyfunction]
fn sampler_main(py: Python<'_>, config: &str) -> PyResult<()> {
    py.detach(|| penstock_sampler::serve(config))
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Adds this crate's functions and classes to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sampler_main, module)?)
}
