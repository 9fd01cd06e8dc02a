//! Python bindings of the `station` crate and of the closed loop in `queuenet`.

use penstock_station::{Op, Patch, Request, Served, Station, StorageProfile};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// Read a profile. Raises ValueError with the arguments (message, line or None, column or None) if it is invalid.
fn read_profile(json: &str) -> PyResult<StorageProfile> {
    StorageProfile::from_json(json)
        .map_err(|error| PyValueError::new_err((error.message, error.line, error.column)))
}

fn array<T: Element + Clone>(
    py: Python<'_>,
    name: &str,
    object: &Bound<'_, PyAny>,
) -> PyResult<Vec<T>> {
    PyBuffer::<T>::get(object)
        .and_then(|buffer| buffer.to_vec(py))
        .map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}

/// Validate a profile and return it with a fixed order of fields. Raises ValueError(message, line, column) if invalid.
#[pyfunction]
fn profile_check(json: &str) -> PyResult<String> {
    Ok(read_profile(json)?.to_json())
}

/// Slow down a profile: times are multiplied by `factor`, rates divided by it.
#[pyfunction]
fn profile_scaled(json: &str, factor: f64) -> PyResult<String> {
    let scaled = read_profile(json)?.scaled(factor);
    scaled
        .validate()
        .map_err(|error| PyValueError::new_err(error.message))?;
    Ok(scaled.to_json())
}

/// Moments of one server's service time in seconds, and the highest rate of all servers per second.
#[pyfunction]
fn profile_moments<'py>(
    py: Python<'py>,
    json: &str,
    op: &str,
    sequential: bool,
    size_bytes: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let profile = read_profile(json)?;
    let op: Op = op.parse().map_err(PyValueError::new_err)?;
    let moments = PyDict::new(py);
    moments.set_item("mean", profile.mean_service_s(op, sequential, size_bytes))?;
    let probabilities = [0.5, 0.9, 0.95, 0.99];
    let quantiles = profile.service_quantiles_s(op, sequential, size_bytes, &probabilities);
    for (name, quantile) in ["p50", "p90", "p95", "p99"].iter().zip(quantiles) {
        moments.set_item(name, quantile)?;
    }
    moments.set_item(
        "capacity_iops",
        profile.capacity_iops(op, sequential, size_bytes),
    )?;
    Ok(moments)
}

/// Quantiles in seconds of one server's service time at the probabilities `p`.
#[pyfunction]
fn profile_quantiles(
    json: &str,
    op: &str,
    sequential: bool,
    size_bytes: u64,
    p: Vec<f64>,
) -> PyResult<Vec<f64>> {
    let profile = read_profile(json)?;
    let op: Op = op.parse().map_err(PyValueError::new_err)?;
    if let Some(wrong) = p.iter().find(|p| !(**p > 0.0 && **p < 1.0)) {
        return Err(PyValueError::new_err(format!(
            "probability {wrong}; above 0 and below 1 is expected"
        )));
    }
    Ok(profile.service_quantiles_s(op, sequential, size_bytes, &p))
}

/// Validate a patch and return it with a fixed order of keys. Raises ValueError if it is invalid.
#[pyfunction]
fn patch_check(json: &str) -> PyResult<String> {
    let patch = read_patch(json)?;
    serde_json::to_string(&patch).map_err(|e| PyValueError::new_err(e.to_string()))
}

fn read_patch(json: &str) -> PyResult<Patch> {
    Patch::from_json(json).map_err(|error| PyValueError::new_err(error.message))
}

/// A change of the device: number of requests before it, time, patch.
type Step = (usize, u64, Patch);

/// Apply the changes that come before request number `at`.
fn change(
    station: &mut Station,
    steps: &mut std::slice::Iter<'_, Step>,
    at: usize,
    all: &mut [Served],
) -> Result<(), String> {
    while let Some((_, when_ns, patch)) = steps.as_slice().first().filter(|step| step.0 <= at) {
        steps.next();
        for moved in station.change(*when_ns, patch).map_err(|e| e.message)? {
            if let Some(served) = all.get_mut(moved.served.id as usize) {
                *served = moved.served;
            }
        }
    }
    Ok(())
}

