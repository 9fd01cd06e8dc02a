//! Python bindings of `tracefmt::tiles`.

use penstock_tracefmt::tiles::window::{counted, keyed, View};
use penstock_tracefmt::tiles::{totals, Batch, TileRequest, Tiles};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// The elements of a contiguous buffer, without a copy.
fn elements<T: Element>(buffer: &PyBuffer<T>) -> PyResult<&[T]> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("an array must be contiguous"));
    }
    if buffer.item_count() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer stays acquired, and its owner does not write to it during a call.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.item_count()) })
}

fn unequal() -> PyErr {
    PyValueError::new_err("the columns must have one length")
}

/// Columns of events: int64 arrays, `kind` uint8.
struct Columns {
    t_ns: PyBuffer<i64>,
    file_id: PyBuffer<i64>,
    kind: PyBuffer<u8>,
    offset: PyBuffer<i64>,
    done: PyBuffer<i64>,
    latency: PyBuffer<i64>,
}

impl Columns {
    fn batch(&self) -> PyResult<Batch<'_>> {
        Ok(Batch {
            t_ns: elements(&self.t_ns)?,
            file_id: elements(&self.file_id)?,
            kind: elements(&self.kind)?,
            offset: elements(&self.offset)?,
            done: elements(&self.done)?,
            latency: elements(&self.latency)?,
        })
    }
}

/// Sums and ranges per file, accumulated batch by batch.
#[pyclass(module = "penstock._native")]
#[derive(Default)]
struct TraceTotals(totals::Totals);

#[pymethods]
impl TraceTotals {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Add events: int64 arrays of one length, `kind` uint8. Raises ValueError for unequal lengths.
    #[allow(clippy::too_many_arguments)]
    fn add(
        &mut self,
        py: Python<'_>,
        t_ns: PyBuffer<i64>,
        file_id: PyBuffer<i64>,
        kind: PyBuffer<u8>,
        offset: PyBuffer<i64>,
        done: PyBuffer<i64>,
        latency: PyBuffer<i64>,
    ) -> PyResult<()> {
        let columns = Columns {
            t_ns,
            file_id,
            kind,
            offset,
            done,
            latency,
        };
        let batch = columns.batch()?;
        let all = &mut self.0;
        py.detach(|| all.add(batch))
            .then_some(())
            .ok_or_else(unequal)
    }

    /// All files as a JSON list.
    fn files(&self) -> PyResult<String> {
        serde_json::to_string(self.0.files()).map_err(|e| PyValueError::new_err(e.to_string()))
    }
}

/// Density tiles of some files, accumulated batch by batch; `wanted` is a JSON list.
#[pyclass(module = "penstock._native")]
struct TraceTiles(Option<Tiles>);

#[pymethods]
impl TraceTiles {
    #[new]
    fn new(wanted: &str) -> PyResult<Self> {
        let requests: Vec<TileRequest> =
            serde_json::from_str(wanted).map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Self(Some(Tiles::new(requests))))
    }

    /// Add events: int64 arrays of one length, `kind` uint8. Raises ValueError for unequal lengths.
    #[allow(clippy::too_many_arguments)]
    fn add(
        &mut self,
        py: Python<'_>,
        t_ns: PyBuffer<i64>,
        file_id: PyBuffer<i64>,
        kind: PyBuffer<u8>,
        offset: PyBuffer<i64>,
        done: PyBuffer<i64>,
        latency: PyBuffer<i64>,
    ) -> PyResult<()> {
        let columns = Columns {
            t_ns,
            file_id,
            kind,
            offset,
            done,
            latency,
        };
        let batch = columns.batch()?;
        let tiles = self.0.as_mut().ok_or_else(packed_already)?;
        py.detach(|| tiles.add(batch))
            .then_some(())
            .ok_or_else(unequal)
    }

    /// Return the description (JSON) and the sections (name → bytes) of each file. No events can be added afterwards.
    fn packed<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyDict>)>> {
        let tiles = self.0.take().ok_or_else(packed_already)?;
        py.detach(|| tiles.packed())
            .into_iter()
            .map(|packed| {
                let head = serde_json::to_string(&packed.head)
                    .map_err(|e| PyValueError::new_err(e.to_string()))?;
                let sections = PyDict::new(py);
                for (name, bytes) in packed.sections {
                    sections.set_item(name, PyBytes::new(py, &bytes))?;
                }
                Ok((head, sections))
            })
            .collect()
    }
}

fn packed_already() -> PyErr {
    PyValueError::new_err("packed already")
}

/// Combine each offset and channel into one number, as `tile_window` expects: little-endian uint64 bytes.
#[pyfunction]
fn tile_keys<'py>(
    py: Python<'py>,
    offsets: PyBuffer<i64>,
    channels: PyBuffer<u8>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (offsets, channels) = (elements(&offsets)?, elements(&channels)?);
    if offsets.len() != channels.len() {
        return Err(unequal());
    }
    let bytes: Vec<u8> = offsets
        .iter()
        .zip(channels)
        .flat_map(|(&o, &c)| keyed(u64::try_from(o).unwrap_or(0), c).to_le_bytes())
        .collect();
    Ok(PyBytes::new(py, &bytes))
}

/// Counts (uint32 bytes) for a view of `keys`: per column, per row from the bottom, per channel.
///
/// `borders` (uint64) are indices into `keys`, one more than columns. Offsets `low`..`high` are divided into `rows`.
#[pyfunction]
fn tile_window<'py>(
    py: Python<'py>,
    keys: PyBuffer<u64>,
    borders: PyBuffer<u64>,
    low: u64,
    high: u64,
    rows: usize,
    threads: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let keys = elements(&keys)?;
    let borders: Vec<usize> = elements(&borders)?
        .iter()
        .map(|&b| usize::try_from(b).unwrap_or(usize::MAX))
        .collect();
    let view = View { low, high, rows };
    let counts = py.detach(|| counted(keys, &borders, view, threads));
    let bytes: Vec<u8> = counts.iter().flat_map(|n| n.to_le_bytes()).collect();
    Ok(PyBytes::new(py, &bytes))
}

/// Add the functions and classes of density tiles to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TraceTotals>()?;
    module.add_class::<TraceTiles>()?;
    module.add_function(wrap_pyfunction!(tile_keys, module)?)?;
    module.add_function(wrap_pyfunction!(tile_window, module)?)
}
