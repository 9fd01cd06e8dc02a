//! Discrete-event simulation in virtual time.
//!
//! So far one platform: clients in a closed loop over one [`Station`](penstock_station::Station). Each client is a
//! thread that issues an operation, waits for it (or for one of `iodepth` of them), thinks, and issues the next. The
//! station is the very code that the disk server runs, so that what is predicted and what is emulated cannot
//! disagree about the device. Hosts, links and shared stores join here later: [`Device`] is the seam.

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
    simulate, simulate_json, Client, ClosedLoop, Device, DeviceChange, DirectionResult, Outcome,
    SimulationError,
};
pub use pattern::{Operations, Pattern};
pub use replay::{About, Calls, Found, Kind, Log, Program, TracedFile};
pub use replay_run::{Bound, Replayed, Setting, ThreadResult};
