//! Errors of the sampler.

use std::path::PathBuf;

/// An error, with a message for the user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be used.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The control socket is not available.
    #[error(transparent)]
    Daemon(#[from] penstock_daemon::Error),
    /// The kernel does not allow timing the requests of block devices.
    #[error(transparent)]
    Probe(#[from] penstock_probe::ProbeError),
    /// The configuration or a command is invalid.
    #[error("not understood: {0}")]
    Config(#[from] serde_json::Error),
    /// The interval is out of range.
    #[error("an interval of {0} ns; expected 1000000 (1 ms) to 86400000000000 (a day)")]
    Interval(i64),
    /// The command is not valid in the present state.
    #[error("{0}")]
    State(&'static str),
}

impl Error {
    /// Add the path of the file to an error of the operating system.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
