//! Python bindings of the `pattern` crate and of the spool that feeds it.

use std::collections::HashMap;
use std::path::PathBuf;

use penstock_pattern::{judge, judge_as_in_kernel, Operation, Row, Starts, Stream, EXACT_REQUESTS};
use penstock_probe::layout::{Event, OPERATIONS};
use penstock_probe::spool::Spool;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// Classify the requests of one file and direction, in order of time. Return JSON {together, threads}.
///
/// `offsets` and `sizes` (completed) are int64 arrays [bytes], `tids` is a uint32 array or None for one thread.
/// `path` is `exact`, `streaming` (the method for sequences too long for that) or `epochs` (the method of mode
/// `pattern`).
#[pyfunction]
#[pyo3(signature = (offsets, sizes, tids=None, path="exact"))]
fn classify(
    py: Python<'_>,
    offsets: PyBuffer<i64>,
    sizes: PyBuffer<i64>,
    tids: Option<PyBuffer<u32>>,
    path: &str,
) -> PyResult<String> {
    let offsets = offsets.to_vec(py)?;
    let sizes = sizes.to_vec(py)?;
    let tids = match tids {
        Some(tids) => tids.to_vec(py)?,
        None => vec![0; offsets.len()],
    };
    if sizes.len() != offsets.len() || tids.len() != offsets.len() {
        return Err(PyValueError::new_err(
            "offsets, sizes and tids must have one length",
        ));
    }
    let times: Vec<u64> = (1..=offsets.len() as u64).collect();
    let judgement = py.detach(|| match path {
        "exact" => Some(judge(&offsets, &sizes, &tids, &[])),
        "epochs" => Some(judge_as_in_kernel(&offsets, &sizes, &tids, &times)),
        "streaming" => {
            let mut stream = Stream::new(Vec::new(), 0);
            for i in 0..offsets.len() {
                stream.push(&Operation {
                    t_ns: times[i],
                    file_id: 1,
                    tid: tids[i],
                    offset: offsets[i],
                    done: sizes[i],
                    ..Operation::default()
                });
            }
            stream.finish().pop().map(|row| row.judgement)
        }
        _ => None,
    });
    let judgement =
        judgement.ok_or_else(|| PyValueError::new_err("no requests, or a path of no such name"))?;
    serde_json::to_string(&judgement).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn broken(error: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Classifier of a stream of operations in order of time, in bounded memory.
///
/// `phases`: (first, last) times of intervals that are also classified separately [ns]; `exact`: longer sequences of
/// requests are classified by epochs; `threads`: (tid, start [ns]) of threads, to distinguish those with the same
/// number.
#[pyclass]
struct Judge {
    stream: Option<Stream>,
}

/// Items of a buffer that stays acquired.
struct Items<T: Element>(PyBuffer<T>);

impl<T: Element> Items<T> {
    fn get(&self) -> &[T] {
        // SAFETY: the buffer is contiguous (checked on creation) and acquired; its owner must not write to it.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.item_count()) }
    }
}

fn items<T: Element>(buffer: PyBuffer<T>, count: Option<usize>) -> PyResult<Items<T>> {
    if !buffer.is_c_contiguous() || count.is_some_and(|n| n != buffer.item_count()) {
        return Err(PyValueError::new_err(
            "columns must be contiguous and of one length",
        ));
    }
    Ok(Items(buffer))
}

#[pymethods]
impl Judge {
    #[new]
    #[pyo3(signature = (phases=Vec::new(), exact=EXACT_REQUESTS, threads=Vec::new()))]
    fn new(phases: Vec<(u64, u64)>, exact: usize, threads: Vec<(u32, u64)>) -> Self {
        let stream = Stream::new(phases, exact).with_starts(Starts::new(threads));
        Self {
            stream: Some(stream),
        }
    }

    /// Add the next operations, as columns: int64 arrays, but `op` and `flags` are uint8.
    #[allow(clippy::too_many_arguments)]
    fn feed(
        &mut self,
        py: Python<'_>,
        t_ns: PyBuffer<i64>,
        op: PyBuffer<u8>,
        file_id: PyBuffer<i64>,
        offset_bytes: PyBuffer<i64>,
        done_bytes: PyBuffer<i64>,
        errno: PyBuffer<i64>,
        latency_ns: PyBuffer<i64>,
        tid: PyBuffer<i64>,
        flags: PyBuffer<u8>,
    ) -> PyResult<()> {
        let n = Some(t_ns.item_count());
        let t_ns = items(t_ns, n)?;
        let (op, flags) = (items(op, n)?, items(flags, n)?);
        let file_id = items(file_id, n)?;
        let (offset, done) = (items(offset_bytes, n)?, items(done_bytes, n)?);
        let (errno, latency) = (items(errno, n)?, items(latency_ns, n)?);
        let tid = items(tid, n)?;
        let Some(stream) = self.stream.as_mut() else {
            return Err(broken("the verdicts were given"));
        };
        let (t_ns, op, file_id) = (t_ns.get(), op.get(), file_id.get());
        let (offset, done, errno) = (offset.get(), done.get(), errno.get());
        let (latency, tid, flags) = (latency.get(), tid.get(), flags.get());
        py.detach(|| {
            for i in 0..t_ns.len() {
                stream.push(&Operation {
                    t_ns: t_ns[i] as u64,
                    file_id: file_id[i] as u32,
                    tid: tid[i] as u32,
                    offset: offset[i],
                    done: if errno[i] == 0 { done[i] } else { -errno[i] },
                    latency_ns: latency[i] as u64,
                    op: op[i],
                    flags: flags[i],
                });
            }
        });
        Ok(())
    }

    /// Append the operations of `later`, which come after these. Empties `later`.
    fn append(&mut self, py: Python<'_>, mut later: PyRefMut<'_, Judge>) -> PyResult<()> {
        let (Some(stream), Some(more)) = (self.stream.as_mut(), later.stream.take()) else {
            return Err(broken("the verdicts were given"));
        };
        py.detach(|| stream.append(more));
        Ok(())
    }

    /// Return a JSON list of {file_id, direction, basis, phase, calls, errors, done_bytes, time_ns, first_ns, last_ns,
    /// together, threads, both}. For a single thread `only_tid` is its number and `threads` is empty.
    fn verdicts(&mut self, py: Python<'_>) -> PyResult<String> {
        let stream = self.stream.take();
        let stream = stream.ok_or_else(|| broken("the verdicts were given"))?;
        py.detach(|| {
            let rows = stream.finish().into_iter();
            let rows: Vec<Row> = rows.map(Row::without_repetition).collect();
            serde_json::to_string(&rows)
        })
        .map_err(broken)
    }
}

/// First operation code without an offset.
const FIRST_SYNC: u8 = 64;

/// Reader of a spool in order of time, part by part. It returns columns for the table and feeds the classifier.
#[pyclass]
struct SpoolReader {
    spool: Spool,
    seq: u64,
    names: [i8; 256],
    cgroups: Vec<u64>,
    named: HashMap<(u64, u32), u32>,
}

#[pymethods]
impl SpoolReader {
    /// `cgroups`: control group of each slot. `named`: (time, thread, file) of calls that name their file.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        cgroups: Vec<u64>,
        named: Vec<(u64, u32, u32)>,
    ) -> PyResult<Self> {
        let spool = py.detach(|| Spool::open(&path)).map_err(broken)?;
        let mut names = [0; 256];
        for (index, &(number, _)) in OPERATIONS.iter().enumerate() {
            names[usize::from(number)] = index as i8;
        }
        Ok(Self {
            spool,
            seq: 0,
            names,
            cgroups,
            named: named
                .into_iter()
                .map(|(t, tid, id)| ((t, tid), id))
                .collect(),
        })
    }

    /// Number of complete records in the spool.
    #[getter]
    fn events(&self) -> u64 {
        self.spool.events()
    }

    /// Feed the next events to `judge`. Return their columns by name as bytes (int64; `op` and `direction` are int8
    /// indices), or None at the end. Without `columns` the dictionary is empty.
    fn next_part<'py>(
        &mut self,
        py: Python<'py>,
        mut judge: PyRefMut<'py, Judge>,
        columns: bool,
    ) -> PyResult<Option<(usize, Bound<'py, PyDict>)>> {
        let stream = judge.stream.as_mut();
        let stream = stream.ok_or_else(|| broken("the verdicts were given"))?;
        let (spool, named) = (&mut self.spool, &self.named);
        let part = py.detach(|| -> Result<_, _> {
            let mut part = spool.next_part()?;
            for event in &mut part {
                if event.file_id == 0 && event.op >= FIRST_SYNC {
                    event.file_id = *named.get(&(event.t_ns, event.tid)).unwrap_or(&0);
                }
                stream.push(&Operation {
                    t_ns: event.t_ns,
                    file_id: event.file_id,
                    tid: event.tid,
                    offset: event.offset_bytes,
                    done: i64::from(event.done_bytes),
                    latency_ns: event.latency_ns,
                    op: event.op,
                    flags: event.flags,
                });
            }
            Ok::<_, penstock_probe::ProbeError>(part)
        });
        let part = part.map_err(broken)?;
        if part.is_empty() {
            return Ok(None);
        }
        let result = PyDict::new(py);
        if columns {
            let first = self.seq;
            let fallback = self.cgroups.last().copied().unwrap_or(0);
            let group =
                |slot: u16| *self.cgroups.get(usize::from(slot)).unwrap_or(&fallback) as i64;
            let names = &self.names;
            let wide = |name: &str, of: &dyn Fn(&Event) -> i64| -> PyResult<()> {
                let column = PyBytes::new_with(py, part.len() * 8, |bytes| {
                    for (place, event) in bytes.chunks_exact_mut(8).zip(&part) {
                        place.copy_from_slice(&of(event).to_le_bytes());
                    }
                    Ok(())
                })?;
                result.set_item(name, column)
            };
            wide("t_ns", &|e| e.t_ns as i64)?;
            wide("file_id", &|e| i64::from(e.file_id))?;
            wide("offset_bytes", &|e| e.offset_bytes)?;
            wide("size_bytes", &|e| i64::from(e.size_bytes))?;
            wide("done_bytes", &|e| i64::from(e.done_bytes.max(0)))?;
            wide("errno", &|e| i64::from(e.done_bytes.min(0)).abs())?;
            wide("latency_ns", &|e| e.latency_ns as i64)?;
            wide("pid", &|e| i64::from(e.pid))?;
            wide("tid", &|e| i64::from(e.tid))?;
            wide("cgroup_id", &|e| group(e.cgroup_slot))?;
            wide("flags", &|e| i64::from(e.flags))?;
            let seq = PyBytes::new_with(py, part.len() * 8, |bytes| {
                for (place, i) in bytes.chunks_exact_mut(8).zip(first..) {
                    place.copy_from_slice(&i.to_le_bytes());
                }
                Ok(())
            })?;
            result.set_item("seq", seq)?;
            let narrow = |name: &str, of: &dyn Fn(&Event) -> i8| -> PyResult<()> {
                let column = PyBytes::new_with(py, part.len(), |bytes| {
                    for (place, event) in bytes.iter_mut().zip(&part) {
                        *place = of(event) as u8;
                    }
                    Ok(())
                })?;
                result.set_item(name, column)
            };
            narrow("op", &|e| names[usize::from(e.op)])?;
            narrow("direction", &|e| (e.op / 32).min(3) as i8)?;
        }
        self.seq += part.len() as u64;
        Ok(Some((part.len(), result)))
    }
}

/// Add the functions and classes of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Judge>()?;
    module.add_class::<SpoolReader>()?;
    module.add_function(wrap_pyfunction!(classify, module)?)
}
