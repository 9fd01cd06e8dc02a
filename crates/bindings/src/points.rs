//! Python names of the `points` crate.

use std::collections::BTreeMap;

use penstock_points::remote_write::Sent;
use penstock_points::{exposition, graphite, line_protocol, pickle, remote_write, Batch, Reader};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// Reads what one source sends. Each method reads one message and gives it as columns: a dictionary of bytes
/// `metric`, `labels` (int32, places in the lists `metrics` and `label_sets`), `utc_ns`, `bits` (int64) and `kind`
/// (uint8: float, integer, text, boolean), the list `texts`, `refused` by reason and `told`, pairs of line and what
/// was wrong there. ValueError where the message as a whole is none.
#[pyclass]
struct PointReader(Reader);

#[pymethods]
impl PointReader {
    #[new]
    #[pyo3(signature = (most_series=penstock_points::MOST_SERIES, in_order=true))]
    fn new(most_series: usize, in_order: bool) -> Self {
        PointReader(Reader::new(most_series, in_order))
    }

    /// InfluxDB lines; times in units of `unit_ns`, lines without one are of `now_ns`.
    fn line_protocol<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
        now_ns: i64,
        unit_ns: i64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let reader = &mut self.0;
        py.detach(|| line_protocol::read(reader, text, now_ns, unit_ns));
        columns(py, reader.take())
    }

    /// Graphite's lines.
    fn graphite<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
        now_ns: i64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let reader = &mut self.0;
        py.detach(|| graphite::read(reader, text, now_ns));
        columns(py, reader.take())
    }

    /// One of Graphite's pickles.
    fn pickle<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        now_ns: i64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let reader = &mut self.0;
        let read = py.detach(|| pickle::read(reader, data, now_ns));
        taken(py, reader, read)
    }

    /// What an exporter shows; each series with the labels `added`.
    fn exposition<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
        now_ns: i64,
        open_metrics: bool,
        own_times: bool,
        added: BTreeMap<String, String>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (reader, added) = (&mut self.0, added.into_iter().collect::<Vec<_>>());
        py.detach(|| exposition::read(reader, text, now_ns, open_metrics, own_times, &added));
        columns(py, reader.take())
    }

    /// A WriteRequest of Prometheus, out of its compression.
    fn remote_write<'py>(
        &mut self,
        py: Python<'py>,
        message: &[u8],
    ) -> PyResult<Bound<'py, PyDict>> {
        let reader = &mut self.0;
        let read = py.detach(|| remote_write::read(reader, message));
        taken(py, reader, read)
    }
}

fn taken<'py>(
    py: Python<'py>,
    reader: &mut Reader,
    read: Result<(), String>,
) -> PyResult<Bound<'py, PyDict>> {
    let batch = reader.take();
    read.map_err(PyValueError::new_err)?;
    columns(py, batch)
}

fn columns(py: Python<'_>, batch: Batch) -> PyResult<Bound<'_, PyDict>> {
    fn bytes<'py, T: Copy, const N: usize>(
        py: Python<'py>,
        values: &[T],
        of: fn(T) -> [u8; N],
    ) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, values.len() * N, |out| {
            for (place, value) in out.chunks_exact_mut(N).zip(values) {
                place.copy_from_slice(&of(*value));
            }
            Ok(())
        })
    }
    let found = PyDict::new(py);
    let texts =
        |of: &[std::sync::Arc<str>]| of.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    found.set_item("metrics", texts(&batch.metrics))?;
    found.set_item("label_sets", texts(&batch.label_sets))?;
    found.set_item("metric", bytes(py, &batch.metric, i32::to_ne_bytes)?)?;
    found.set_item("labels", bytes(py, &batch.labels, i32::to_ne_bytes)?)?;
    found.set_item("utc_ns", bytes(py, &batch.utc_ns, i64::to_ne_bytes)?)?;
    found.set_item("bits", bytes(py, &batch.bits, i64::to_ne_bytes)?)?;
    found.set_item("kind", PyBytes::new(py, &batch.kind))?;
    found.set_item("texts", batch.texts)?;
    let refused: Vec<(&str, u64)> = batch
        .refused
        .iter()
        .map(|(why, n)| (why.name(), *n))
        .collect();
    found.set_item("refused", refused)?;
    found.set_item("told", batch.told)?;
    Ok(found)
}

/// A WriteRequest of Prometheus: series as (metric, labels), and of each the times [ms] and the values.
#[pyfunction]
fn remote_write_message(
    py: Python<'_>,
    series: Vec<(String, BTreeMap<String, String>)>,
    samples: Vec<Vec<(i64, f64)>>,
) -> PyResult<Bound<'_, PyBytes>> {
    if series.len() != samples.len() {
        return Err(PyValueError::new_err(
            "as many lists of samples as series are expected",
        ));
    }
    let mut message = Vec::new();
    for ((metric, labels), samples) in series.iter().zip(&samples) {
        remote_write::write(
            &mut message,
            &Sent {
                metric,
                labels,
                samples,
            },
        );
    }
    Ok(PyBytes::new(py, &message))
}

/// Adds this crate's functions and classes to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PointReader>()?;
    module.add_function(wrap_pyfunction!(remote_write_message, module)?)
}
