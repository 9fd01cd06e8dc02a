//! Closed loop: a fixed number of clients, each of which waits for its own operations.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use penstock_station::{file_base, mix64, Op, Patch, Request, Station, StorageProfile};
use serde::{Deserialize, Serialize};

use crate::flight::Flight;
use crate::pattern::{Operations, Pattern};
use crate::quantiles::Latencies;

/// Reason why a simulation cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct SimulationError(pub String);

/// A change to the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceChange {
    /// Time of the change, nanoseconds.
    pub t_ns: u64,
    /// The change.
    pub patch: Patch,
}

fn one() -> u32 {
    1
}

/// A thread, or several equal ones. Each has its own file unless `shared_file` is set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Number of equal clients.
    #[serde(default = "one")]
    pub count: u32,
    /// Access pattern of each client.
    pub pattern: Pattern,
    /// Operations in flight per client.
    #[serde(default = "one")]
    pub iodepth: u32,
    /// Think time after each completion, nanoseconds.
    #[serde(default)]
    pub think_ns: f64,
    /// Think time per byte of the next operation, nanoseconds.
    #[serde(default)]
    pub think_ns_per_byte: f64,
    /// Device offset of the first client's file; the files of the other clients follow it. Without it the files also
    /// follow each other, but on a disk with an arm they are spread over the disk, like those of an emulated disk.
    #[serde(default)]
    pub device_offset_bytes: Option<u64>,
    /// All clients of this entry use one file.
    #[serde(default)]
    pub shared_file: bool,
}

/// Specification of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClosedLoop {
    /// The device.
    pub profile: StorageProfile,
    /// Seed of the random draws of device and workload.
    #[serde(default)]
    pub seed: u64,
    /// Clients.
    pub clients: Vec<Client>,
    /// Time after which no operation begins. If absent, the simulation runs until all operations are complete.
    #[serde(default)]
    pub duration_s: Option<f64>,
    /// Number of operations of each client. If absent, the simulation runs for the duration.
    #[serde(default)]
    pub operations: Option<u64>,
    /// Largest request to the device; larger operations are split.
    #[serde(default)]
    pub max_request_bytes: Option<u64>,
    /// Probabilities of the quantiles to report.
    #[serde(default)]
    pub quantiles: Vec<f64>,
    /// Changes to the device, in order of time.
    #[serde(default)]
    pub changes: Vec<DeviceChange>,
}

/// Results of one direction (read, write, flush).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionResult {
    /// Operations completed.
    pub operations: u64,
    /// Bytes of the completed operations.
    pub bytes: u64,
    /// Operations per second, over the total time.
    pub iops: f64,
    /// Bytes per second, over the total time.
    pub rate_bps: f64,
    /// Mean latency in nanoseconds.
    pub latency_mean_ns: f64,
    /// Latency quantiles (probability, nanoseconds).
    pub latency_ns: Vec<(f64, f64)>,
}

/// Results of a simulation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Virtual time until the last completion, seconds.
    pub elapsed_s: f64,
    /// Reads.
    pub read: DirectionResult,
    /// Writes.
    pub write: DirectionResult,
    /// Flushes.
    pub flush: DirectionResult,
    /// Utilisation of the servers: total service time divided by number of servers and elapsed time.
    pub utilisation: f64,
    /// Requests that reached the device.
    pub device_requests: u64,
}

struct Thread<'p> {
    operations: Operations<'p>,
    client: &'p Client,
    base: u64,
    left: u64,
    free_ns: u64,
}

