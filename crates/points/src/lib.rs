//! Points of series in the protocols that others speak, to columns.
//!
//! ```text
//!  line protocol, Graphite, pickle, Prometheus text, remote write ──▶ Reader ──▶ Batch (columns)
//!                                                                        │
//!                                        series known so far, newest time of each
//! ```
//!
//! Whatever arrives, a reader ends, takes memory in proportion to what it was given, and says of each line that it
//! left out why: [`Refusal`]. What it knows of series is bounded by [`MOST_SERIES`]. No sockets and no Python here.
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
