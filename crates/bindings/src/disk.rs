//! Python names of the `disk` crate.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Serves disks until told to stop (returns at shutdown); `config_json` as the crate documents it.
///
/// Raises ValueError where the configuration makes no sense, RuntimeError where the host refuses.
#[pyfunction]
fn disk_main(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| penstock_disk::run(config_json))
        .map_err(|error| match error {
            penstock_disk::Error::Bad(_) => PyValueError::new_err(error.to_string()),
            penstock_disk::Error::Host { .. } => PyRuntimeError::new_err(error.to_string()),
        })
}

/// Device offset in bytes of byte `offset` of the file at `path` (relative to the mount).
#[pyfunction]
fn disk_device_offset(path: &str, offset: u64) -> u64 {
    penstock_disk::position::device_offset(path, offset)
}

/// Adds this crate's functions and classes to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(disk_main, module)?)?;
    module.add_function(wrap_pyfunction!(disk_device_offset, module)?)?;
    Ok(())
}
