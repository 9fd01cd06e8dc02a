//! Python bindings of the `probe` crate.

use std::sync::Mutex;

use penstock_probe::latency;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Device; upper bound of the bucket [s, as Prometheus writes it], or None for a sum; metric; unit; value.
type LatencyCounter = (String, Option<String>, &'static str, &'static str, u64);

/// Latency histograms of block devices, measured by BPF from the creation of this object on. Raises RuntimeError with
/// the reason if the kernel refuses the programs. They are removed with this object or with the process.
#[pyclass]
struct BlockLatency(Mutex<Option<latency::BlockLatency>>);

#[pymethods]
impl BlockLatency {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let loaded = py.detach(latency::BlockLatency::load);
        loaded
            .map(|latency| Self(Mutex::new(Some(latency))))
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// All counters that are not 0 (none after `close`), and `lost`, `runs`, `run_time` [ns], `reading_time` [ns].
    fn read(&self, py: Python<'_>) -> (Vec<LatencyCounter>, [u64; 4]) {
        py.detach(|| {
            let Ok(mut held) = self.0.lock() else {
                return Default::default();
            };
            let Some(latency) = held.as_mut() else {
                return Default::default();
            };
            let mut counts = Vec::new();
            latency.read(|key, value| counts.push((key, value)));
            let rows = counts.into_iter().map(|(key, value)| {
                let device = latency.device(key).to_owned();
                (device, key.le(), key.metric(), key.unit(), value)
            });
            let rows = rows.collect();
            let cost = latency.cost();
            (rows, [cost.lost, cost.runs, cost.run_ns, cost.reading_ns])
        })
    }

    /// Remove the programs from the kernel.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().map(|mut held| held.take())));
    }
}

/// Run the tracer daemon until the shutdown command. Raises RuntimeError with the reason if it cannot start.
#[pyfunction]
fn tracer_main(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| penstock_probe::daemon::serve(config_json))
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Run the daemon that observes the page cache and block devices. Raises RuntimeError with the reason on failure.
#[pyfunction]
fn layers_main(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| penstock_probe::layers::serve(config_json))
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Kinds of hook that the kernel lets us attach, by trial: JSON {hook: {verdict, detail}}.
#[pyfunction]
fn probe_features(py: Python<'_>) -> String {
    py.detach(|| penstock_probe::features::features().to_string())
}

/// Hooks that each feature of a tracing mode would use here, by trial: JSON {feature: {state, hook, reason, missing}}.
///
/// `hooks` is `auto` or the only kind to use; `deny` injects refusals. Raises RuntimeError if reads and writes cannot
/// be observed at all.
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

/// Number, name and direction (`read`, `write`, `sync`, `meta`) of each operation that the tracer records.
#[pyfunction]
fn trace_operations() -> Vec<(u8, &'static str, &'static str)> {
    use penstock_probe::layout::{Direction, OPERATIONS};
    OPERATIONS
        .iter()
        .map(|&(number, name)| (number, name, Direction::of(number).name()))
        .collect()
}

/// Add the functions and classes of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BlockLatency>()?;
    module.add_function(wrap_pyfunction!(tracer_main, module)?)?;
    module.add_function(wrap_pyfunction!(trace_hooks, module)?)?;
    module.add_function(wrap_pyfunction!(layers_main, module)?)?;
    module.add_function(wrap_pyfunction!(trace_operations, module)?)?;
    module.add_function(wrap_pyfunction!(probe_features, module)?)
}
