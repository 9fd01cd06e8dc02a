//! Names and counts that a reader of another tool's trace returns besides the events.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::ReadError;

/// Number of the operation `device_read` of the tracer (see `penstock_probe::layout`).
pub const DEVICE_READ: u8 = 31;
/// Number of `device_write`.
pub const DEVICE_WRITE: u8 = 63;
/// Number of `device_flush`.
pub const DEVICE_FLUSH: u8 = 95;

/// A file (or device) named by the trace.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct File {
    pub file_id: u32,
    pub path: String,
    pub dev_major: u32,
    pub dev_minor: u32,
    /// End of the last byte accessed. Such traces do not include the file size.
    pub size_bytes: i64,
}

/// A thread named by the trace.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    pub first_ns: u64,
}

/// Names and counts of an imported trace.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Imported {
    /// Files in the order of their numbers, from 1.
    pub files: Vec<File>,
    /// Threads in the order of their first event.
    pub threads: Vec<Thread>,
    /// Records read.
    pub seen: u64,
    /// Number of records that became events.
    pub kept: u64,
    /// Number of records other than reads, writes and flushes.
    pub filtered: u64,
    /// Number of lost events that the source reports.
    pub lost: u64,
    /// Description of the source, from the trace.
    pub about: Vec<String>,
    #[serde(skip)]
    numbers: HashMap<String, u32>,
    #[serde(skip)]
    rows: HashMap<u32, usize>,
}

impl Imported {
    /// Number of the file with this name, from 1.
    pub fn file(&mut self, path: &str) -> u32 {
        if let Some(&number) = self.numbers.get(path) {
            return number;
        }
        let file_id = self.files.len() as u32 + 1;
        self.numbers.insert(path.to_owned(), file_id);
        self.files.push(File {
            file_id,
            path: path.to_owned(),
            dev_major: 0,
            dev_minor: 0,
            size_bytes: 0,
        });
        file_id
    }

    /// Record that bytes up to `end` of the file were accessed.
    pub fn reaches(&mut self, file_id: u32, end: i64) {
        if let Some(file) = self.files.get_mut(file_id as usize - 1) {
            file.size_bytes = file.size_bytes.max(end);
        }
    }

    /// Add a thread at its first event.
    pub fn thread(&mut self, pid: u32, tid: u32, name: &str, t_ns: u64) {
        if !self.rows.contains_key(&tid) {
            self.rows.insert(tid, self.threads.len());
            self.threads.push(Thread {
                pid,
                tid,
                name: name.to_owned(),
                first_ns: t_ns,
            });
        }
    }

    /// Set the name of a known thread.
    pub fn rename(&mut self, tid: u32, name: &str) {
        if let Some(&at) = self.rows.get(&tid) {
            name.clone_into(&mut self.threads[at].name);
        }
    }
}

/// `path:line: found …; expected …`.
pub fn malformed(path: &Path, line: u64, found: impl Display, expected: &str) -> ReadError {
    ReadError::Malformed(format!(
        "{}:{line}: found {found}; expected {expected}",
        path.display()
    ))
}

/// Reason from the system, with the file's name.
pub fn unreadable(path: &Path, error: io::Error) -> ReadError {
    ReadError::Io(path.display().to_string(), error)
}

/// Excerpt of a bad line, short and on one line.
pub fn shown(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    format!("{cut:?}")
}
