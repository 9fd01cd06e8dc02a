//! Python names of the `pattern` crate.

use std::collections::BTreeMap;

use penstock_pattern::{judge, judge_counters, Counters};
use penstock_probe::layout::Stream;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::json;

/// Judges requests of one file and direction, in order of time; gives JSON {together, threads}.
///
/// `offsets` and `sizes` (completed) are int64 arrays [bytes], `tids` a uint32 array or None for one thread.
#[pyfunction]
#[pyo3(signature = (offsets, sizes, tids=None))]
fn classify(
    py: Python<'_>,
    offsets: PyBuffer<i64>,
    sizes: PyBuffer<i64>,
    tids: Option<PyBuffer<u32>>,
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
    let judgement = py.detach(|| judge(&offsets, &sizes, &tids));
    serde_json::to_string(&judgement).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Judges the streams of mode `pattern` (bytes of the spool file); gives JSON, a list of
/// {file_id, direction, together, threads} with sampled latencies and errors.
#[pyfunction]
fn classify_streams(spool: &[u8]) -> PyResult<String> {
    const SIZE: usize = std::mem::size_of::<Stream>();
    let mut groups: BTreeMap<(u32, u32), Vec<Stream>> = BTreeMap::new();
    for bytes in spool.chunks_exact(SIZE) {
        // SAFETY: as long as the structure, which is plain numbers.
        let stream: Stream = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
        if stream.file_id > 0 {
            let key = (stream.file_id, stream.direction);
            groups.entry(key).or_default().push(stream);
        }
    }
    let rows: Vec<_> = groups
        .iter()
        .map(|((file_id, direction), streams)| {
            let counters: Vec<Counters> = streams.iter().map(counters).collect();
            let judgement = judge_counters(&counters);
            let sum = |of: fn(&Stream) -> u64| streams.iter().map(of).sum::<u64>();
            json!({
                "file_id": file_id,
                "direction": if *direction == 0 { "read" } else { "write" },
                "together": judgement.together,
                "threads": judgement.threads,
                "requests": sum(|s| s.requests + s.errors),
                "errors": sum(|s| s.errors),
                "done_bytes": sum(|s| s.done_bytes),
                "sampled": sum(|s| s.sampled),
                "sampled_ns": sum(|s| s.sampled_ns),
            })
        })
        .collect();
    Ok(json!(rows).to_string())
}

fn counters(stream: &Stream) -> Counters {
    let long = stream.chain_requests.iter().filter(|&&n| n >= 8).count();
    Counters {
        tid: stream.tid,
        requests: stream.requests,
        bytes: stream.done_bytes,
        consecutive: stream.consecutive,
        near: stream.near,
        forward: stream.forward,
        reverse: stream.reverse,
        same_step: stream.same_step,
        last_step: stream.last_step,
        chained: stream.chained,
        long_chains: u32::try_from(long).unwrap_or(0),
        size_class: stream.size_class.iter().map(|&n| u64::from(n)).collect(),
        span_ns: (stream.first_ns, stream.last_ns.max(stream.first_ns)),
    }
}

/// Adds this crate's functions and classes to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(classify, module)?)?;
    module.add_function(wrap_pyfunction!(classify_streams, module)?)
}
