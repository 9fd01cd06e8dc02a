//! Batches of runs of one workload: networks, seeds, and numbers of the networks that vary with the seed.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use serde::ser::{Error, SerializeMap};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Number, Value};

use super::build::simulate;
use super::outcome::Outcome;
use super::platform::Network;
use super::workload::Workload;
use super::SimulationError;

/// Networks as JSON, and the seeds of each.
///
/// A network can have `{"column": i}` in place of a number: the run with the j-th seed then uses `columns[i][j]`.
/// `fields` selects the fields of the outcomes to return; the default is all but `tasks`.
///
/// ```
/// use penstock_queuenet::network::{simulate_many, Batch, Workload};
/// let workload = Workload::from_json(r#"{"schema": "penstock/workload/1", "tasks": [
///     {"name": "t", "operations": [{"op": "compute", "seconds": 6}]}]}"#).unwrap();
/// let network = r#"{"schema": "penstock/network/1", "store": {"chunk_bytes": 1024, "allocation": "none"},
///     "hosts": [{"name": "h", "network": {"out_bps": 1, "in_bps": 1, "loopback_bps": 1},
///     "client": {"speed": {"column": 0}}, "storage": {"read": 0, "write": 0}}]}"#.to_owned();
/// let (speeds, fields) = ([vec![1.0, 2.0, 3.0]], ["makespan_s".to_owned()]);
/// let batch = Batch { networks: &[network], seeds: &[1, 2, 3], columns: &speeds, fields: Some(&fields) };
/// let outcomes = simulate_many(&workload, &batch, 1).unwrap();
/// assert_eq!(outcomes[0], [r#"{"makespan_s":6.0}"#, r#"{"makespan_s":3.0}"#, r#"{"makespan_s":2.0}"#]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub networks: &'a [String],
    pub seeds: &'a [u64],
    pub columns: &'a [Vec<f64>],
    pub fields: Option<&'a [String]>,
}

/// Simulate every network with every seed, with `threads` threads (0: one per core). Return the outcomes as JSON by
/// network, then by seed. They do not depend on the number of threads.
///
/// # Errors
/// The first rejected run, a column that does not exist or has another length, or an unknown field.
pub fn simulate_many(
    workload: &Workload,
    batch: &Batch,
    threads: usize,
) -> Result<Vec<Vec<String>>, SimulationError> {
    batch.check()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads };
    let parts = batch.parts(threads);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(parts.len()));
    let work = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some((network, seeds)) = parts.get(index) else {
            break;
        };
        let outcomes = batch.run(workload, *network, seeds.clone());
        if let Ok(mut results) = results.lock() {
            results.push((index, outcomes));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(parts.len()).max(1) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results
        .into_inner()
        .map_err(|_| SimulationError("a simulation thread ended early".into()))?;
    results.sort_by_key(|(index, _)| *index);
    let mut by_network = vec![Vec::with_capacity(batch.seeds.len()); batch.networks.len()];
    for ((network, _), (_, outcomes)) in parts.iter().zip(results) {
        by_network[*network].extend(outcomes?);
    }
    Ok(by_network)
}

impl Batch<'_> {
    fn check(&self) -> Result<(), SimulationError> {
        let seeds = self.seeds.len();
        if let Some(column) = self.columns.iter().find(|column| column.len() != seeds) {
            let length = column.len();
            return Err(SimulationError(format!(
                "a column of {length} numbers for {seeds} seeds"
            )));
        }
        Ok(())
    }

    /// Split the batch into parts of one thread each: a network and a range of seeds.
    fn parts(&self, threads: usize) -> Vec<(usize, Range<usize>)> {
        let each = threads.div_ceil(self.networks.len().max(1));
        let most = self.seeds.len().div_ceil(each).max(1);
        let starts = || (0..self.seeds.len()).step_by(most);
        (0..self.networks.len())
            .flat_map(|network| starts().map(move |start| (network, start)))
            .map(|(network, start)| (network, start..self.seeds.len().min(start + most)))
            .collect()
    }

    fn run(
        &self,
        workload: &Workload,
        network: usize,
        seeds: Range<usize>,
    ) -> Result<Vec<String>, SimulationError> {
        let text = &self.networks[network];
        let detail = self.fields.is_some_and(|f| f.iter().any(|f| f == "tasks"));
        let simulated = |network: &Network, seed: usize| {
            let outcome = simulate(workload, network, self.seeds[seed], detail)?;
            match self.fields {
                None => serde_json::to_string(&outcome),
                Some(fields) => serde_json::to_string(&Selected(&outcome, fields)),
            }
            .map_err(|e| SimulationError(e.to_string()))
        };
        if self.columns.is_empty() {
            let network = Network::from_json(text)?;
            return seeds.map(|seed| simulated(&network, seed)).collect();
        }
        let mut template = Template::from_json(text)?;
        seeds
            .map(|seed| simulated(&template.network(self.columns, seed)?, seed))
            .collect()
    }
}

