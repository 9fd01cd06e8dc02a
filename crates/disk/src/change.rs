//! Changes as data: why they are made, when they are to be, what came of them.

use penstock_daemon::clock::now_ns;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a change is made: the disk begins with it (`begin`), somebody asks for it (`request`), it is due (`time`), a phase was marked
/// (`phase`), a counter (`metric`) or a line of a log (`log`) was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    /// Which of these.
    pub kind: String,
    /// Which phase, counter and value, or line.
    #[serde(default)]
    pub text: String,
}

impl Cause {
    /// A cause of that kind.
    pub fn new(kind: &str, text: impl Into<String>) -> Self {
        Cause {
            kind: kind.to_owned(),
            text: text.into(),
        }
    }
}

/// A planned change as it is asked for: one of `at_ns`, `phase`, `metric` says when.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Planned {
    /// At that time (CLOCK_MONOTONIC).
    pub at_ns: Option<u64>,
    /// So long after that phase was marked,
    pub phase: Option<String>,
    /// or after that counter of the disk (a name of [`crate::counters::NAMES`]) was seen
    pub metric: Option<String>,
    /// above this
    pub above: Option<f64>,
    /// or below this.
    pub below: Option<f64>,
    /// Whether it is made each time that the phase is marked, or that the counter comes to be so, having not
    /// been so in between; else the first time only.
    pub every: bool,
    /// So long after the phase or the sight.
    pub after_ns: u64,
    /// Why it is made, where somebody else has seen it.
    pub cause: Option<Cause>,
    /// What is to change.
    pub patch: Value,
}

/// A change that was made, or tried.
#[derive(Debug, Clone, Serialize)]
pub struct Applied {
    /// When it was to be made (CLOCK_MONOTONIC, as all of them).
    pub planned_ns: u64,
    /// From when on it was in force: requests that arrived later met it, earlier ones did not.
    pub applied_ns: u64,
    /// When it was read back.
    pub verified_ns: u64,
    /// The patch.
    pub asked: Value,
    /// The same keys as they were found afterwards.
    pub found: Value,
    /// What went wrong.
    pub error: Option<String>,
    /// What is in force since, beside the profile.
    pub active: Vec<String>,
    /// Why it was made.
    pub cause: Cause,
}

impl Applied {
    /// One that was not made.
    pub fn failed(planned_ns: u64, asked: &Value, cause: &Cause, error: String) -> Self {
        let now = now_ns();
        Applied {
            planned_ns,
            applied_ns: now,
            verified_ns: now,
            asked: asked.clone(),
            found: Value::Null,
            error: Some(error),
            active: Vec::new(),
            cause: cause.clone(),
        }
    }
}