/// Serve the requests in their order and apply the changes in between.
fn serve(
    mut station: Station,
    t_ns: &[u64],
    requests: &[Request],
    steps: &[Step],
) -> Result<Vec<Served>, String> {
    if !steps.is_empty() {
        station.remember();
    }
    let mut all = Vec::with_capacity(requests.len());
    let mut steps = steps.iter();
    for (at, (t_ns, request)) in t_ns.iter().zip(requests).enumerate() {
        change(&mut station, &mut steps, at, &mut all)?;
        all.push(station.arrive(*t_ns, *request));
    }
    change(&mut station, &mut steps, requests.len(), &mut all)?;
    Ok(all)
}

/// Serve requests (arrays of u64 nanoseconds, u8 codes, u64 bytes, u64 bytes) in their order. Return a dict of bytes
/// objects with the u64 arrays `start_ns`, `due_ns`, `service_ns`, `wait_ns`, `visit` and the u8 array `sequential`.
/// `changes`: (number of requests before it, u64 nanoseconds, patch as JSON), in their order.
#[pyfunction]
#[pyo3(signature = (json, seed, t_ns, op, offset, size, changes=Vec::new()))]
#[allow(clippy::too_many_arguments)]
fn station_serve<'py>(
    py: Python<'py>,
    json: &str,
    seed: u64,
    t_ns: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    offset: &Bound<'py, PyAny>,
    size: &Bound<'py, PyAny>,
    changes: Vec<(usize, u64, String)>,
) -> PyResult<Bound<'py, PyDict>> {
    let profile = read_profile(json)?;
    let t_ns: Vec<u64> = array(py, "t_ns", t_ns)?;
    let op: Vec<u8> = array(py, "op", op)?;
    let offset: Vec<u64> = array(py, "offset", offset)?;
    let size: Vec<u64> = array(py, "size", size)?;
    if [op.len(), offset.len(), size.len()]
        .iter()
        .any(|n| *n != t_ns.len())
    {
        return Err(PyValueError::new_err(
            "t_ns, op, offset and size differ in length",
        ));
    }
    if changes.windows(2).any(|pair| pair[0].0 > pair[1].0) {
        return Err(PyValueError::new_err("changes are not in their order"));
    }
    let changes = changes
        .into_iter()
        .map(|(at, when_ns, text)| Ok((at, when_ns, read_patch(&text)?)))
        .collect::<PyResult<Vec<_>>>()?;
    let requests = (0..op.len())
        .map(|i| {
            Ok(Request {
                op: Op::try_from(op[i])?,
                offset: offset[i],
                size: size[i],
            })
        })
        .collect::<Result<Vec<_>, String>>()
        .map_err(PyValueError::new_err)?;
    let station = Station::new(&profile, seed).map_err(|e| PyValueError::new_err(e.message))?;
    let all = py
        .detach(|| serve(station, &t_ns, &requests, &changes))
        .map_err(PyValueError::new_err)?;
    let answer = PyDict::new(py);
    let column = |name: &str, value: fn(&Served) -> u64| {
        let bytes: Vec<u8> = all.iter().flat_map(|s| value(s).to_ne_bytes()).collect();
        answer.set_item(name, PyBytes::new(py, &bytes))
    };
    column("start_ns", |s| s.start_ns)?;
    column("due_ns", |s| s.due_ns)?;
    column("service_ns", |s| s.service_ns)?;
    column("wait_ns", |s| s.wait_ns)?;
    column("visit", |s| u64::from(s.visit))?;
    let sequential: Vec<u8> = all.iter().map(|s| u8::from(s.sequential)).collect();
    answer.set_item("sequential", PyBytes::new(py, &sequential))?;
    Ok(answer)
}

/// Simulate a closed loop of clients over one station in virtual time; specification and result are JSON.
#[pyfunction]
fn simulate_closed(py: Python<'_>, spec_json: &str) -> PyResult<String> {
    py.detach(|| penstock_queuenet::simulate_json(spec_json))
        .map_err(PyValueError::new_err)
}

/// Add the functions of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(profile_check, module)?)?;
    module.add_function(wrap_pyfunction!(patch_check, module)?)?;
    module.add_function(wrap_pyfunction!(profile_scaled, module)?)?;
    module.add_function(wrap_pyfunction!(profile_moments, module)?)?;
    module.add_function(wrap_pyfunction!(profile_quantiles, module)?)?;
    module.add_function(wrap_pyfunction!(station_serve, module)?)?;
    module.add_function(wrap_pyfunction!(simulate_closed, module)?)?;
    Ok(())
}
