//! Failures of the store.

use std::io;
use std::path::Path;

/// Failure of an operation on the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system below the store refused something.
    #[error("{what}: {source}")]
    Io {
        /// File or operation.
        what: String,
        /// Its answer.
        source: io::Error,
    },
    /// A map or a chunk is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// The request is impossible.
    #[error("{0}")]
    Bad(String),
}

/// Result of an operation on the store.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of the file system with its path.
    pub fn at(path: &Path, source: io::Error) -> Self {
        Error::Io {
            what: path.display().to_string(),
            source,
        }
    }

    /// Error number for a program.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Damaged(_) => libc::EIO,
            Error::Bad(_) => libc::EINVAL,
        }
    }
}
