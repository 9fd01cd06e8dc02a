//! Records of the versions that were written, and the controller that receives them.

use serde::Serialize;

/// One committed version.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// Family of its path.
    pub family: String,
    /// Path below the mount.
    pub path: String,
    /// Start of the version [s since 1970].
    pub at_s: f64,
    /// From the start to the commit.
    pub duration_s: f64,
    /// Time for boundaries and hashes.
    pub hash_s: f64,
    /// Time for sending chunks and the map to the store.
    pub send_s: f64,
    /// Bytes that were divided into chunks.
    pub bytes: u64,
    /// Bytes of chunks that were not sent.
    pub similar_bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// Chunks that were not sent.
    pub similar_chunks: u64,
    /// Configuration of the version.
    pub configuration: String,
}

/// Chooses the configuration of each version and receives its record.
pub trait Controller: Send + Sync {
    /// Configuration of a new version of `path`; None: the mount's.
    fn choose(&self, path: &str, family: &str) -> Option<String>;

    /// Receives the record of a committed version.
    fn record(&self, record: &Record);
}
