//! Sampling of what a run uses: processors, memory, disks and how long their requests take, network, pressure, its
//! control group, its processes and its emulated disks, and the numbers that programs leave or print.
//!
//! ```text
//!  /proc, /sys, cgroup, statistics pages ──▶ sources ──▶ Recorder (one thread) ──▶ spool file
//!                                                            ▲
//!                                     control socket: start, stop
//! ```
//!
//! Sample `k` is due at `t0 + k * interval`, so the clock does not drift. How late each one was is stored as a
//! series of its own; a deadline that was missed is counted and never filled in afterwards.
//!
//! In the first ten seconds further samples lie between the deadlines, at most 100 ms apart, so that a run of a
//! second can be drawn. They are a gift: one that is not made is not missed.
//!
//! A sample may leave out what is known not to have changed; one a second, or each deadline of a longer interval,
//! has everything, and how long each source took.
//!
//! The spool is a file of [`spool::Record`]s of 24 bytes; which series a number stands for is in the file
//! beside it, `SPOOL.series`, one JSON object per line. A torn tail is dropped by the reader.

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
