//! A distributed object store in virtual time: hosts with network queues, a manager, storage nodes, clients.
//!
//! ```text
//!   host A                                        host B
//!  ┌────────────────────────────┐               ┌────────────────────────────┐
//!  │ tasks ─▶ [client] ─┐       │               │      ┌─▶ [manager] ─┐      │
//!  │                    ▼       │    latency    │      │              ▼      │
//!  │  [loopback] ◀─▶ messages ─▶[out]══════════▶[in]─▶ messages      messages│
//!  │                    ▲       │  frames       │      │              ▲      │
//!  │        [storage] ◀─┘   [in]◀══════════════[out]◀──└─▶ [storage] ─┘      │
//!  └────────────────────────────┘               └────────────────────────────┘
//! ```
//!
//! Every queue is first come first served and unbounded (Costa 2014). A message to another host is split into frames.
//! The sender's out-queue serves each frame, the frame crosses the network with a latency, and the receiver's in-queue
//! serves it in order of arrival, so frames of several senders interleave. The request joins the queue of its component
//! with its last frame (Costa 2014). A message within a host passes the loopback in one piece (Costa 2014). The
//! protocol of open, read and write is that of Costa 2014; equations and names are those of `docs/model.md`.
//!
//! An *event* is one completion of a service at one queue. Statistics are streamed: memory depends on the number of
//! concurrent messages and of tasks, never on the number of events. One run is single-threaded and a pure function of
//! workload, network and seed; replications run in parallel.
//!
//! ```
//! use penstock_queuenet::network::{simulate, Network, Workload};
//! let workload = Workload::from_json(r#"{"schema": "penstock/workload/1", "tasks": [
//!     {"name": "w", "operations": [{"op": "write", "file": "f", "size_bytes": 1048576}]}]}"#).unwrap();
//! let link = r#""network": {"out_bps": 12.5e6, "in_bps": 12.5e6, "loopback_bps": 125e6}"#;
//! let network = Network::from_json(&format!(r#"{{"schema": "penstock/network/1", "hosts": [
//!     {{"name": "c", {link}, "client": {{}}}}, {{"name": "m", {link}, "manager": {{"service": 0.0005}}}},
//!     {{"name": "s", {link}, "storage": {{"read": 0.001, "write": 0.001}}}}],
//!     "store": {{"chunk_bytes": 1048576}}}}"#)).unwrap();
//! let outcome = simulate(&workload, &network, 1, false).unwrap();
//! // 10 control messages, two services of the manager, the chunk, its last frame, the storage
//! let (c, s, f, b) = (1024.0, 1048576.0, 65536.0, 12.5e6);
//! let expected = 10.0 * c / b + 2.0 * 0.0005 + s / b + f / b + 0.001;
//! assert!((outcome.makespan_s / expected - 1.0).abs() < 1e-9);
//! ```

mod batch;
mod build;
mod choices;
mod data;
mod engine;
mod fair;
mod files;
mod graph;
mod heap;
mod lru;
mod nodes;
mod number;
mod outcome;
mod placed;
mod platform;
mod schedule;
mod server;
mod shared;
mod store;
mod summary;
mod task;
mod time;
mod wire;
mod workload;

pub use batch::{simulate_many, Batch};
pub use build::{simulate, simulate_json};
pub use heap::EventHeap;
pub use lru::Lru;
pub use outcome::{
    Bytes, Failure, HostRow, OperationRow, Operations, Outcome, Span, Stage, StationRow, TaskRow,
};
pub use platform::Network;
pub use server::{Cover, Fifo, Links, Service, Tally, NONE};
pub use time::{Clock, Ticks, HORIZON_S};
pub use workload::Workload;

pub use crate::closed::SimulationError;
