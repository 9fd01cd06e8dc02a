//! What can go wrong.

use std::path::PathBuf;

/// A failure of the sampler, in words for its user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be used.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The control socket cannot be had.
    #[error(transparent)]
    Daemon(#[from] penstock_daemon::Error),
    /// The kernel does not let us time the requests of block devices.
    #[error(transparent)]
    Probe(#[from] penstock_probe::ProbeError),
    /// The configuration or a command is not understood.
    #[error("not understood: {0}")]
    Config(#[from] serde_json::Error),
    /// An interval that cannot be kept.
    #[error("an interval of {0} ns; expected 1000000 (1 ms) to 86400000000000 (a day)")]
    Interval(i64),
    /// A command that does not fit the state.
    #[error("{0}")]
    State(&'static str),
}

impl Error {
    /// Names the file in a failure of the operating system.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
