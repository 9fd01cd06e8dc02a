//! Request log: one record per finished request, appended to a file.
//!
//! A record has 80 bytes, little-endian, with these fields in order:
//!
//! - unsigned, 64 bits: `t_ns` (arrival), `due_ns`, `done_ns`, `service_ns` (sampled), `wait_ns` (queueing),
//!   `offset_bytes` (in the file), `device_offset_bytes`
//! - unsigned, 32 bits: `size_bytes`, `file_id`, `visit`, `compensation_ns`, `pid`
//! - 8 bits: `op` (0 read, 1 write, 2 flush), `sequential`, `error` (errno of the reply, 0 for none), padding
//!
//! Times are CLOCK_MONOTONIC. `due_ns` counts from the compensated arrival `t_ns - compensation_ns`. The file
//! `<log>.files` has one line `{"file_id": N, "path": "…"}` per file in the log.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use penstock_daemon::private;

/// Size of a record.
pub const RECORD_BYTES: usize = 80;

/// A finished request.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Arrival at the server.
    pub t_ns: u64,
    /// Due time of the reply.
    pub due_ns: u64,
    /// Time at which the reply was sent.
    pub done_ns: u64,
    /// Sampled service time.
    pub service_ns: u64,
    /// Time in the station's queue.
    pub wait_ns: u64,
    /// Offset in the file.
    pub offset_bytes: u64,
    /// Offset on the device.
    pub device_offset_bytes: u64,
    /// Size of the request.
    pub size_bytes: u32,
    /// Number of the file; the side file has its path.
    pub file_id: u32,
    /// Number of earlier requests at this offset.
    pub visit: u32,
    /// Path overhead, subtracted from the arrival.
    pub compensation_ns: u32,
    /// Process that sent the request; 0 for write-back and readahead.
    pub pid: u32,
    /// 0 read, 1 write, 2 flush.
    pub op: u8,
    /// True if the station treated the request as sequential to the last one.
    pub sequential: bool,
    /// errno of the reply, 0 for none.
    pub error: u8,
}

impl Record {
    /// Bytes of the record in the log.
    pub fn bytes(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        let wide = [
            self.t_ns,
            self.due_ns,
            self.done_ns,
            self.service_ns,
            self.wait_ns,
            self.offset_bytes,
            self.device_offset_bytes,
        ];
        for (index, value) in wide.into_iter().enumerate() {
            out[8 * index..8 * index + 8].copy_from_slice(&value.to_le_bytes());
        }
        let narrow = [
            self.size_bytes,
            self.file_id,
            self.visit,
            self.compensation_ns,
            self.pid,
        ];
        for (index, value) in narrow.into_iter().enumerate() {
            out[56 + 4 * index..60 + 4 * index].copy_from_slice(&value.to_le_bytes());
        }
        out[76] = self.op;
        out[77] = u8::from(self.sequential);
        out[78] = self.error;
        out
    }
}

/// Open log.
#[derive(Debug)]
pub struct Log {
    file: File,
    files: File,
    named: HashSet<u32>,
}

/// Path of the log's side file.
pub fn files_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".files");
    name.into()
}

impl Log {
    /// Create the log at `path` and its side file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Log {
            file: private::file(path)?,
            files: private::file(&files_path(path))?,
            named: HashSet::new(),
        })
    }

    /// Append records; `path_of` returns the path of a file.
    pub fn append(
        &mut self,
        records: &[Record],
        path_of: impl Fn(u32) -> String,
    ) -> io::Result<()> {
        let mut out = Vec::with_capacity(records.len() * RECORD_BYTES);
        let mut names = String::new();
        for record in records {
            if self.named.insert(record.file_id) {
                let line =
                    serde_json::json!({"file_id": record.file_id, "path": path_of(record.file_id)});
                names.push_str(&line.to_string());
                names.push('\n');
            }
            out.extend_from_slice(&record.bytes());
        }
        self.files.write_all(names.as_bytes())?;
        self.file.write_all(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_fields_have_the_documented_offsets() {
        let record = Record {
            t_ns: 1,
            due_ns: 2,
            done_ns: 3,
            service_ns: 4,
            wait_ns: 5,
            offset_bytes: 6,
            device_offset_bytes: 7,
            size_bytes: 8,
            file_id: 9,
            visit: 10,
            compensation_ns: 11,
            pid: 12,
            op: 2,
            sequential: true,
            error: 5,
        };
        let bytes = record.bytes();
        assert_eq!(
            (bytes[0], bytes[48], bytes[56], bytes[72], bytes[76], bytes[77]),
            (1, 7, 8, 12, 2, 1)
        );
        assert_eq!((bytes[78], bytes[79]), (5, 0));
    }
}
