//! What can go wrong in a daemon, said so that a person can act on it.

use std::io;

/// Failure of a command or of the start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request itself makes no sense.
    #[error("{0}")]
    Bad(String),
    /// The host refused something.
    #[error("{what}: {source}")]
    Host {
        /// What was being done.
        what: String,
        /// The host's answer.
        source: io::Error,
    },
}

impl Error {
    /// A host error with what was being done when it happened.
    pub fn host(what: impl Into<String>, source: io::Error) -> Self {
        Error::Host {
            what: what.into(),
            source,
        }
    }

    /// The last error of the C library with what was being done.
    pub fn last(what: impl Into<String>) -> Self {
        Error::host(what, io::Error::last_os_error())
    }
}
