//! Context of an export besides the rows: names, clocks, losses.

use std::collections::HashMap;

use serde::Deserialize;

/// Readings of three clocks at one moment.
#[derive(Debug, Clone, Copy, Deserialize)]
#[allow(missing_docs)]
pub struct Clocks {
    pub monotonic_ns: i64,
    pub realtime_ns: i64,
    pub boottime_ns: i64,
}

/// A thread and its program.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs)]
pub struct Thread {
    pub pid: i64,
    pub tid: i64,
    #[serde(default)]
    pub name: String,
}

/// A file by its number in the bundle.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs)]
pub struct FileName {
    pub file_id: i64,
    pub path: String,
}

/// Context of the rows.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct Context {
    /// Traced command.
    #[serde(default)]
    pub command: String,
    /// Start of the recording.
    pub start_ns: i64,
    /// End of the last event.
    pub end_ns: i64,
    /// Clocks at the start, if they are known.
    #[serde(default)]
    pub clocks: Option<Clocks>,
    /// Threads with events, in display order.
    #[serde(default)]
    pub threads: Vec<Thread>,
    /// Files of the events.
    #[serde(default)]
    pub files: Vec<FileName>,
    /// Disks of the requests.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Number, name and direction of each operation.
    #[serde(default)]
    pub operations: Vec<(i64, String, String)>,
    /// Number of events lost while tracing.
    #[serde(default)]
    pub lost: u64,
    /// Number of processors of the host.
    #[serde(default)]
    pub cpus: u32,
    /// Maximum size of one part of a split file [bytes]; 0: not split.
    #[serde(default)]
    pub part_bytes: u64,
}

impl Context {
    /// Name and direction of each operation by its number.
    pub fn operation_names(&self) -> HashMap<i64, (String, String)> {
        self.operations
            .iter()
            .map(|(n, name, direction)| (*n, (name.clone(), direction.clone())))
            .collect()
    }

    /// Path of each file by its number.
    pub fn paths(&self) -> HashMap<i64, String> {
        self.files
            .iter()
            .map(|file| (file.file_id, file.path.clone()))
            .collect()
    }
}
