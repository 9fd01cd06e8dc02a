//! Outcome of a run, as serialized.

use serde::Serialize;

/// Reason why a run ended early.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// `full`, `missing`, `memory`, `horizon` or `stuck`.
    pub kind: &'static str,
    /// Message of one line.
    pub message: String,
}

/// Bytes by destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Bytes {
    /// Bytes between hosts, including control messages.
    pub network: u64,
    /// Bytes of control messages between hosts.
    pub control: u64,
    /// Bytes within hosts.
    pub loopback: u64,
    /// Bytes on the nodes at the end, including replicas.
    pub stored: u64,
    /// Bytes read by tasks.
    pub read: u64,
    /// Bytes written by tasks.
    pub written: u64,
    /// Bytes that tasks read from their own host.
    pub read_local: u64,
    /// Bytes that tasks wrote to their own host.
    pub written_local: u64,
}

/// Sums over the tasks of a stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Stage {
    pub name: String,
    pub tasks: u64,
    pub start_s: f64,
    pub end_s: f64,
    pub task_mean_s: f64,
    pub task_max_s: f64,
    pub launch_s: f64,
    pub compute_s: f64,
    pub read_s: f64,
    pub write_s: f64,
    pub manager_s: f64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub local_bytes: u64,
    pub remote_bytes: u64,
}

/// Row of a queue in the bottleneck table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StationRow {
    pub name: String,
    pub host: String,
    pub kind: &'static str,
    pub servers: u32,
    /// Messages at network queues, tasks at slots, requests at other queues.
    pub requests: u64,
    pub busy_s: f64,
    /// Busy time divided by number of servers and makespan.
    pub utilisation: f64,
    pub wait_mean_s: f64,
    pub wait_max_s: f64,
    /// Mean number of waiting requests, from the waiting times by Little's law.
    pub queue_mean: f64,
    pub queue_max: u64,
    /// Time of the critical path at this station, waiting and service.
    pub critical_s: f64,
}

/// Activity of a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostRow {
    pub name: String,
    /// Time spent computing: the mean over all slots.
    pub app_s: f64,
    /// Time with at least one busy storage server.
    pub storage_s: f64,
    /// Time with a busy in-queue or out-queue.
    pub network_s: f64,
    pub stored_bytes: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub tasks: u64,
}

/// Durations of one kind of operation, as the tasks observed them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct OperationRow {
    pub n: u64,
    pub mean_s: f64,
    pub p50_s: f64,
    pub p99_s: f64,
}

/// Durations by kind of operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Operations {
    pub open: OperationRow,
    pub read: OperationRow,
    pub write: OperationRow,
}

/// One operation of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Span {
    pub op: &'static str,
    pub file: Option<String>,
    pub start_s: f64,
    pub end_s: f64,
    pub bytes: u64,
    pub local_bytes: u64,
}

/// One task; only in full detail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskRow {
    pub name: String,
    pub stage: String,
    pub host: String,
    pub ready_s: f64,
    pub start_s: f64,
    pub end_s: f64,
    pub launch_s: f64,
    pub compute_s: f64,
    pub read_s: f64,
    pub write_s: f64,
    pub manager_s: f64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub local_bytes: u64,
    pub remote_bytes: u64,
    pub critical: bool,
    pub spans: Vec<Span>,
}

/// Outcome of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub makespan_s: f64,
    /// Completions of a service at a queue: a frame at an out- or in-queue (a train of merged frames counts once at
    /// each), a message at a loopback, a request at a component.
    pub events: u64,
    /// Number of chunk requests that storage served.
    pub requests: u64,
    pub error: Option<Failure>,
    pub bytes: Bytes,
    pub stages: Vec<Stage>,
    pub stations: Vec<StationRow>,
    pub hosts: Vec<HostRow>,
    pub operations: Operations,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskRow>>,
}
