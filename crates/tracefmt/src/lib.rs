//! Trace formats: what other programs read, and what they wrote.
//!
//! Exporters take a bundle's events as columns, batch by batch, and keep nothing of them; readers turn
//! another tool's trace into the tracer's own records. No Python and no Parquet here.
#![warn(missing_docs)]

pub mod blktrace;
pub mod dxt;
pub mod fio;
pub mod paraver;
pub mod perfetto;
pub mod tiles;
