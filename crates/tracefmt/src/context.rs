//! What an exporter must know besides the rows: names, clocks, losses.

use std::collections::HashMap;

use serde::Deserialize;

/// A readings of three clocks at one moment.
#[derive(Debug, Clone, Copy, Deserialize)]
#[allow(missing_docs)]
pub struct Clocks {
    pub monotonic_ns: i64,
    pub realtime_ns: i64,
    pub boottime_ns: i64,
}

/// A thread and the program it ran.
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

/// Everything beside the rows.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct Context {
    /// The command that was traced.
    #[serde(default)]
    pub command: String,
    /// Start of the recording.
    pub start_ns: i64,
    /// End of the last event.
    pub end_ns: i64,
    /// Clocks at the start, where they are known.
    #[serde(default)]
    pub clocks: Option<Clocks>,
    /// Threads that left events, in the order in which they are to be shown.
    #[serde(default)]
    pub threads: Vec<Thread>,
    /// Files that events are about.
    #[serde(default)]
    pub files: Vec<FileName>,
    /// Disks that requests are about.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Number, name and direction of each operation.
    #[serde(default)]
    pub operations: Vec<(i64, String, String)>,
    /// Events lost while tracing.
    #[serde(default)]
    pub lost: u64,
    /// Processors of the host.
    #[serde(default)]
    pub cpus: u32,
    /// Largest part of a file that may be split [bytes]; 0: not split.
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
