//! Modes of the tracer.

use crate::ProbeError;

/// Mode: the data that the programs store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A record of each call.
    Trace,
    /// Counters per thread, file and direction.
    Pattern,
    /// Operations and bytes per file and direction.
    Count,
    /// Nothing: programs that return at once, to measure the overhead of the hooks.
    Empty,
}

impl Mode {
    /// Name in requests and receipts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Pattern => "pattern",
            Self::Count => "count",
            Self::Empty => "empty",
        }
    }

    /// Parse `trace`, `pattern`, `count` or `empty`.
    pub fn named(name: &str) -> Result<Self, ProbeError> {
        match name {
            "trace" => Ok(Self::Trace),
            "pattern" => Ok(Self::Pattern),
            "count" => Ok(Self::Count),
            "empty" => Ok(Self::Empty),
            _ => Err(ProbeError::Request(format!(
                "no tracing mode {name}: it is trace, pattern, count or empty"
            ))),
        }
    }
}
