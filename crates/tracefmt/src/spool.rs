//! The tracer's spool: one record of 48 bytes per event, in the layout of `penstock_probe::layout::Event`.
//!
//! Readers of other tools' traces write these records. Later stages then process such a trace as one of the tracer.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Size of a record in bytes.
pub const RECORD_BYTES: usize = 48;

/// One record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Record {
    pub t_ns: u64,
    pub offset: i64,
    pub latency_ns: u64,
    pub size: u32,
    /// Bytes transferred, or -errno.
    pub done: i32,
    pub file_id: u32,
    pub tid: u32,
    pub pid: u32,
    pub op: u8,
    pub flags: u8,
}

impl Record {
    /// Encode the record. The last two bytes are the control group's index, 0.
    pub fn bytes(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[..8].copy_from_slice(&self.t_ns.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..24].copy_from_slice(&self.latency_ns.to_le_bytes());
        out[24..28].copy_from_slice(&self.size.to_le_bytes());
        out[28..32].copy_from_slice(&self.done.to_le_bytes());
        out[32..36].copy_from_slice(&self.file_id.to_le_bytes());
        out[36..40].copy_from_slice(&self.tid.to_le_bytes());
        out[40..44].copy_from_slice(&self.pid.to_le_bytes());
        out[44] = self.op;
        out[45] = self.flags;
        out
    }
}

/// Writer of a spool.
pub struct Spool {
    out: BufWriter<File>,
    /// Number of records so far.
    pub records: u64,
}

impl Spool {
    /// Create the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Spool {
            out: BufWriter::with_capacity(1 << 20, File::create(path)?),
            records: 0,
        })
    }

    /// Append a record.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        self.records += 1;
        self.out.write_all(&record.bytes())
    }

    /// Write the buffered records.
    pub fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
