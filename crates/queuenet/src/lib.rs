//! Discrete-event simulation in virtual time.
//!
//! So far one platform: clients in a closed loop over one [`Station`](penstock_station::Station). Each client is a
//! thread that issues an operation, waits for it (or for one of `iodepth` of them), thinks, and issues the next. The
//! station is the very code that the disk server runs, so that what is predicted and what is emulated cannot
//! disagree about the device. Hosts, links and shared stores join here later: [`Device`] is the seam.

mod closed;
mod pattern;
mod quantiles;

pub use closed::{
    simulate, simulate_json, Client, ClosedLoop, Device, DirectionResult, Outcome, SimulationError,
};
pub use pattern::{Operations, Pattern};