/// Simulate the clients on the station until the duration is over or the operations are used up.
///
/// # Errors
/// A profile or client is invalid, or an endless pattern has neither duration nor number of operations.
pub fn simulate(spec: &ClosedLoop) -> Result<Outcome, SimulationError> {
    let bad = |message: String| SimulationError(message);
    let mut station = Station::new(&spec.profile, spec.seed).map_err(|e| bad(e.message))?;
    let end_ns = match spec.duration_s {
        Some(s) if !(s.is_finite() && s > 0.0) => {
            return Err(bad(format!("duration_s {s}; above 0 is expected")))
        }
        Some(s) => (s * 1e9) as u64,
        None => u64::MAX,
    };
    if spec.clients.is_empty() {
        return Err(bad("clients is empty; at least one is expected".into()));
    }
    let mut threads = Vec::new();
    let mut next_base = 0u64;
    for (kind, client) in spec.clients.iter().enumerate() {
        client
            .pattern
            .validate()
            .map_err(|e| bad(format!("clients[{kind}]: {e}")))?;
        let think = client.think_ns.min(client.think_ns_per_byte);
        if !(think >= 0.0 && client.think_ns.is_finite() && client.think_ns_per_byte.is_finite()) {
            return Err(bad(format!(
                "clients[{kind}]: think time {think}; at least 0 is expected"
            )));
        }
        if client.iodepth == 0 || client.count == 0 {
            return Err(bad(format!(
                "clients[{kind}]: count and iodepth of at least 1 are expected"
            )));
        }
        let explicit = matches!(client.pattern, Pattern::Explicit { .. });
        if !explicit && spec.duration_s.is_none() && spec.operations.is_none() {
            return Err(bad("neither duration_s nor operations is given".into()));
        }
        let extent = match &client.pattern {
            Pattern::Sequential { file_bytes, .. } | Pattern::Random { file_bytes, .. } => {
                *file_bytes
            }
            Pattern::Explicit { .. } => 0,
        };
        let scattered = spec.profile.seek.is_some() && client.device_offset_bytes.is_none();
        let begin = client.device_offset_bytes.unwrap_or(next_base);
        let first = threads.len() as u64;
        let mut files = 0;
        for _ in 0..client.count {
            let file = if client.shared_file { 0 } else { files };
            files = file + 1;
            threads.push(Thread {
                operations: Operations::new(&client.pattern, spec.seed, threads.len() as u64),
                client,
                base: if scattered {
                    file_base(mix64(first + file + 1))
                } else {
                    begin + file * extent
                },
                left: spec.operations.unwrap_or(u64::MAX),
                free_ns: 0,
            });
        }
        next_base = next_base.max(begin + files * extent);
    }
    if spec.changes.windows(2).any(|two| two[0].t_ns > two[1].t_ns) {
        return Err(bad("changes are not in the order of their times".into()));
    }
    if !spec.changes.is_empty() {
        station.remember();
    }
    run(&mut station, &mut threads, spec, end_ns)
}

/// Time, order and thread of the moment when a slot for an operation becomes free.
type Event = Reverse<(u64, u64, u32)>;

