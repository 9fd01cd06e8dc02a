//! A request between its arrival and its reply.

use crate::log::Record;
use crate::timer::Moved;

/// A request between its arrival and its reply.
#[derive(Debug)]
pub struct Ticket {
    /// When the reply is due (CLOCK_MONOTONIC).
    pub due_ns: u64,
    pub(crate) asked_ns: u64,
    pub(crate) id: u64,
    pub(crate) record: Record,
}

impl Ticket {
    /// Number of the request at its disk.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of earlier operations of this kind at this offset.
    pub fn visit(&self) -> u32 {
        self.record.visit
    }

    /// Record the error of `result`, if any, as that of the reply.
    pub fn fails<T>(&mut self, result: &std::io::Result<T>) {
        if let Err(error) = result {
            self.record.error = error.raw_os_error().unwrap_or(libc::EIO) as u8;
        }
    }

    /// Apply the new due time after a change of the disk while the request waited.
    pub fn is_moved(&mut self, moved: &Moved) {
        self.due_ns = moved.due_ns;
        self.asked_ns = moved.served.service_ns + moved.served.wait_ns;
        self.record.due_ns = moved.due_ns;
        self.record.service_ns = moved.served.service_ns;
        self.record.wait_ns = moved.served.wait_ns;
    }
}

/// Location of a request.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Number of the file in the log.
    pub file_id: u32,
    /// Device offset of the file's first byte.
    pub device_base: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Size of the request in bytes.
    pub size: u32,
    /// Process that sent the request.
    pub pid: u32,
}
