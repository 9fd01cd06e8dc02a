//! The control socket of a single-threaded daemon, polled between rounds of its work.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::control::{accept, listen, LONGEST_REQUEST};
use crate::process::Owner;
use crate::Error;

const OWNER_CHECK: Duration = Duration::from_secs(1);

struct Caller {
    stream: UnixStream,
    received: Vec<u8>,
}

/// Control socket and owner of the daemon. Dropping the desk removes the socket.
pub struct Desk {
    path: PathBuf,
    listener: UnixListener,
    callers: Vec<Caller>,
    owner: Option<Owner>,
    looked: Instant,
}

impl Desk {
    /// Listen at `path`. With an owner, the daemon ends when the owner ends.
    pub fn open(path: &Path, owner: Option<Owner>) -> Result<Self, Error> {
        let listener = listen(path)?;
        listener
            .set_nonblocking(true)
            .map_err(|error| Error::host(path.display().to_string(), error))?;
        Ok(Desk {
            path: path.to_owned(),
            listener,
            callers: Vec::new(),
            owner,
            looked: Instant::now(),
        })
    }

    /// Wait for a request, at most `wait_ms` milliseconds.
    pub fn wait(&self, wait_ms: u64) {
        let watch = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut set = vec![watch(self.listener.as_raw_fd())];
        set.extend(self.callers.iter().map(|c| watch(c.stream.as_raw_fd())));
        // SAFETY: the array and its length belong together.
        unsafe {
            libc::poll(
                set.as_mut_ptr(),
                set.len() as libc::nfds_t,
                i32::try_from(wait_ms).unwrap_or(i32::MAX),
            )
        };
    }

    /// Answer pending requests with `answer(line)`, which also returns true for the last request. Return true
    /// when the daemon must end.
    pub fn serve(&mut self, mut answer: impl FnMut(&[u8]) -> (Value, bool)) -> bool {
        while let Ok(stream) = accept(&self.listener) {
            if stream.set_nonblocking(true).is_ok() {
                self.callers.push(Caller {
                    stream,
                    received: Vec::new(),
                });
            }
        }
        let mut end = false;
        self.callers.retain_mut(|caller| {
            caller.lines().is_some_and(|lines| {
                lines.iter().all(|line| {
                    let (reply, last) = answer(line);
                    end |= last;
                    caller.tell(&reply)
                })
            })
        });
        if !end && self.looked.elapsed() > OWNER_CHECK {
            self.looked = Instant::now();
            end = self.owner.is_some_and(|owner| owner.is_gone());
        }
        end
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Caller {
    /// Complete lines received so far. None if the client disconnected or sent an overlong line.
    fn lines(&mut self) -> Option<Vec<Vec<u8>>> {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(_) if self.received.len() > LONGEST_REQUEST => return None,
                Ok(n) => self.received.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
            let rest = self.received.split_off(end + 1);
            lines.push(std::mem::replace(&mut self.received, rest));
        }
        Some(lines)
    }

    fn tell(&mut self, answer: &Value) -> bool {
        let _ = self.stream.set_nonblocking(false);
        let sent = writeln!(self.stream, "{answer}").is_ok();
        self.stream.set_nonblocking(true).is_ok() && sent
    }
}
