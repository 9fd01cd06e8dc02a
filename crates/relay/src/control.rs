//! The control socket: one JSON object per line in, one out; and the relay's end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{json, Value};

use crate::config::{Command, RelayConfig};
use crate::engine::{wake_fd, Asked, Engine};
use crate::error::Error;

const OWNER_CHECK: Duration = Duration::from_millis(500);

/// Where commands go.
#[derive(Clone)]
struct Desk {
    commands: Sender<Asked>,
    wake: Arc<OwnedFd>,
}

impl Desk {
    fn ask(&self, command: Command) -> Result<Value, Error> {
        let (answer, answered) = channel();
        let gone = |_| Error::Bad("the relay has ended".into());
        self.commands
            .send((command, answer))
            .map_err(|_| Error::Bad("the relay has ended".into()))?;
        // SAFETY: an eventfd takes eight bytes.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const ONE).cast(), 8) };
        answered.recv().map_err(gone)?
    }
}

static ONE: u64 = 1;

/// Relays until told to stop; `config_json` is a [`RelayConfig`].
pub fn run(config_json: &str) -> Result<(), Error> {
    let config: RelayConfig = serde_json::from_str(config_json)
        .map_err(|error| Error::Bad(format!("configuration of the relay: {error}")))?;
    prepare_process();
    if let Some(path) = &config.netns {
        enter(path)?;
    }
    let _ = fs::remove_file(&config.socket);
    let listener = UnixListener::bind(&config.socket)
        .map_err(|error| Error::host(config.socket.display().to_string(), error))?;
    let wake = wake_fd().map_err(|error| Error::host("eventfd", error))?;
    let (commands, asked) = channel();
    let engine = Engine::new(asked, wake.as_raw_fd(), config.seed, config.most_bytes)?;
    let desk = Desk {
        commands,
        wake: Arc::new(wake),
    };
    let accepting = desk.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let desk = accepting.clone();
            thread::spawn(move || converse(&stream, &desk));
        }
    });
    watch_signals(&desk);
    if let (Some(owner), false) = (config.owner_pid, config.outlive_owner) {
        watch_owner(owner, desk.clone());
    }
    if let Some(fd) = config.ready_fd {
        // SAFETY: the starter passed this descriptor for this one use and nobody else owns it.
        let mut ready = unsafe { fs::File::from_raw_fd(fd) };
        let _ = ready.write_all(b"ready\n");
    }
    engine.serve(desk.wake.as_raw_fd());
    let _ = fs::remove_file(&config.socket);
    Ok(())
}

fn prepare_process() {
    // SAFETY: plain system calls on this process; each may fail without harm.
    unsafe {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
    // Allowed to the privileged only.
    let _ = fs::write("/proc/self/oom_score_adj", "-900");
}

/// Moves this thread, and those that it starts, into a network namespace.
fn enter(path: &Path) -> Result<(), Error> {
    let file = fs::File::open(path)
        .map_err(|error| Error::host(format!("network namespace {}", path.display()), error))?;
    // SAFETY: an open descriptor of a namespace.
    if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
        return Err(Error::last(format!("entering {}", path.display())));
    }
    Ok(())
}

fn watch_signals(desk: &Desk) {
    let desk = desk.clone();
    thread::spawn(move || {
        // SAFETY: a set of blocked signals and a place for the number.
        unsafe {
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut signals);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut signals, signal);
            }
            let mut which = 0;
            libc::sigwait(&signals, &mut which);
        }
        let _ = desk.ask(Command::Shutdown {});
    });
}

/// Start time of a process in clock ticks, by which it is told from a later one of its number.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

fn watch_owner(owner: i32, desk: Desk) {
    let started = start_time(owner);
    thread::spawn(move || {
        while started.is_some() && start_time(owner) == started {
            thread::sleep(OWNER_CHECK);
        }
        let _ = desk.ask(Command::Shutdown {});
    });
}

/// Answers a client until it leaves.
fn converse(stream: &UnixStream, desk: &Desk) {
    let Ok(mut out) = stream.try_clone() else {
        return;
    };
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let asked = serde_json::from_str::<Command>(&line)
            .map_err(|error| Error::Bad(format!("command {line:.200}: {error}")));
        let answer = match asked.and_then(|command| desk.ask(command)) {
            Ok(mut answer) => {
                answer["ok"] = json!(true);
                answer
            }
            Err(error) => json!({"ok": false, "error": error.to_string()}),
        };
        if writeln!(out, "{answer}").is_err() {
            return;
        }
    }
}
