//! Records of written versions, and the controller that receives them.

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
    /// Time from the start to the commit [s].
    pub duration_s: f64,
    /// Time for boundaries and hashes [s].
    pub hash_s: f64,
    /// Time for writing chunks and the map to the store [s].
    pub send_s: f64,
    /// Bytes that were divided into chunks.
    pub bytes: u64,
    /// Bytes of chunks that were already stored.
    pub similar_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Number of chunks that were already stored.
    pub similar_chunks: u64,
    /// Configuration of the version.
    pub configuration: String,
}

/// Controller that chooses the configuration of each version and receives its record.
pub trait Controller: Send + Sync {
    /// Choose the configuration of a new version of `path`. None stands for the mount's.
    fn choose(&self, path: &str, family: &str) -> Option<String>;

    /// Receive the record of a committed version.
    fn record(&self, record: &Record);
}
