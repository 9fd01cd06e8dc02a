//! Move this process into a virtual node, with at most the rights of the node.
//!
//!     penstock-enter JSON COMMAND…
//!
//! Runs a command in the node that the JSON object describes and ends with its status. Without a command, the
//! process becomes the first process of a new node and never ends. If the node cannot be entered, the status is
//! 125.

mod rights;
mod sealed;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{exit, Command};

use serde::Deserialize;

use crate::rights::Rights;

const CANNOT_ENTER: i32 = 125;

/// Description of a node, and settings of the process in it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    /// The node's first process. None if this process becomes the first one.
    pid: Option<i32>,
    /// Files of its control groups. A single-threaded process enters a group by writing 0.
    #[serde(default)]
    groups: Vec<PathBuf>,
    /// Capabilities of the node, as a bit mask.
    capabilities: u64,
    /// Compiled filter of the node's system calls (seccomp(2)).
    filter: PathBuf,
    /// Complete environment. The environment of the caller is not inherited.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Working directory, a path in the node.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// User and group.
    #[serde(default)]
    user: Option<(u32, u32)>,
    /// Pipe that receives `ready` or an error message.
    #[serde(default)]
    ready_fd: Option<i32>,
}

fn main() {
    let mut argv = std::env::args_os().skip(1);
    let node = argv
        .next()
        .and_then(|text| serde_json::from_slice::<Node>(text.as_encoded_bytes()).ok());
    let Some(node) = node else {
        fail("expected an object that describes a node".into());
    };
    let command: Vec<OsString> = argv.collect();
    let done = match node.pid {
        Some(pid) => enter(&node, pid, &command),
        None => hold(&node),
    };
    if let Err(error) = done {
        fail(error.to_string());
    }
}

fn fail(what: String) -> ! {
    eprintln!("penstock: {what}");
    exit(CANNOT_ENTER);
}

fn named(what: impl std::fmt::Display, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Return `result` of a system call, or the last error with the name of the operation.
fn check(result: i64, what: &str) -> io::Result<i64> {
    if result < 0 {
        return Err(named(what, io::Error::last_os_error()));
    }
    Ok(result)
}

/// Fork a child that runs the command. Only children enter a new PID namespace.
fn enter(node: &Node, pid: i32, command: &[OsString]) -> io::Result<()> {
    sealed::run_from_memory()?;
    let rights = Rights::load(&node.filter, node.capabilities, node.user)?;
    let open = |kind: &str| {
        let path = format!("/proc/{pid}/ns/{kind}");
        File::open(&path).map_err(|error| named(format!("the node is gone ({path})"), error))
    };
    // Join the cgroup namespace after the groups, and the mount namespace last: until then paths are those of
    // the host.
    let spaces = ["cgroup", "ipc", "uts", "net", "mnt"].map(open);
    join(&open("pid")?)?;
    // SAFETY: this process has one thread.
    let child = check(unsafe { libc::fork() }.into(), "fork")? as i32;
    if child != 0 {
        end_as(child);
    }
    for group in &node.groups {
        fs::write(group, "0")
            .map_err(|error| named(format!("the node is gone ({})", group.display()), error))?;
    }
    for space in spaces {
        join(&space?)?;
    }
    let directory = node.cwd.clone().unwrap_or_else(|| "/".into());
    std::env::set_current_dir(&directory).map_err(|e| named(directory.display(), e))?;
    rights.keep_only()?;
    let Some((program, words)) = command.split_first() else {
        return Err(io::Error::other("expected a command"));
    };
    let error = Command::new(program)
        .args(words)
        .env_clear()
        .envs(&node.env)
        .exec();
    eprintln!("penstock: {}: {error}", program.to_string_lossy());
    exit(if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    });
}

fn join(space: &File) -> io::Result<()> {
    // SAFETY: a valid descriptor.
    check(
        unsafe { libc::setns(space.as_raw_fd(), 0) }.into(),
        "namespace",
    )
    .map(drop)
}

/// Wait for the child, stop when it stops, and end with its status.
fn end_as(child: i32) -> ! {
    let mut status = 0;
    // SAFETY: plain system calls on this process and its child.
    unsafe {
        loop {
            if libc::waitpid(child, &mut status, libc::WUNTRACED) < 0 {
                if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                exit(CANNOT_ENTER);
            }
            if libc::WIFSTOPPED(status) {
                libc::kill(libc::getpid(), libc::SIGSTOP);
                libc::kill(child, libc::SIGCONT);
            } else if libc::WIFSIGNALED(status) {
                let signal = libc::WTERMSIG(status);
                libc::prctl(libc::PR_SET_DUMPABLE, 0); // the child has written its core already
                libc::signal(signal, libc::SIG_DFL);
                libc::kill(libc::getpid(), signal);
                exit(128 + signal);
            } else {
                exit(libc::WEXITSTATUS(status));
            }
        }
    }
}

/// Drop to the node's rights and wait forever. SIGCHLD is ignored, so that the kernel reaps orphans.
fn hold(node: &Node) -> io::Result<()> {
    let fd = node
        .ready_fd
        .ok_or_else(|| io::Error::other("expected a command or ready_fd"))?;
    // SAFETY: passed to this process to be written once; nobody else owns it.
    let mut ready = unsafe { File::from_raw_fd(fd) };
    let rights = Rights::load(&node.filter, node.capabilities, node.user);
    match rights.and_then(Rights::keep_only) {
        Ok(()) => ready.write_all(b"ready")?,
        Err(error) => {
            let _ = ready.write_all(error.to_string().as_bytes());
            return Err(error);
        }
    }
    drop(ready);
    loop {
        // SAFETY: plain system calls.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            libc::pause();
        }
    }
}
