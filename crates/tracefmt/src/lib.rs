//! Trace formats: exporters for other programs, and readers of traces from other tools.
//!
//! Exporters process a bundle's events as columns, in batches in order of time. They retain only what is still under
//! way. Readers convert another tool's trace to the tracer's own records ([`spool`]). The crate depends neither on
//! Python nor on Parquet.
#![warn(missing_docs)]

pub mod blktrace;
pub mod columns;
pub mod context;
pub mod dxt;
pub mod fio;
pub mod imported;
pub mod iolog;
pub mod json;
mod lines;
pub mod paraver;
pub mod perfetto;
mod protobuf;
pub mod spool;
pub mod tiles;

use std::io;

use columns::{Events, Requests};

/// Reason why a trace cannot be read: the position and the problem, for the user.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file itself cannot be read.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// The content is malformed.
    #[error("{0}")]
    Malformed(String),
}

/// Writer of one file format, called while events arrive.
pub trait Exporter: Send + Sync {
    /// Write the next events. They begin no earlier than those before.
    fn events(&mut self, events: &Events) -> io::Result<()>;
    /// Write the device requests that arrived up to the last event. Formats without device requests ignore them.
    fn requests(&mut self, _requests: &Requests) -> io::Result<()> {
        Ok(())
    }
    /// Write the remaining records and close the files. Return a summary of what was written.
    fn finish(&mut self) -> io::Result<serde_json::Value>;
}
