//! Python names of the `relay` crate.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Relays frames until told to stop (returns at shutdown); `config_json` as the crate documents it.
///
/// Raises ValueError where the configuration makes no sense, RuntimeError where the host refuses.
#[pyfunction]
fn relay_main(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| penstock_relay::run(config_json))
        .map_err(|error| match error {
            penstock_relay::Error::Bad(_) => PyValueError::new_err(error.to_string()),
            penstock_relay::Error::Host { .. } => PyRuntimeError::new_err(error.to_string()),
        })
}

/// Quantiles of a jitter ('normal', 'pareto') with mean 0 and standard deviation 1, as the relay draws from.
#[pyfunction]
fn jitter_quantiles(distribution: &str) -> PyResult<Vec<f64>> {
    serde_json::from_value(serde_json::Value::from(distribution))
        .ok()
        .and_then(penstock_relay::quantiles)
        .ok_or_else(|| PyValueError::new_err(format!("no table for {distribution:?}")))
}

/// Adds this crate's functions and classes to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(relay_main, module)?)?;
    module.add_function(wrap_pyfunction!(jitter_quantiles, module)?)?;
    Ok(())
}
