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

/// Number of 4 KiB direct reads, at random in the first `size_bytes` of a file, that `depth` threads get done in
/// `length_s` when each asks again at once.
///
/// Raises OSError where the file cannot be read.
#[pyfunction]
fn disk_closed_loop(
    py: Python<'_>,
    path: std::path::PathBuf,
    size_bytes: u64,
    depth: usize,
    length_s: f64,
) -> PyResult<u64> {
    let length = std::time::Duration::from_secs_f64(length_s.clamp(0.0, 60.0));
    Ok(py.detach(|| penstock_disk::closed_loop::reads(&path, size_bytes, depth, length))?)
}

/// Small writes through the page cache, each flushed, that a thread for each of `paths` gets done in `length_s`.
///
/// Raises OSError where a file cannot be written.
#[pyfunction]
fn disk_flushed_writes(
    py: Python<'_>,
    paths: Vec<std::path::PathBuf>,
    size_bytes: u64,
    length_s: f64,
) -> PyResult<u64> {
    let length = std::time::Duration::from_secs_f64(length_s.clamp(0.0, 60.0));
    Ok(py.detach(|| penstock_disk::closed_loop::flushed_writes(&paths, size_bytes, length))?)
}

/// Adds this crate's functions and classes to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(disk_main, module)?)?;
    module.add_function(wrap_pyfunction!(disk_device_offset, module)?)?;
    module.add_function(wrap_pyfunction!(disk_closed_loop, module)?)?;
    module.add_function(wrap_pyfunction!(disk_flushed_writes, module)?)?;
    Ok(())
}