/// A network with placeholders for numbers: JSON pointers to them, each with the number of its column.
struct Template {
    network: Value,
    open: Vec<(String, usize)>,
}

impl Template {
    fn from_json(text: &str) -> Result<Self, SimulationError> {
        let network = serde_json::from_str(text).map_err(|e| refused(&e))?;
        let mut open = Vec::new();
        find_columns(&network, String::new(), &mut open);
        Ok(Template { network, open })
    }

    /// The network for one row of the columns.
    fn network(&mut self, columns: &[Vec<f64>], row: usize) -> Result<Network, SimulationError> {
        for (pointer, column) in &self.open {
            let number = columns.get(*column).map(|numbers| number(numbers[row]));
            if let Some(place) = self.network.pointer_mut(pointer) {
                *place = number.unwrap_or(Value::Null);
            }
        }
        Network::deserialize(&self.network)
            .map_err(|e| refused(&e))?
            .checked()
    }
}

fn refused(error: &serde_json::Error) -> SimulationError {
    SimulationError(format!("network: {error}"))
}

/// Convert to an integer if exact, because counts and sizes must be integers.
fn number(value: f64) -> Value {
    let exact = value.fract() == 0.0 && (0.0..9e15).contains(&value);
    if exact {
        Value::from(value as u64)
    } else {
        Number::from_f64(value).map_or(Value::Null, Value::Number)
    }
}

fn find_columns(value: &Value, pointer: String, open: &mut Vec<(String, usize)>) {
    match value {
        Value::Object(map) => match map.get("column").and_then(Value::as_u64) {
            Some(column) if map.len() == 1 => open.push((pointer, column as usize)),
            _ => {
                for (key, inner) in map {
                    let step = key.replace('~', "~0").replace('/', "~1");
                    find_columns(inner, format!("{pointer}/{step}"), open);
                }
            }
        },
        Value::Array(list) => {
            for (i, inner) in list.iter().enumerate() {
                find_columns(inner, format!("{pointer}/{i}"), open);
            }
        }
        _ => {}
    }
}

/// Selected fields of an outcome.
struct Selected<'a>(&'a Outcome, &'a [String]);

impl Serialize for Selected<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Selected(outcome, fields) = self;
        let mut map = serializer.serialize_map(Some(fields.len()))?;
        for field in *fields {
            match field.as_str() {
                "makespan_s" => map.serialize_entry(field, &outcome.makespan_s),
                "events" => map.serialize_entry(field, &outcome.events),
                "requests" => map.serialize_entry(field, &outcome.requests),
                "error" => map.serialize_entry(field, &outcome.error),
                "bytes" => map.serialize_entry(field, &outcome.bytes),
                "stages" => map.serialize_entry(field, &outcome.stages),
                "stations" => map.serialize_entry(field, &outcome.stations),
                "hosts" => map.serialize_entry(field, &outcome.hosts),
                "operations" => map.serialize_entry(field, &outcome.operations),
                "tasks" => map.serialize_entry(field, &outcome.tasks),
                _ => Err(S::Error::custom(format!(
                    "an outcome has no field \"{field}\""
                ))),
            }?;
        }
        map.end()
    }
}
