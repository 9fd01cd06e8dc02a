//! Python bindings of the store simulator.

use penstock_queuenet::network::{self, Batch, Workload};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A workload, read and checked once, for simulation on any number of networks.
///
/// `workload_json` is `penstock/workload/1`. `placement_json` is the placement of its files, if available (file →
/// list of `offset_bytes`, `length_bytes`, `hosts`). Raises ValueError with a message of one line for invalid input.
#[pyclass(module = "penstock._native", frozen)]
struct NetworkWorkload {
    workload: Workload,
}

#[pymethods]
impl NetworkWorkload {
    #[new]
    #[pyo3(signature = (workload_json, placement_json = None))]
    fn new(py: Python<'_>, workload_json: &str, placement_json: Option<&str>) -> PyResult<Self> {
        py.detach(|| {
            let mut workload = Workload::from_json(workload_json)?;
            placement_json.map_or(Ok(()), |json| workload.place(json))?;
            Ok(NetworkWorkload { workload })
        })
        .map_err(|error: network::SimulationError| PyValueError::new_err(error.0))
    }

    /// Simulate one run on `penstock/network/1`. Return its outcome as JSON.
    ///
    /// `detail` is "summary", or "full" with rows of tasks.
    #[pyo3(signature = (network_json, seed, detail = "summary"))]
    fn simulate(
        &self,
        py: Python<'_>,
        network_json: &str,
        seed: u64,
        detail: &str,
    ) -> PyResult<String> {
        let detail = match detail {
            "summary" => false,
            "full" => true,
            other => {
                return Err(PyValueError::new_err(format!(
                    "detail \"{other}\"; \"summary\" or \"full\" is expected"
                )))
            }
        };
        py.detach(|| network::simulate_json(&self.workload, network_json, seed, detail))
            .map_err(|error| PyValueError::new_err(error.0))
    }

    /// Simulate every network with every seed. Return the outcomes as JSON by network, then by seed. They do not depend
    /// on the number of threads (0: one per core).
    ///
    /// The run with the j-th seed uses `columns[i][j]` for each `{"column": i}` of its network. `fields` selects fields
    /// of the outcomes; the default is all but `tasks`.
    #[pyo3(signature = (network_jsons, seeds, threads = 0, columns = Vec::new(), fields = None))]
    fn simulate_many(
        &self,
        py: Python<'_>,
        network_jsons: Vec<String>,
        seeds: Vec<u64>,
        threads: usize,
        columns: Vec<Vec<f64>>,
        fields: Option<Vec<String>>,
    ) -> PyResult<Vec<Vec<String>>> {
        let batch = Batch {
            networks: &network_jsons,
            seeds: &seeds,
            columns: &columns,
            fields: fields.as_deref(),
        };
        py.detach(|| network::simulate_many(&self.workload, &batch, threads))
            .map_err(|error| PyValueError::new_err(error.0))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NetworkWorkload>()
}
