//! Errors of the store.

use std::io;
use std::path::Path;

/// Error of an operation on the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the underlying file system failed.
    #[error("{what}: {source}")]
    Io {
        /// File or operation.
        what: String,
        /// Error of the file system.
        source: io::Error,
    },
    /// A map or a chunk is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The request is invalid.
    #[error("{0}")]
    Bad(String),
}

/// Result of an operation on the store.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Create an error of the file system at `path`.
    pub fn at(path: &Path, source: io::Error) -> Self {
        Error::Io {
            what: path.display().to_string(),
            source,
        }
    }

    /// Error number for system calls.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Damaged(_) => libc::EIO,
            Error::Bad(_) => libc::EINVAL,
        }
    }
}
