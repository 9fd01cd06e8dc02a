//! Spool file of the samples.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::Error;

/// Bytes of one record: time (i64, ns, CLOCK_MONOTONIC), series (u64), value (f64), little-endian.
pub const RECORD_BYTES: usize = 24;
const FLUSH_BYTES: usize = 64 * 1024;

/// A value of a series at a time.
pub type Record = [u8; RECORD_BYTES];

/// Description of a series, written once to `SPOOL.series`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Series {
    /// Number of the series in the records.
    pub series: u64,
    /// Source: a row of [`crate::sources`], or `sampler`.
    pub source: &'static str,
    /// Entity: a processor, a device, an interface, a disk, a process.
    pub entity: String,
    /// Quantity that is counted or measured.
    pub metric: String,
    /// Its unit.
    pub unit: &'static str,
    /// True if values only increase, so that differences are of interest.
    pub cumulative: bool,
}

/// Destination of the values that sources read.
pub trait Sink {
    /// Register a series and return its number.
    fn series(
        &mut self,
        source: &'static str,
        entity: &str,
        metric: &str,
        unit: &'static str,
        cumulative: bool,
    ) -> u64;
    /// Add a value to this sample.
    fn put(&mut self, series: u64, value: f64) {
        self.put_at(self.time_ns(), series, value);
    }
    /// Add a value to an earlier sample.
    fn put_at(&mut self, time_ns: i64, series: u64, value: f64);
    /// Time of this sample, ns.
    fn time_ns(&self) -> i64;
    /// True if this sample is complete. Other samples may omit values that did not change.
    fn complete(&self) -> bool;
}

/// Writer of the spool.
#[derive(Debug)]
pub struct Spool {
    records: File,
    names: File,
    path: PathBuf,
    pending: Vec<u8>,
    next: u64,
    time_ns: i64,
    complete: bool,
    written_bytes: u64,
}

/// Path of the file that describes the series.
pub fn series_path(spool: &Path) -> PathBuf {
    let mut name = spool.as_os_str().to_owned();
    name.push(".series");
    PathBuf::from(name)
}

impl Spool {
    /// Create both files; existing ones are truncated.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let names = series_path(path);
        Ok(Self {
            records: File::create(path).map_err(Error::file(path))?,
            names: File::create(&names).map_err(Error::file(&names))?,
            path: path.to_path_buf(),
            pending: Vec::with_capacity(2 * FLUSH_BYTES),
            next: 0,
            time_ns: 0,
            complete: true,
            written_bytes: 0,
        })
    }

    /// Begin a sample. It sets the time of the values that follow. Complete samples contain every value.
    pub fn begin(&mut self, time_ns: i64, complete: bool) {
        (self.time_ns, self.complete) = (time_ns, complete);
    }

    /// True if enough is pending to be worth a write.
    pub fn is_full(&self) -> bool {
        self.pending.len() >= FLUSH_BYTES
    }

    /// Write the pending records.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.records
            .write_all(&self.pending)
            .map_err(Error::file(&self.path))?;
        self.written_bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }
}

impl Sink for Spool {
    fn series(
        &mut self,
        source: &'static str,
        entity: &str,
        metric: &str,
        unit: &'static str,
        cumulative: bool,
    ) -> u64 {
        let series = self.next;
        self.next += 1;
        let named = Series {
            series,
            source,
            entity: entity.to_owned(),
            metric: metric.to_owned(),
            unit,
            cumulative,
        };
        // without the description the records cannot be read, which the reader reports
        if let Ok(mut line) = serde_json::to_vec(&named) {
            line.push(b'\n');
            let _ = self.names.write_all(&line);
        }
        series
    }

    fn put_at(&mut self, time_ns: i64, series: u64, value: f64) {
        self.pending.extend_from_slice(&time_ns.to_le_bytes());
        self.pending.extend_from_slice(&series.to_le_bytes());
        self.pending.extend_from_slice(&value.to_le_bytes());
    }

    fn time_ns(&self) -> i64 {
        self.time_ns
    }

    fn complete(&self) -> bool {
        self.complete
    }
}
