//! Python bindings of the `points` crate.

use std::collections::BTreeMap;

use penstock_points::exposition::OfTarget;
use penstock_points::remote_write::Sent;
use penstock_points::{
    exposition, graphite, line_protocol, pickle, remote_write, remote_write2, Batch, Reader,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// Reader of the messages of one source.
///
/// Each method reads one message. It returns the number of `refused` points by reason; `told`, pairs of line and
/// problem; the number of `points`; the number of `valueless` points, which are among the refused and have a NaN in the
/// columns; and the number of `exemplars`. Raises ValueError if the message is malformed as a unit; then none of it is
/// stored. `take` returns the points of all messages since the last call as columns: a dictionary of bytes `metric`,
/// `labels` (int32, indices into the lists `metrics` and `label_sets`), `utc_ns`, `bits` (int64) and `kind` (uint8:
/// float, integer, text, boolean), and the list `texts`.
#[pyclass]
struct PointReader(Reader);

#[pymethods]
impl PointReader {
    #[new]
    #[pyo3(signature = (most_series=penstock_points::MOST_SERIES, in_order=true))]
    fn new(most_series: usize, in_order: bool) -> Self {
        PointReader(Reader::new(most_series, in_order))
    }

    /// Read InfluxDB lines. Times are in units of `unit_ns`; a line without a time gets `now_ns`.
    fn line_protocol<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
        now_ns: i64,
        unit_ns: i64,
    ) -> PyResult<Bound<'py, PyDict>> {
        message(py, &mut self.0, |reader| {
            line_protocol::read(reader, text, now_ns, unit_ns);
            Ok(())
        })
    }

    /// Read Graphite lines.
    fn graphite<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
        now_ns: i64,
    ) -> PyResult<Bound<'py, PyDict>> {
        message(py, &mut self.0, |reader| {
            graphite::read(reader, text, now_ns);
            Ok(())
        })
    }

    /// Read one Graphite pickle.
    fn pickle<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        now_ns: i64,
    ) -> PyResult<Bound<'py, PyDict>> {
        message(py, &mut self.0, |reader| pickle::read(reader, data, now_ns))
    }

    /// Read the page of an exporter. Each series gets the labels `added`, which replace its own unless `honor_labels`.
    #[pyo3(signature = (text, now_ns, open_metrics, own_times, added, honor_labels=false))]
    #[allow(clippy::too_many_arguments)]
    fn exposition<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
        now_ns: i64,
        open_metrics: bool,
        own_times: bool,
        added: BTreeMap<String, String>,
        honor_labels: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let added = added.into_iter().collect::<Vec<_>>();
        let of = OfTarget {
            added: &added,
            honor_labels,
            own_times,
        };
        message(py, &mut self.0, |reader| {
            exposition::read(reader, text, now_ns, open_metrics, &of)
        })
    }

    /// Read a decompressed WriteRequest of Prometheus.
    fn remote_write<'py>(
        &mut self,
        py: Python<'py>,
        message: &[u8],
    ) -> PyResult<Bound<'py, PyDict>> {
        self::message(py, &mut self.0, |reader| {
            remote_write::read(reader, message)
        })
    }

    /// Read a decompressed Request of Prometheus remote write 2.0.
    fn remote_write2<'py>(
        &mut self,
        py: Python<'py>,
        message: &[u8],
    ) -> PyResult<Bound<'py, PyDict>> {
        self::message(py, &mut self.0, |reader| {
            remote_write2::read(reader, message)
        })
    }

    /// Metric and labels of the recorded series from number `first` on, in the order of their first appearance.
    fn known_from(&self, first: usize) -> Vec<(String, String)> {
        let series = self.0.series_from(first);
        series.map(|(m, l)| (m.to_owned(), l.to_owned())).collect()
    }

    /// Number of recorded series.
    #[getter]
    fn known(&self) -> usize {
        self.0.n_series()
    }

    /// Return the points of all messages since the last call.
    fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        columns(py, self.0.take())
    }
}

fn message<'py>(
    py: Python<'py>,
    reader: &mut Reader,
    read: impl FnOnce(&mut Reader) -> Result<(), String> + Send,
) -> PyResult<Bound<'py, PyDict>> {
    let before = reader.mark();
    let read = py.detach(|| {
        let read = read(reader);
        if read.is_err() {
            reader.back_to(before);
        }
        read
    });
    let counted = reader.take_counted();
    read.map_err(PyValueError::new_err)?;
    let result = PyDict::new(py);
    let refused = counted.refused.iter();
    let refused: Vec<(&str, u64)> = refused.map(|(why, n)| (why.name(), *n)).collect();
    let after = reader.position();
    let valueless = after.valueless - before.valueless;
    result.set_item("refused", refused)?;
    result.set_item("told", counted.messages)?;
    result.set_item("points", after.points - before.points - valueless)?;
    result.set_item("valueless", valueless)?;
    result.set_item("exemplars", counted.exemplars)?;
    Ok(result)
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
    let result = PyDict::new(py);
    let texts =
        |of: &[std::sync::Arc<str>]| of.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    result.set_item("metrics", texts(&batch.metrics))?;
    result.set_item("label_sets", texts(&batch.label_sets))?;
    result.set_item("metric", bytes(py, &batch.metric, i32::to_ne_bytes)?)?;
    result.set_item("labels", bytes(py, &batch.labels, i32::to_ne_bytes)?)?;
    result.set_item("utc_ns", bytes(py, &batch.utc_ns, i64::to_ne_bytes)?)?;
    result.set_item("bits", bytes(py, &batch.bits, i64::to_ne_bytes)?)?;
    result.set_item("kind", PyBytes::new(py, &batch.kind))?;
    result.set_item("texts", batch.texts)?;
    Ok(result)
}

/// Build a Prometheus WriteRequest from series: (metric, labels), and for each the times [ms] and the values.
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

/// Add the functions and classes of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PointReader>()?;
    module.add_function(wrap_pyfunction!(remote_write_message, module)?)
}
