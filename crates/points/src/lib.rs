//! Readers for points of series in the protocols of other programs. The result is columns.
//!
//! ```text
//!  line protocol, Graphite, pickle, Prometheus text, remote write ──▶ Reader ──▶ Batch (columns)
//!                                                                        │
//!                                        series known so far, newest time of each
//! ```
//!
//! A reader terminates on any input and uses memory in proportion to its input. It reports the reason for each refused
//! line: [`Refusal`]. The number of series is limited by [`MOST_SERIES`]. The crate has no sockets and does not depend
//! on Python.
#![warn(missing_docs)]

pub mod columns;
pub mod exposition;
pub mod graphite;
pub mod line_protocol;
mod number;
pub mod pickle;
pub mod remote_write;
pub mod remote_write2;
mod wire;

pub use columns::{Batch, Counted, Reader, Refusal, Value, MOST_SERIES};