fn run(
    device: &mut Station,
    threads: &mut [Thread],
    spec: &ClosedLoop,
    end_ns: u64,
) -> Result<Outcome, SimulationError> {
    let piece = spec.max_request_bytes.unwrap_or(u64::MAX).max(1);
    let mut events: BinaryHeap<Event> = BinaryHeap::new();
    let mut order = 0u64;
    for (i, thread) in threads.iter().enumerate() {
        for _ in 0..thread.client.iodepth {
            events.push(Reverse((0, order, i as u32)));
            order += 1;
        }
    }
    let slots = order;
    // Issue times are separate from completions: a thread of depth d thinks once per operation, one at a time.
    let mut pending: BinaryHeap<Reverse<(u64, u64, u32, crate::pattern::Operation)>> =
        BinaryHeap::new();
    let mut latencies: [Latencies; 3] = Default::default();
    let mut results: [DirectionResult; 3] = Default::default();
    let (mut busy_ns, mut device_requests, mut last_ns) = (0.0, 0u64, 0u64);
    // If the device changes, count a completion only when it happens, because its time may still move.
    let mut flight = (!spec.changes.is_empty()).then(Flight::default);
    let mut changes = spec.changes.iter().peekable();
    loop {
        let (complete_first, next_ns) = match (events.peek(), pending.peek()) {
            (None, None) => break,
            (Some(Reverse(done)), Some(Reverse(issue))) => (done.0 <= issue.0, done.0.min(issue.0)),
            (Some(Reverse(done)), None) => (true, done.0),
            (None, Some(Reverse(issue))) => (false, issue.0),
        };
        if let Some(change) = changes.next_if(|change| change.t_ns <= next_ns) {
            let moved = device
                .change(change.t_ns, &change.patch)
                .map_err(|error| SimulationError(error.message))?;
            for later in flight.iter_mut().flat_map(|flight| flight.moved(&moved)) {
                events.push(Reverse(later));
            }
            continue;
        }
        if complete_first {
            let Some(Reverse((t_ns, number, index))) = events.pop() else {
                break;
            };
            if let (Some(flight), true) = (&mut flight, number >= slots) {
                let Some((op, latency_ns)) = flight.complete(number, t_ns) else {
                    continue;
                };
                latencies[op as usize].add(latency_ns);
                last_ns = last_ns.max(t_ns);
            }
            let thread = &mut threads[index as usize];
            if thread.left == 0 {
                continue;
            }
            let Some(operation) = thread.operations.next() else {
                thread.left = 0;
                continue;
            };
            let client = thread.client;
            let think = client.think_ns + client.think_ns_per_byte * operation.size as f64;
            let issue_ns = t_ns.max(thread.free_ns) + think.round() as u64 + operation.think_ns;
            if issue_ns >= end_ns {
                thread.left = 0;
                continue;
            }
            thread.left -= 1;
            thread.free_ns = issue_ns;
            pending.push(Reverse((issue_ns, order, index, operation)));
            order += 1;
        } else {
            let Some(Reverse((t_ns, number, index, operation))) = pending.pop() else {
                break;
            };
            let base = threads[index as usize].base;
            if let Some(flight) = &mut flight {
                flight.begin(number, operation.op, index, t_ns);
            }
            let mut due_ns = t_ns;
            let mut at = 0;
            loop {
                let size = piece.min(operation.size - at);
                let request = Request {
                    op: operation.op,
                    offset: base + operation.offset + at,
                    size,
                };
                let served = device.arrive(t_ns, request);
                if let Some(flight) = &mut flight {
                    flight.request(number, &served);
                }
                due_ns = due_ns.max(served.due_ns);
                busy_ns += served.service_ns as f64;
                device_requests += 1;
                at += size;
                if at >= operation.size {
                    break;
                }
            }
            let result = &mut results[operation.op as usize];
            result.operations += 1;
            result.bytes += if operation.op == Op::Flush {
                0
            } else {
                operation.size
            };
            if flight.is_none() {
                latencies[operation.op as usize].add(due_ns - t_ns);
                last_ns = last_ns.max(due_ns);
            }
            events.push(Reverse((due_ns, number, index)));
        }
    }
    let elapsed_s = last_ns as f64 / 1e9;
    for (result, latencies) in results.iter_mut().zip(&latencies) {
        if elapsed_s > 0.0 {
            result.iops = result.operations as f64 / elapsed_s;
            result.rate_bps = result.bytes as f64 / elapsed_s;
        }
        result.latency_mean_ns = latencies.mean_ns();
        result.latency_ns = spec
            .quantiles
            .iter()
            .map(|p| (*p, latencies.quantile_ns(*p)))
            .collect();
    }
    let [read, write, flush] = results;
    let servers = spec.profile.servers as f64;
    Ok(Outcome {
        elapsed_s,
        read,
        write,
        flush,
        utilisation: if last_ns > 0 {
            busy_ns / (last_ns as f64 * servers)
        } else {
            0.0
        },
        device_requests,
    })
}

/// Like [`simulate`], with specification and outcome as JSON.
///
/// # Errors
/// The text is not JSON or has an unknown field, or an error of [`simulate`].
pub fn simulate_json(spec_json: &str) -> Result<String, String> {
    let spec: ClosedLoop = serde_json::from_str(spec_json).map_err(|e| e.to_string())?;
    let outcome = simulate(&spec).map_err(|e| e.0)?;
    serde_json::to_string(&outcome).map_err(|e| e.to_string())
}
