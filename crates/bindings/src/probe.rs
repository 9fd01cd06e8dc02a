//! Python names of the `probe` crate.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Runs the tracer daemon until it is asked to shut down. Raises RuntimeError with the reason if it cannot.
#[pyfunction]
fn tracer_main(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| penstock_probe::daemon::serve(config_json))
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Runs the daemon that watches page cache and block devices. Raises RuntimeError with the reason if it cannot.
#[pyfunction]
fn layers_main(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| penstock_probe::layers::serve(config_json))
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Which kinds of hook the kernel lets us attach to, by trial: JSON {hook: {verdict, detail}}.
#[pyfunction]
fn probe_features(py: Python<'_>) -> String {
    py.detach(|| penstock_probe::features::features().to_string())
}

/// How each feature of a tracing mode would be seen here, by trial: JSON {feature: {state, hook, reason, missing}}.
///
/// `hooks` is `auto` or the only kind to use; `deny` plants refusals. Raises RuntimeError if reads and writes
/// cannot be seen at all.
#[pyfunction]
#[pyo3(signature = (mode, hooks = "auto", deny = Vec::new()))]
fn trace_hooks(py: Python<'_>, mode: &str, hooks: &str, deny: Vec<String>) -> PyResult<String> {
    py.detach(|| {
        let limits = penstock_probe::hooks::Limits::new(hooks, deny)?;
        penstock_probe::tracer::survey(penstock_probe::Mode::named(mode)?, &limits)
    })
    .map(|report| report.to_string())
    .map_err(|error: penstock_probe::ProbeError| PyRuntimeError::new_err(error.to_string()))
}

/// Number, name and direction (`read`, `write`, `sync`, `meta`) of every operation the tracer records.
#[pyfunction]
fn trace_operations() -> Vec<(u8, &'static str, &'static str)> {
    use penstock_probe::layout::{Direction, OPERATIONS};
    OPERATIONS
        .iter()
        .map(|&(number, name)| (number, name, Direction::of(number).name()))
        .collect()
}

/// Adds this crate's functions and classes to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tracer_main, module)?)?;
    module.add_function(wrap_pyfunction!(trace_hooks, module)?)?;
    module.add_function(wrap_pyfunction!(layers_main, module)?)?;
    module.add_function(wrap_pyfunction!(trace_operations, module)?)?;
    module.add_function(wrap_pyfunction!(probe_features, module)?)
}
