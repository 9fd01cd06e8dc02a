//! Records of the mount, and their controller.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::chunking::Chunking;
use crate::record::{Controller, Record};

/// Maximum number of records in memory.
const STORED: usize = 1000;

/// Sums over all versions since the mount.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Totals {
    /// Number of committed versions.
    pub versions: u64,
    /// Bytes that were divided into chunks.
    pub bytes: u64,
    /// Bytes of chunks that were already stored.
    pub similar_bytes: u64,
    /// Time for boundaries and hashes [s].
    pub hash_s: f64,
    /// Time for writing chunks and maps [s].
    pub send_s: f64,
}

#[derive(Default)]
struct Stored {
    last: VecDeque<Record>,
    totals: Totals,
}

/// Records of a mount.
pub(crate) struct Records {
    stored: Mutex<Stored>,
    controller: Option<Box<dyn Controller>>,
}

impl Records {
    pub(crate) fn new(controller: Option<Box<dyn Controller>>) -> Self {
        Records {
            stored: Mutex::default(),
            controller,
        }
    }

    pub(crate) fn has_controller(&self) -> bool {
        self.controller.is_some()
    }

    /// Configuration that the controller chooses for a new version.
    pub(crate) fn choose(&self, path: &str, family: &str) -> Option<Chunking> {
        let chosen = self.controller.as_ref()?.choose(path, family)?;
        match chosen.parse() {
            Ok(chunking) => Some(chunking),
            Err(error) => {
                eprintln!("penstock-dedup: controller: {error}");
                None
            }
        }
    }

    pub(crate) fn add(&self, record: Record) {
        if let Some(controller) = &self.controller {
            controller.record(&record);
        }
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = &mut stored.totals;
        totals.versions += 1;
        totals.bytes += record.bytes;
        totals.similar_bytes += record.similar_bytes;
        totals.hash_s += record.hash_s;
        totals.send_s += record.send_s;
        stored.last.push_back(record);
        if stored.last.len() > STORED {
            stored.last.pop_front();
        }
    }

    /// Return the sums and the last records.
    pub(crate) fn read(&self) -> (Totals, Vec<Record>) {
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        (stored.totals, stored.last.iter().cloned().collect())
    }
}
