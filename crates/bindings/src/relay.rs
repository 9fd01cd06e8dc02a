//! Python bindings of the `relay` crate.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Relay frames until the shutdown command; the crate documents `config_json`.
///
/// Raises ValueError for an invalid configuration, RuntimeError if the host refuses.
#[pyfunction]
fn relay_main(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| penstock_relay::run(config_json))
        .map_err(|error| match error {
            penstock_relay::Error::Bad(_) => PyValueError::new_err(error.to_string()),
            penstock_relay::Error::Host { .. } => PyRuntimeError::new_err(error.to_string()),
        })
}

/// Quantiles from which the relay draws a jitter ('normal', 'pareto'), with mean 0 and standard deviation 1.
#[pyfunction]
fn jitter_quantiles(distribution: &str) -> PyResult<Vec<f64>> {
    serde_json::from_value(serde_json::Value::from(distribution))
        .ok()
        .and_then(penstock_relay::quantiles)
        .ok_or_else(|| PyValueError::new_err(format!("no table for {distribution:?}")))
}

/// Add the functions of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(relay_main, module)?)?;
    module.add_function(wrap_pyfunction!(jitter_quantiles, module)?)?;
    Ok(())
}
