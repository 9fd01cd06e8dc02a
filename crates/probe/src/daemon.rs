//! A tracer behind a control socket: one JSON object per line in, one out.

use std::path::{Path, PathBuf};

use penstock_daemon::control::reply;
use penstock_daemon::desk::Desk;
use penstock_daemon::process::{self, Owner};
use serde::Deserialize;
use serde_json::{json, Value};

use crate::hooks::{names, Limits};
use crate::hot::Hot;
use crate::mode::Mode;
use crate::scope::Scope;
use crate::tracer::{Target, Timing, Tracer};
use crate::ProbeError;

/// Configuration of the daemon.
#[derive(Debug, Deserialize)]
pub struct Config {
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Process that owns the daemon; the daemon ends with it.
    pub owner_pid: i32,
    /// True to continue after the owner has ended.
    #[serde(default)]
    pub outlive_owner: bool,
    /// `trace`, `pattern` or `empty`.
    #[serde(default = "default_mode")]
    pub mode: String,
    /// Memory of the rings of all CPUs, bytes.
    #[serde(default = "default_ring")]
    pub ring_bytes: usize,
    /// Injected loss, for tests: every n-th record is dropped and counted as lost.
    #[serde(default)]
    pub drop_every: u32,
    /// `auto`, or the only kind of hook to use.
    #[serde(default = "default_hooks")]
    pub hooks: String,
    /// Injected refusals, for tests: kinds of hook, or programs, that are treated as if the kernel refused them.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Required features; without them the daemon does not start.
    #[serde(default)]
    pub require: Vec<String>,
    /// For timing: no programs at the entry of calls.
    #[serde(default)]
    pub exits_only: bool,
    /// For timing: the program bodies of fentry on any hook.
    #[serde(default)]
    pub interruptible: bool,
    /// For tests: number of streams that mode pattern counts in the kernel; 0 for the default.
    #[serde(default)]
    pub streams: usize,
    /// Scope of the trace.
    #[serde(default)]
    pub scope: Scope,
    /// Mode trace: settings of the choice of the files whose events are stored.
    #[serde(default)]
    pub hot: Option<Hot>,
    /// Longest time between two polls of the rings. The faster they fill, the more often they are polled.
    #[serde(default = "default_poll")]
    pub poll_ms: u64,
    /// File descriptor to which readiness is reported.
    pub ready_fd: Option<i32>,
}

/// Poll interval of mode pattern. Epochs are rare there, unless there are too many streams or files appear very fast.
const PATTERN_POLL_MS: u64 = 100;

fn default_mode() -> String {
    "trace".into()
}

fn default_ring() -> usize {
    64 << 20
}

fn default_hooks() -> String {
    "auto".into()
}

fn default_poll() -> u64 {
    20
}

/// Serve until a client requests shutdown or the owner ends.
pub fn serve(config_json: &str) -> Result<(), ProbeError> {
    let config: Config = serde_json::from_str(config_json)
        .map_err(|error| ProbeError::Request(format!("configuration: {error}")))?;
    if let Some(unknown) = (config.require.iter()).find(|n| !names().contains(&n.as_str())) {
        let available = names().join(", ");
        return Err(ProbeError::Request(format!(
            "no feature {unknown}: there are {available}"
        )));
    }
    let limits = Limits {
        needed: config.require.clone(),
        ..Limits::new(&config.hooks, config.deny.clone())?
    };
    let timing = Timing {
        exits_only: config.exits_only,
        interruptible: config.interruptible,
        streams: config.streams,
    };
    let mode = Mode::named(&config.mode)?;
    let mut tracer = Tracer::load(
        mode,
        config.ring_bytes,
        &limits,
        timing,
        &config.scope,
        config.hot,
    )?;
    let owner = (!config.outlive_owner).then(|| Owner::new(config.owner_pid));
    let mut desk = Desk::open(&config.socket, owner)?;
    process::say_ready(config.ready_fd);
    let longest_ms = match tracer.mode() {
        Mode::Pattern => PATTERN_POLL_MS,
        _ => config.poll_ms,
    };
    let mut pause_ms = longest_ms;
    loop {
        desk.wait(match tracer.mode() {
            _ if !tracer.armed() => 500,
            Mode::Trace | Mode::Pattern => pause_ms.min(tracer.meter_due_ms()),
            _ => 500.min(tracer.meter_due_ms()),
        });
        pause_ms = next_pause(pause_ms, longest_ms, tracer.drain());
        if desk.serve(|line| answer(&mut tracer, &config, line)) {
            return Ok(());
        }
    }
}

/// Next pause, from the fill level of the fullest ring: halved above a fifth, doubled below a twentieth.
fn next_pause(pause_ms: u64, longest_ms: u64, fullest: f64) -> u64 {
    if fullest > 0.2 {
        (pause_ms / 2).max(1)
    } else if fullest < 0.05 {
        (pause_ms * 2).min(longest_ms)
    } else {
        pause_ms
    }
}

fn answer(tracer: &mut Tracer, config: &Config, line: &[u8]) -> (Value, bool) {
    let request: Value = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => {
            return (
                json!({"ok": false, "error": format!("not a request: {error}")}),
                false,
            )
        }
    };
    let command = request["cmd"].as_str().unwrap_or_default().to_owned();
    let done = perform(tracer, config, &command, &request);
    let last = done.is_ok() && command == "shutdown";
    (reply(done), last)
}

fn perform(
    tracer: &mut Tracer,
    config: &Config,
    command: &str,
    request: &Value,
) -> Result<Value, ProbeError> {
    match command {
        "ping" | "shutdown" => Ok(json!({"ring_slots": tracer.ring_slots()})),
        "status" => {
            let top = request["top"].as_u64().unwrap_or(0);
            let top = usize::try_from(top).unwrap_or(usize::MAX);
            tracer.status(top, request["sample"].as_str().map(Path::new))
        }
        "disarm" => tracer.disarm(),
        "arm" => {
            let text = |key: &str| {
                request[key]
                    .as_str()
                    .ok_or_else(|| ProbeError::Request(format!("arm needs {key}")))
            };
            let cgroup_id = request["cgroup_id"]
                .as_u64()
                .filter(|&id| id > 0)
                .ok_or_else(|| ProbeError::Request("arm needs cgroup_id".into()))?;
            let drop_every = request["drop_every"]
                .as_u64()
                .map_or(Ok(config.drop_every), u32::try_from)
                .map_err(|_| ProbeError::Request("drop_every is too large".into()))?;
            let target: Target = match &request["target"] {
                Value::Null => Target::default(),
                given => serde_json::from_value(given.clone())
                    .map_err(|error| ProbeError::Request(format!("target: {error}")))?,
            };
            tracer.arm(
                cgroup_id,
                &target,
                Path::new(text("spool")?),
                Path::new(text("files")?),
                drop_every,
            )?;
            Ok(json!({}))
        }
        other => Err(ProbeError::Request(format!("no command {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::next_pause;

    #[test]
    fn full_rings_are_drained_more_often() {
        let mut pause = 20;
        for _ in 0..10 {
            pause = next_pause(pause, 20, 0.9);
        }
        assert_eq!(pause, 1);
        assert_eq!(next_pause(pause, 20, 0.1), 1);
        for _ in 0..10 {
            pause = next_pause(pause, 20, 0.0);
        }
        assert_eq!(pause, 20);
    }
}
