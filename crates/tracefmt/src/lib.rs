//! Trace formats: what other programs read, and what they wrote.
//!
//! Exporters take a bundle's events as columns, batch by batch in order of time, and keep nothing of them
//! but what is still under way; readers turn another tool's trace into the tracer's own records
//! ([`spool`]). No Python and no Parquet here.
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

/// Why a trace could not be read: the place and what is wrong there, for the user.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file itself cannot be read.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// It is not what it should be.
    #[error("{0}")]
    Malformed(String),
}

/// One file format, written while events arrive.
pub trait Exporter: Send + Sync {
    /// Takes the next events, which begin no earlier than those before.
    fn events(&mut self, events: &Events) -> io::Result<()>;
    /// Takes the device requests that arrived up to the last event; formats without them ignore it.
    fn requests(&mut self, _requests: &Requests) -> io::Result<()> {
        Ok(())
    }
    /// Writes what is still held and closes the files; gives what was written.
    fn finish(&mut self) -> io::Result<serde_json::Value>;
}
