//! Commands that print a number. Each runs at its own interval in its own thread, so that no sample waits.
//!
//! The first sample after the end of an execution has its results: `up`, its duration `seconds` and, after a success,
//! its `value`. An execution that is late, fails, prints too much or prints no number leaves a gap. One that is still
//! running when the next is due is killed with its process group. Background processes of an ended one are killed too.

use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{json, Map, Value};

use super::{Entities, Metric, Source};
use crate::config::StartRequest;
use crate::error::Error;
use crate::number_text;
use crate::spool::Sink;

const SOURCE: &str = "command";
const METRICS: [Metric; 3] = [
    Metric("value", "1", false),
    Metric("up", "1", false),
    Metric("seconds", "s", false),
];
const MOST: usize = 16;
const SHORTEST_NS: i64 = 1_000_000_000;
const MOST_BYTES: usize = 64 * 1024;
/// Time between checks of an execution: the shortest and the longest. It grows with the duration.
const LOOKS: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];

pub(super) fn sources(request: &StartRequest) -> Vec<Box<dyn Source>> {
    let interval = Duration::from_nanos(request.metric_interval_ns.max(SHORTEST_NS) as u64);
    let commands = request.metrics.iter().take(MOST);
    let running: Vec<Running> = commands
        .filter_map(|(name, command)| Running::start(name, command, &request.directory, interval))
        .collect();
    if running.is_empty() {
        return Vec::new();
    }
    vec![Box::new(Commands {
        running,
        series: Entities::new(SOURCE, &METRICS),
    })]
}

/// Reason why an execution has no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Start,
    Late,
    Status,
    TooMuch,
    NoNumber,
}

const FAILURES: [(Failure, &str); 5] = [
    (Failure::Start, "not_started"),
    (Failure::Late, "late"),
    (Failure::Status, "failed"),
    (Failure::TooMuch, "too_much"),
    (Failure::NoNumber, "no_number"),
];

struct Run {
    value: Result<f64, Failure>,
    took: Duration,
}

struct Running {
    name: String,
    runs: Receiver<Run>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    completed: u64,
    failed: [u64; FAILURES.len()],
}

