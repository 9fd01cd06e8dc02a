//! The control socket (one JSON object per line for each request and each reply) and the end of the relay.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use penstock_daemon::process::{self, Owner};
use penstock_daemon::{control, Error};
use serde_json::Value;

use crate::config::{Command, RelayConfig};
use crate::engine::{wake_fd, CommandWithReply, Engine};

const OWNER_CHECK: Duration = Duration::from_millis(500);
const SIGNAL_CHECK: Duration = Duration::from_secs(3600);

/// Queue of commands to the engine.
#[derive(Clone)]
struct Desk {
    commands: Sender<CommandWithReply>,
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

/// Relay until a command or signal ends it; `config_json` is a [`RelayConfig`].
pub fn run(config_json: &str) -> Result<(), Error> {
    let config: RelayConfig = serde_json::from_str(config_json)
        .map_err(|error| Error::Bad(format!("configuration of the relay: {error}")))?;
    process::prepare();
    // Forwarding must not wait for a processor.
    process::go_first();
    if let Some(path) = &config.netns {
        enter(path)?;
    }
    let listener = control::listen(&config.socket)?;
    let wake = wake_fd().map_err(|error| Error::host("eventfd", error))?;
    let (commands, requests) = channel();
    let engine = Engine::new(requests, wake.as_raw_fd(), config.seed, config.most_bytes)?;
    let desk = Desk {
        commands,
        wake: Arc::new(wake),
    };
    let accepting = desk.clone();
    thread::spawn(move || {
        for stream in control::incoming(&listener) {
            let desk = accepting.clone();
            thread::spawn(move || control::converse(&stream, |line| obey(line, &desk)));
        }
    });
    watch_signals(&desk);
    if let (Some(owner), false) = (config.owner_pid, config.outlive_owner) {
        watch_owner(Owner::new(owner), desk.clone());
    }
    process::say_ready(config.ready_fd);
    engine.serve(desk.wake.as_raw_fd());
    let _ = fs::remove_file(&config.socket);
    Ok(())
}

/// Move this thread, and threads that it starts from now on, into a network namespace.
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
        while !process::wait_for_termination(SIGNAL_CHECK) {}
        let _ = desk.ask(Command::Shutdown {});
    });
}

fn watch_owner(owner: Owner, desk: Desk) {
    thread::spawn(move || {
        while !owner.is_gone() {
            thread::sleep(OWNER_CHECK);
        }
        let _ = desk.ask(Command::Shutdown {});
    });
}

fn obey(line: &str, desk: &Desk) -> Result<Value, Error> {
    let command = serde_json::from_str::<Command>(line)
        .map_err(|error| Error::Bad(format!("command {line:.200}: {error}")))?;
    desk.ask(command)
}
