//! Python bindings of the `disk` crate.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Serve disks until the shutdown command; the crate documents `config_json`.
///
/// Raises ValueError for an invalid configuration, RuntimeError if the host refuses.
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

/// Number of 4 KiB direct reads that `depth` threads complete in `length_s`, at random offsets in the first
/// `size_bytes` of a file. Each thread issues its next read immediately.
///
/// Raises OSError if the file cannot be read.
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

/// Number of small writes through the page cache, each flushed, that one thread for each of `paths` completes in
/// `length_s`.
///
/// Raises OSError if a file cannot be written.
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

/// Add the functions of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(disk_main, module)?)?;
    module.add_function(wrap_pyfunction!(disk_device_offset, module)?)?;
    module.add_function(wrap_pyfunction!(disk_closed_loop, module)?)?;
    module.add_function(wrap_pyfunction!(disk_flushed_writes, module)?)?;
    Ok(())
}
