//! Discrete-event simulation in virtual time.
//!
//! - [`simulate`]: clients in a closed loop over one [`Station`](penstock_station::Station). Each client is a thread
//!   that issues an operation, waits for it (or for one of `iodepth` of them), thinks, and issues the next.
//! - [`Program`]: the replay of a traced program above a page cache and a station.
//! - [`network`]: workflows on hosts, links and shared stores.
//!
//! The disk server runs the same station code, so prediction and emulation always agree about the device.

mod cache;
mod closed;
mod flight;
pub mod network;
mod pattern;
mod quantiles;
mod replay;
mod replay_io;
mod replay_locks;
mod replay_run;

pub use closed::{
    simulate, simulate_json, Client, ClosedLoop, DeviceChange, DirectionResult, Outcome,
    SimulationError,
};
pub use pattern::{Operations, Pattern};
pub use replay::{About, Analysis, Calls, Kind, Log, Program, TracedFile};
pub use replay_run::{Bound, Replayed, Setting, ThreadResult};
