//! Python bindings of the `tracefmt` crate.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use penstock_tracefmt::columns::{Events, Requests};
use penstock_tracefmt::context::Context;
use penstock_tracefmt::fio::FioLogs;
use penstock_tracefmt::imported::Imported;
use penstock_tracefmt::json::Json;
use penstock_tracefmt::paraver::Paraver;
use penstock_tracefmt::perfetto::Perfetto;
use penstock_tracefmt::spool::Spool;
use penstock_tracefmt::{blktrace, dxt, iolog, Exporter, ReadError};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use serde_json::{json, Value};

type Column = PyBuffer<i64>;

/// Writer of a trace in another program's format.
///
/// `format` is `perfetto`, `paraver`, `json`, `jsonl` or `fio`; `path` is the file (for Paraver the `.prv`), or for
/// `fio` the directory of the logs. `context` is JSON (see `penstock_tracefmt::context`), with `date` for Paraver and
/// `head`, the fields before the events, for `json`. Raises ValueError, OSError.
#[pyclass]
struct TraceExport {
    inner: Box<dyn Exporter>,
}

#[pymethods]
impl TraceExport {
    #[new]
    fn new(format: &str, path: PathBuf, context: &str) -> PyResult<Self> {
        let wrong = |e: serde_json::Error| PyValueError::new_err(e.to_string());
        let document: Value = serde_json::from_str(context).map_err(wrong)?;
        let (date, head) = (document["date"].clone(), document["head"].clone());
        let context: Context = serde_json::from_value(document).map_err(wrong)?;
        let inner: Box<dyn Exporter> = match format {
            "perfetto" => Box::new(Perfetto::create(&path, context)?),
            "paraver" => Box::new(Paraver::create(
                &path,
                &path.with_extension("pcf"),
                &path.with_extension("row"),
                &context,
                date.as_str().unwrap_or("01/01/70 at 00:00"),
            )?),
            "json" | "jsonl" => {
                let head = if head.is_object() { head } else { json!({}) };
                Box::new(Json::create(&path, &context, format == "jsonl", &head)?)
            }
            "fio" => Box::new(FioLogs::create(&path, &context)?),
            _ => return Err(PyValueError::new_err(format!("no format {format}"))),
        };
        Ok(TraceExport { inner })
    }

    /// Add the next events: int64 arrays of one length t_ns, op, file_id, offset, size, done, errno,
    /// latency_ns, pid, tid, flags, in order of `t_ns`.
    fn events(&mut self, py: Python<'_>, columns: Vec<Column>) -> PyResult<()> {
        let [t_ns, op, file_id, offset, size, done, errno, latency_ns, pid, tid, flags] =
            columns_of::<11>(py, &columns)?;
        let events = Events {
            t_ns,
            op,
            file_id,
            offset,
            size,
            done,
            errno,
            latency_ns,
            pid,
            tid,
            flags,
        };
        if !events.is_even() {
            return Err(PyValueError::new_err("columns must have one length"));
        }
        Ok(py.detach(|| self.inner.events(&events))?)
    }

    /// Add device requests up to the last event: int64 arrays t_ns, done_ns, op (0 read, 1 write, 2 flush,
    /// 3 discard), offset, size, disk (index into the context's `disks`), tid (0: unknown).
    fn requests(&mut self, py: Python<'_>, columns: Vec<Column>) -> PyResult<()> {
        let [t_ns, done_ns, op, offset, size, disk, tid] = columns_of::<7>(py, &columns)?;
        let requests = Requests {
            t_ns,
            done_ns,
            op,
            offset,
            size,
            disk,
            tid,
        };
        if !requests.is_even() {
            return Err(PyValueError::new_err("columns must have one length"));
        }
        Ok(py.detach(|| self.inner.requests(&requests))?)
    }

    /// Close the files. Return JSON with the number of `events` and other counts.
    fn finish(&mut self, py: Python<'_>) -> PyResult<String> {
        Ok(py.detach(|| self.inner.finish())?.to_string())
    }
}

fn columns_of<const N: usize>(py: Python<'_>, columns: &[Column]) -> PyResult<[Vec<i64>; N]> {
    let vectors: Vec<Vec<i64>> = columns
        .iter()
        .map(|column| column.to_vec(py))
        .collect::<PyResult<_>>()?;
    let n = vectors.len();
    vectors
        .try_into()
        .map_err(|_| PyValueError::new_err(format!("found {n} columns; expected {N}")))
}

/// Convert another tool's trace to a spool of the tracer. Return JSON of files, threads and counts.
///
/// `format` is `blktrace`, `dxt` or `iolog`. For blktrace the device requests are written to `requests`, 8 int64 each
/// (queued_ns, issued_ns, done_ns or 0, offset, size, op, tid, device). Raises ValueError with position and
/// reason for a malformed file, OSError for an unreadable file.
#[pyfunction]
fn read_foreign_trace(
    py: Python<'_>,
    format: &str,
    paths: Vec<PathBuf>,
    spool: PathBuf,
    requests: PathBuf,
) -> PyResult<String> {
    let result = py.detach(|| read_foreign(format, &paths, &spool, &requests));
    match result {
        Ok(imported) => {
            serde_json::to_string(&imported).map_err(|e| PyValueError::new_err(e.to_string()))
        }
        Err(ReadError::Malformed(what)) => Err(PyValueError::new_err(what)),
        Err(error @ ReadError::Io(..)) => Err(PyOSError::new_err(error.to_string())),
    }
}

fn read_foreign(
    format: &str,
    paths: &[PathBuf],
    spool: &Path,
    requests: &Path,
) -> Result<Imported, ReadError> {
    let read_error = |path: &Path| {
        let name = path.display().to_string();
        move |e| ReadError::Io(name.clone(), e)
    };
    let mut out = Spool::create(spool).map_err(read_error(spool))?;
    let mut imported = Imported::default();
    match format {
        "blktrace" => {
            let file = File::create(requests).map_err(read_error(requests))?;
            let mut side = BufWriter::with_capacity(1 << 20, file);
            let mut each = |r: &blktrace::DeviceRequest| {
                let fields = [
                    r.queued_ns,
                    r.issued_ns,
                    r.done_ns,
                    r.offset,
                    u64::from(r.size),
                    u64::from(r.op),
                    u64::from(r.pid),
                    u64::from(r.device),
                ];
                fields
                    .iter()
                    .try_for_each(|field| side.write_all(&field.to_le_bytes()))
            };
            blktrace::read(paths, &mut out, &mut imported, &mut each)?;
            side.flush().map_err(read_error(requests))?;
        }
        "dxt" => {
            for path in paths {
                dxt::read(path, &mut out, &mut imported)?;
            }
        }
        "iolog" => {
            for (tid, path) in (1..).zip(paths) {
                iolog::read(path, tid, &mut out, &mut imported)?;
            }
        }
        _ => return Err(ReadError::Malformed(format!("no format {format}"))),
    }
    out.finish().map_err(read_error(spool))?;
    Ok(imported)
}

/// Add the functions and classes of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TraceExport>()?;
    module.add_function(wrap_pyfunction!(read_foreign_trace, module)?)
}
