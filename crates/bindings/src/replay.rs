//! Python bindings of the replay in `queuenet`.

use penstock_queuenet::{Calls, Log, Program, Replayed, Setting};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

fn column<T: Element + Clone>(columns: &Bound<'_, PyDict>, name: &str) -> PyResult<Vec<T>> {
    let array = columns
        .get_item(name)?
        .ok_or_else(|| PyValueError::new_err(format!("column {name} is missing")))?;
    PyBuffer::<T>::get(&array)
        .and_then(|buffer| buffer.to_vec(columns.py()))
        .map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}

/// A traced program, ready for replay on other disks and with another amount of memory.
///
/// `calls` and `log` are dicts of arrays (u64 times, offsets and sizes, i64 `tid`, u8 `op` and `direct`, u32 `file`).
/// `about_json` describes the files and the program. Raises ValueError if they are inconsistent.
#[pyclass(frozen, module = "penstock._native")]
struct Replay {
    program: Program,
}

#[pymethods]
impl Replay {
    #[new]
    fn new(
        py: Python<'_>,
        calls: &Bound<'_, PyDict>,
        log: &Bound<'_, PyDict>,
        about_json: &str,
    ) -> PyResult<Self> {
        let about = serde_json::from_str(about_json)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let calls = Calls {
            t_ns: column(calls, "t_ns")?,
            latency_ns: column(calls, "latency_ns")?,
            tid: column(calls, "tid")?,
            op: column(calls, "op")?,
            direct: column(calls, "direct")?,
            file: column(calls, "file")?,
            offset: column(calls, "offset")?,
            size: column(calls, "size")?,
        };
        let log = Log {
            t_ns: column(log, "t_ns")?,
            done_ns: column(log, "done_ns")?,
            tid: column(log, "tid")?,
            op: column(log, "op")?,
            file: column(log, "file")?,
            offset: column(log, "offset")?,
            size: column(log, "size")?,
        };
        let program = py
            .detach(|| Program::new(&calls, &log, &about))
            .map_err(|error| PyValueError::new_err(error.0))?;
        Ok(Replay { program })
    }

    /// Results of the analysis of the program, as JSON.
    fn found(&self) -> PyResult<String> {
        serde_json::to_string(&self.program.analysis)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Run the program once for each seed. Return a JSON array of the outcomes.
    fn run(&self, py: Python<'_>, setting_json: &str, seeds: Vec<u64>) -> PyResult<String> {
        let setting: Setting = serde_json::from_str(setting_json)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let outcomes: Vec<Replayed> = py
            .detach(|| {
                seeds
                    .into_iter()
                    .map(|seed| self.program.run(&setting, seed))
                    .collect::<Result<_, _>>()
            })
            .map_err(|error| PyValueError::new_err(error.0))?;
        serde_json::to_string(&outcomes).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// Add the class of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Replay>()
}
