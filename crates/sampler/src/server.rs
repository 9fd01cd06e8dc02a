//! Control socket: one JSON object per line as request, one as response.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_daemon::control;
use penstock_daemon::process::{self, Owner};
use penstock_probe::latency::BlockLatency;
use serde_json::{json, Value};

use crate::config::{SamplerConfig, StartRequest};
use crate::error::Error;
use crate::recorder::Recorder;
use crate::sources::block_latency::Shared;

const OWNER_CHECK: Duration = Duration::from_secs(1);

struct State {
    interval_ns: i64,
    latency: Option<Shared>,
    recorder: Option<Recorder>,
}

/// Serve until a client requests shutdown or the owner ends. `config` is a JSON object.
pub fn serve(config: &str) -> Result<(), Error> {
    let config: SamplerConfig = serde_json::from_str(config)?;
    let latency = config.block_latency.then(BlockLatency::load).transpose()?;
    let latency = latency.map(|loaded| Arc::new(Mutex::new(loaded)));
    let listener = control::listen(&config.socket)?;
    let state = Arc::new(Mutex::new(State {
        interval_ns: config.interval_ns,
        latency,
        recorder: None,
    }));
    let over = Arc::new(AtomicBool::new(false));
    process::say_ready(config.ready_fd);
    if let (Some(owner), false) = (config.owner_pid, config.outlive_owner) {
        let (socket, over) = (config.socket.clone(), Arc::clone(&over));
        let owner = Owner::new(owner);
        std::thread::spawn(move || {
            while !owner.is_gone() {
                std::thread::sleep(OWNER_CHECK);
            }
            over.store(true, Ordering::Release);
            let _ = UnixStream::connect(socket); // wakes the accepting thread
        });
    }
    for stream in control::incoming(&listener) {
        if over.load(Ordering::Acquire) {
            break;
        }
        let (state, over, socket) = (Arc::clone(&state), Arc::clone(&over), config.socket.clone());
        std::thread::spawn(move || {
            if converse(&stream, &state) {
                over.store(true, Ordering::Release);
                let _ = UnixStream::connect(socket);
            }
        });
    }
    if let Some(recorder) = state.lock().ok().and_then(|mut s| s.recorder.take()) {
        let _ = recorder.stop();
    }
    let _ = std::fs::remove_file(&config.socket);
    Ok(())
}

/// Answer a client until it disconnects. Return true if it requested shutdown.
fn converse(stream: &UnixStream, state: &Mutex<State>) -> bool {
    let mut out = stream;
    for line in control::lines(stream) {
        let request: Result<Value, _> = serde_json::from_str(&line);
        let shutdown = request.as_ref().is_ok_and(|a| a["cmd"] == "shutdown");
        let answer = control::reply(request.map_err(Error::from).and_then(|a| obey(&a, state)));
        if shutdown | writeln!(out, "{answer}").is_err() {
            return shutdown;
        }
    }
    false
}

fn obey(command: &Value, state: &Mutex<State>) -> Result<Value, Error> {
    let mut state = state
        .lock()
        .map_err(|_| Error::State("the sampler has failed"))?;
    match command["cmd"].as_str() {
        Some("ping" | "shutdown") => Ok(json!({})),
        Some("status") => Ok(json!({"recording": state.recorder.is_some()})),
        Some("start") => {
            if state.recorder.is_some() {
                return Err(Error::State("a recording is under way; stop it first"));
            }
            let request: StartRequest = serde_json::from_value(command.clone())?;
            let latency = state.latency.as_ref();
            state.recorder = Some(Recorder::start_with(&request, state.interval_ns, latency)?);
            Ok(json!({}))
        }
        Some("stop") => {
            let recorder = state
                .recorder
                .take()
                .ok_or(Error::State("no recording is under way"))?;
            Ok(serde_json::to_value(recorder.stop()?)?)
        }
        _ => Err(Error::State(
            "unknown command; expected start, stop, status, ping or shutdown",
        )),
    }
}
