//! Changes as data: cause, planned time, result.

use penstock_daemon::clock::now_ns;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Cause of a change: the initial patch (`begin`), a client (`request`), a planned time (`time`), the mark of a
/// phase (`phase`), the value of a counter (`metric`), or a line of a log (`log`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    /// Kind of the cause, one of these.
    pub kind: String,
    /// Name of the phase, counter and value, or line.
    #[serde(default)]
    pub text: String,
}

impl Cause {
    /// Cause of that kind.
    pub fn new(kind: &str, text: impl Into<String>) -> Self {
        Cause {
            kind: kind.to_owned(),
            text: text.into(),
        }
    }
}

/// A planned change. Exactly one of `at_ns`, `phase` and `metric` determines its time.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Planned {
    /// Time of the change (CLOCK_MONOTONIC).
    pub at_ns: Option<u64>,
    /// Phase whose mark triggers the change.
    pub phase: Option<String>,
    /// Counter of the disk (a name of [`crate::counters::NAMES`]) that triggers the change.
    pub metric: Option<String>,
    /// The counter triggers above this value.
    pub above: Option<f64>,
    /// The counter triggers below this value.
    pub below: Option<f64>,
    /// Apply the change at every mark of the phase, or every time that the counter crosses the threshold. By
    /// default only the first one triggers.
    pub every: bool,
    /// Delay of the change after its trigger.
    pub after_ns: u64,
    /// Cause of the change, if another process has observed it.
    pub cause: Option<Cause>,
    /// The change.
    pub patch: Value,
}

/// A change that was applied or failed.
#[derive(Debug, Clone, Serialize)]
pub struct Applied {
    /// Planned time of the change (CLOCK_MONOTONIC, like the other times).
    pub planned_ns: u64,
    /// Time from which the change is in force. It affects requests that arrive later, but no earlier ones.
    pub applied_ns: u64,
    /// Time at which the settings were read back.
    pub verified_ns: u64,
    /// The patch.
    pub asked: Value,
    /// Values of the same keys, read back after the change.
    pub found: Value,
    /// Error message of a failed change.
    pub error: Option<String>,
    /// Settings in force besides the profile.
    pub active: Vec<String>,
    /// Cause of the change.
    pub cause: Cause,
}

impl Applied {
    /// A change that failed.
    pub fn failed(planned_ns: u64, requested: &Value, cause: &Cause, error: String) -> Self {
        let now = now_ns();
        Applied {
            planned_ns,
            applied_ns: now,
            verified_ns: now,
            asked: requested.clone(),
            found: Value::Null,
            error: Some(error),
            active: Vec::new(),
            cause: cause.clone(),
        }
    }
}