impl Running {
    fn start(name: &str, command: &str, directory: &Path, interval: Duration) -> Option<Self> {
        let (sender, runs) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let (command, directory) = (command.to_owned(), directory.to_owned());
        let thread = std::thread::Builder::new()
            .name("penstock-metric".to_owned())
            .spawn(move || again_and_again(&command, &directory, interval, &sender, &stopped))
            .ok()?;
        Some(Self {
            name: name.to_owned(),
            runs,
            stop: Some(stop),
            thread: Some(thread),
            completed: 0,
            failed: [0; FAILURES.len()],
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Execution k is due at t0 + k × interval. One that cannot begin within its interval is skipped.
fn again_and_again(
    command: &str,
    directory: &Path,
    interval: Duration,
    sender: &Sender<Run>,
    stopped: &Receiver<()>,
) {
    let mut due = Instant::now();
    loop {
        let began = Instant::now();
        let Some(value) = run(command, directory, due + interval, stopped) else {
            return;
        };
        let duration = began.elapsed();
        if sender
            .send(Run {
                value,
                took: duration,
            })
            .is_err()
        {
            return;
        }
        due += interval;
        while due + interval <= Instant::now() {
            due += interval;
        }
        let wait = due.saturating_duration_since(Instant::now());
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Execute the command once, at most to `until`. Return None if the recording ended meanwhile.
fn run(
    command: &str,
    directory: &Path,
    until: Instant,
    stopped: &Receiver<()>,
) -> Option<Result<f64, Failure>> {
    let started = Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let Ok(mut child) = started else {
        return Some(Err(Failure::Start));
    };
    let mut output = child.stdout.take().and_then(unblocked);
    let mut text = Vec::new();
    let mut look = LOOKS[0];
    let failure = loop {
        // check for the end first, so that the last read below gets all of the output
        let ended = has_ended(&child);
        take_in(&mut output, &mut text);
        if text.len() > MOST_BYTES {
            break Some(Failure::TooMuch);
        }
        if ended {
            break None;
        }
        if Instant::now() >= until {
            break Some(Failure::Late);
        }
        match stopped.recv_timeout(look) {
            Err(RecvTimeoutError::Timeout) => look = (2 * look).min(LOOKS[1]),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                end(&mut child);
                return None;
            }
        }
    };
    let success = end(&mut child);
    Some(match failure {
        Some(why) => Err(why),
        None if !success => Err(Failure::Status),
        None => number_text::first(&text).ok_or(Failure::NoNumber),
    })
}

fn unblocked(output: ChildStdout) -> Option<ChildStdout> {
    // SAFETY: sets a flag of a descriptor that is open and owned by this process
    let set = unsafe { libc::fcntl(output.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    (set == 0).then_some(output)
}

/// Read the output that is available, up to the limit.
fn take_in(output: &mut Option<ChildStdout>, text: &mut Vec<u8>) {
    let mut piece = [0; 4096];
    while let Some(open) = output {
        if text.len() > MOST_BYTES {
            return;
        }
        match open.read(&mut piece) {
            Ok(0) => *output = None,
            Ok(read) => text.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// True if the child has ended. It remains a zombie, so that its process number is not reused.
fn has_ended(child: &Child) -> bool {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` has the size of the structure, and any bytes are valid numbers
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, child.id(), &mut info, options) == 0 && info.si_pid() != 0
    }
}

/// Kill the rest of the process group. Return true if the command succeeded.
fn end(child: &mut Child) -> bool {
    // SAFETY: takes numbers only; the group is that of a child that was not waited for
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    child.wait().is_ok_and(|status| status.success())
}

struct Commands {
    running: Vec<Running>,
    series: Entities,
}

impl Source for Commands {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for command in &mut self.running {
            loop {
                let run = match command.runs.try_recv() {
                    Ok(run) => run,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        return Err(Error::State("a thread that runs a command has ended"))
                    }
                };
                command.completed += 1;
                let first = self.series.first(command.name.as_bytes(), sink);
                match run.value {
                    Ok(value) => sink.put(first, value),
                    Err(why) => {
                        let at = FAILURES.iter().position(|(failure, _)| *failure == why);
                        command.failed[at.unwrap_or_default()] += 1;
                    }
                }
                sink.put(first + 1, f64::from(u8::from(run.value.is_ok())));
                sink.put(first + 2, run.took.as_secs_f64());
            }
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        0
    }

    fn stats(&self) -> Option<(&'static str, Value)> {
        let stats: Map<String, Value> = self
            .running
            .iter()
            .map(|command| {
                let mut of = json!({"runs": command.completed});
                for ((_, why), number) in FAILURES.iter().zip(command.failed) {
                    if number > 0 {
                        of[*why] = number.into();
                    }
                }
                (command.name.clone(), of)
            })
            .collect();
        Some((SOURCE, stats.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Memory;
    use super::*;

    fn once(command: &str, within: Duration) -> Option<Result<f64, Failure>> {
        let (_open, stopped) = mpsc::channel();
        run(command, Path::new("/"), Instant::now() + within, &stopped)
    }

    const LONG: Duration = Duration::from_secs(120);

    #[test]
    fn results_of_commands() {
        for (command, expected) in [
            ("echo depth 12; pwd", Ok(12.0)),
            ("echo 7; exit 3", Err(Failure::Status)),
            ("kill -9 $$", Err(Failure::Status)),
            ("no-such-command", Err(Failure::Status)),
            ("echo none", Err(Failure::NoNumber)),
            ("while :; do echo 123456789; done", Err(Failure::TooMuch)),
            // background processes do not delay the result
            ("sleep 600 & echo 4", Ok(4.0)),
        ] {
            assert_eq!(once(command, LONG), Some(expected), "{command}");
        }
        assert_eq!(
            run(
                "echo 1",
                Path::new("/no/such/place"),
                Instant::now() + LONG,
                &mpsc::channel().1
            ),
            Some(Err(Failure::Start))
        );
    }

    #[test]
    fn late_commands_are_killed_with_their_children() {
        let mark = format!("600.{}", std::process::id());
        let command = format!("sleep {mark} & sleep {mark}; echo 1");
        assert_eq!(
            once(&command, Duration::from_millis(300)),
            Some(Err(Failure::Late))
        );
        let remaining = || {
            let all = std::fs::read_dir("/proc").unwrap().flatten();
            all.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok())
                .any(|line| line.windows(mark.len()).any(|w| w == mark.as_bytes()))
        };
        // a killed process remains until its parent, or the reaper of orphans, has waited for it
        while remaining() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn the_end_of_a_recording_does_not_wait_for_a_command() {
        let request: StartRequest = serde_json::from_value(json!({
            "spool": "unused", "metrics": {"a": "sleep 600", "b": "echo 5"},
            "metric_interval_ns": 3_600_000_000_000_i64,
        }))
        .unwrap();
        let mut source = sources(&request).remove(0);
        let mut memory = Memory::default();
        while !memory.values.contains_key("command/b/up") {
            std::thread::sleep(Duration::from_millis(5));
            source.sample(&mut memory).unwrap();
        }
        assert_eq!(memory.get("command/b/value"), 5.0);
        assert!(memory.get("command/b/seconds") > 0.0);
        assert!(!memory.values.contains_key("command/a/up"));
        let stats = source.stats().unwrap().1;
        assert_eq!(stats, json!({"a": {"runs": 0}, "b": {"runs": 1}}));
        drop(source); // must not wait for an hour
    }

    #[test]
    fn source_needs_a_command() {
        let request = serde_json::from_value(json!({"spool": "unused"})).unwrap();
        assert!(sources(&request).is_empty());
    }
}
