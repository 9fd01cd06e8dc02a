//! Sampler of the resources that a run uses: processors, memory, disks, latency of block requests, network,
//! pressure, control group, processes and emulated disks. It also samples numbers that programs write or print.
//!
//! ```text
//!  /proc, /sys, cgroup, statistics pages ──▶ sources ──▶ Recorder (one thread) ──▶ spool file
//!                                                            ▲
//!                                     control socket: start, stop
//! ```
//!
//! Sample `k` is due at `t0 + k * interval`, so the schedule does not drift. The lateness of each sample is stored as
//! a series. A missed deadline is counted and never filled in afterwards.
//!
//! In the first ten seconds the sampler takes additional samples between the deadlines, at most 100 ms apart, so that
//! a run of one second can be plotted. An additional sample that is not taken does not count as missed.
//!
//! A sample may omit values that are certain not to have changed. One sample per second is complete, or one at each
//! deadline if the interval is longer. A complete sample also has the time that each source took.
//!
//! The spool is a file of [`spool::Record`]s of 24 bytes. The file `SPOOL.series` describes the series by number, one
//! JSON object per line. The reader drops a torn tail.

mod account;
pub mod clock;
pub mod config;
pub mod error;
pub mod file;
mod number_text;
pub mod recorder;
pub mod schedule;
pub mod server;
pub mod sources;
pub mod spool;

pub use config::{SamplerConfig, StartRequest};
pub use error::Error;
pub use recorder::{Receipt, Recorder};
pub use server::serve;
