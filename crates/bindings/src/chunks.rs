//! Python bindings of the `chunks` crate.

use std::path::PathBuf;

use penstock_chunks::chunking::Chunking;
use penstock_chunks::core::{Core, Scope};
use penstock_chunks::family::Rule;
use penstock_chunks::objects::Objects;
use penstock_chunks::record::{Controller, Record};
use penstock_chunks::{throughput, Error};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// A controller in Python: two callables.
struct Callables {
    choose: Py<PyAny>,
    record: Py<PyAny>,
}

impl Controller for Callables {
    fn choose(&self, path: &str, family: &str) -> Option<String> {
        Python::attach(|py| {
            let chosen = self.choose.call1(py, (path, family));
            let chosen = chosen.and_then(|chosen| chosen.extract::<Option<String>>(py));
            chosen.unwrap_or_else(|error| {
                eprintln!("penstock-dedup: controller: {error}");
                None
            })
        })
    }

    fn record(&self, record: &Record) {
        let text = serde_json::to_string(record).unwrap_or_default();
        Python::attach(|py| {
            if let Err(error) = self.record.call1(py, (text,)) {
                eprintln!("penstock-dedup: controller: {error}");
            }
        });
    }
}

fn raised(error: Error) -> PyErr {
    match error {
        Error::Bad(_) => PyValueError::new_err(error.to_string()),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

fn chunking_of(text: &str) -> PyResult<Chunking> {
    text.parse().map_err(PyValueError::new_err)
}

/// Serve a store until the shutdown command; the crate documents `config_json`.
///
/// `choose(path, family)` returns the configuration of a new version, or None for that of the mount. `record(json)`
/// receives the record of each committed version. Raises ValueError for an invalid configuration, RuntimeError if the
/// host refuses.
#[pyfunction]
#[pyo3(signature = (config_json, choose = None, record = None))]
fn dedup_main(
    py: Python<'_>,
    config_json: &str,
    choose: Option<Py<PyAny>>,
    record: Option<Py<PyAny>>,
) -> PyResult<()> {
    let controller = choose.zip(record).map(|(choose, record)| {
        let callables = Callables { choose, record };
        Box::new(callables) as Box<dyn Controller>
    });
    py.detach(|| penstock_chunks::run(config_json, controller))
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Run `what` on the store at `root`, which this process has not mounted: `collect`, `verify` or `usage`. Return JSON.
///
/// `family` is the rule of families. Raises ValueError if there is no store or it is in use, RuntimeError if it cannot
/// be read or, for `collect`, is damaged.
#[pyfunction]
fn dedup_store(py: Python<'_>, root: PathBuf, what: &str, family: &str) -> PyResult<String> {
    let act = || -> Result<String, Error> {
        let objects = Objects::open(&root, false, false)?;
        let rule = Rule::new(family)?;
        let core = Core::new(objects, rule, Scope::Family);
        let value = match what {
            "collect" => serde_json::to_string(&core.collect()?),
            "verify" => serde_json::to_string(&core.verify()?),
            "usage" => serde_json::to_string(&core.usage()?),
            _ => return Err(Error::Bad(format!("no such operation: {what}"))),
        };
        value.map_err(|error| Error::Bad(error.to_string()))
    };
    py.detach(act).map_err(raised)
}

/// Normalize a configuration, with sizes in bytes. Raises ValueError if it is invalid.
#[pyfunction]
fn dedup_chunking(text: &str) -> PyResult<String> {
    Ok(chunking_of(text)?.to_string())
}

/// Family of a path by a rule, a regular expression. Raises ValueError if it is invalid.
#[pyfunction]
fn dedup_family(rule: &str, path: &str) -> PyResult<String> {
    Rule::new(rule)
        .map(|rule| rule.family(path))
        .map_err(raised)
}

/// Lengths of the chunks of `data` by a configuration. Raises ValueError if it is invalid.
#[pyfunction]
fn dedup_cuts(py: Python<'_>, data: &[u8], chunking: &str) -> PyResult<Vec<usize>> {
    let chunking = chunking_of(chunking)?;
    Ok(py.detach(|| throughput::cuts(data, chunking)))
}

/// Chunks of the file `new` that the file `old` has: JSON of chunks, similar_chunks, bytes, similar_bytes.
///
/// Raises ValueError for an invalid configuration, RuntimeError if a file cannot be read.
#[pyfunction]
fn dedup_compare(py: Python<'_>, old: PathBuf, new: PathBuf, chunking: &str) -> PyResult<String> {
    let chunking = chunking_of(chunking)?;
    let similarity = py
        .detach(|| penstock_chunks::compare::compare(&old, &new, chunking))
        .map_err(raised)?;
    serde_json::to_string(&similarity).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Bytes per second of processor time for a hash (`blake3`, `sha256`, `xxh3`) or a configuration, on one core.
///
/// Returns one value per repeat. Each repeat processes `size_bytes` random bytes in memory, a hash in pieces of
/// `piece_bytes`. Raises ValueError for another name.
#[pyfunction]
fn dedup_throughput(
    py: Python<'_>,
    what: &str,
    size_bytes: usize,
    piece_bytes: usize,
    repeats: usize,
) -> PyResult<Vec<f64>> {
    py.detach(|| {
        let data = throughput::random_bytes(size_bytes, 1);
        throughput::throughput(what, &data, piece_bytes, repeats)
    })
    .map_err(PyValueError::new_err)
}

/// Add the functions of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(dedup_main, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_store, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_chunking, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_family, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_cuts, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_compare, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_throughput, module)?)?;
    Ok(())
}
