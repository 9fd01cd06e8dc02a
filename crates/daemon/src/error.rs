//! Errors of a daemon, worded so that a person can act on them.

use std::io;

/// Error of a command or of the start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid.
    #[error("{0}")]
    Bad(String),
    /// The host refused an operation.
    #[error("{what}: {source}")]
    Host {
        /// Operation that failed.
        what: String,
        /// Error of the host.
        source: io::Error,
    },
}

impl Error {
    /// Host error with the operation that failed.
    pub fn host(what: impl Into<String>, source: io::Error) -> Self {
        Error::Host {
            what: what.into(),
            source,
        }
    }

    /// Last error of the C library with the operation that failed.
    pub fn last(what: impl Into<String>) -> Self {
        Error::host(what, io::Error::last_os_error())
    }
}
