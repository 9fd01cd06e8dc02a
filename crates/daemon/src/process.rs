//! Process settings of a daemon: limits, signals, owner.

use std::fs;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::time::Duration;

/// Raise the descriptor limit, block the termination signals until [`wait_for_termination`] waits for them, and lower
/// the OOM score.
pub fn prepare() {
    all_descriptors();
    // SAFETY: plain system calls on this process; each may fail without harm.
    unsafe {
        let signals = set(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
    // Only privileged processes may do this.
    let _ = fs::write("/proc/self/oom_score_adj", "-900");
}

/// Raise the descriptor limit to the maximum that the host allows. A privileged process gets the kernel's limit
/// for one process (`fs.nr_open`).
pub fn all_descriptors() {
    let most = fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let most = most.and_then(|text| text.trim().parse().ok());
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit; all calls may fail without harm.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return;
        }
        if let Some(most) = most.filter(|&most| most > limit.rlim_max) {
            let all = libc::rlimit {
                rlim_cur: most,
                rlim_max: most,
            };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &all) == 0 {
                return;
            }
        }
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

/// Scheduling class of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Before all ordinary threads of the host, round-robin with other real-time threads.
    RealTime,
    /// Before ordinary threads of its own control group.
    Favoured,
    /// Same as any other thread.
    Ordinary,
}

/// Give this thread, and threads that it starts from now on, the best scheduling class that the host allows.
pub fn go_first() -> Standing {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: plain system calls on the calling thread.
    unsafe {
        if libc::sched_setscheduler(0, libc::SCHED_RR, &priority) == 0 {
            Standing::RealTime
        } else if libc::setpriority(libc::PRIO_PROCESS, 0, -20) == 0 {
            Standing::Favoured
        } else {
            Standing::Ordinary
        }
    }
}

/// Give this thread, and threads that it starts from now on, a file mode creation mask separate from the
/// process's.
pub fn own_umask(mask: libc::mode_t) {
    // SAFETY: plain system calls on the calling thread; both always succeed.
    unsafe {
        libc::unshare(libc::CLONE_FS);
        libc::umask(mask);
    }
}

fn set(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: a set of our own, emptied before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut all);
        for &signal in signals {
            libc::sigaddset(&mut all, signal);
        }
        all
    }
}

/// Wait at most `wait` for SIGTERM or SIGINT. Ignore the hang-up of a terminal (SIGHUP).
pub fn wait_for_termination(wait: Duration) -> bool {
    let signals = set(&[libc::SIGTERM, libc::SIGINT]);
    let wait = libc::timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    // SAFETY: a set of blocked signals and a valid timespec.
    unsafe { libc::sigtimedwait(&signals, std::ptr::null_mut(), &wait) > 0 }
}

/// Write `ready` to a descriptor that the parent process passed for this purpose.
pub fn say_ready(fd: Option<i32>) {
    if let Some(fd) = fd {
        // SAFETY: passed to this process to be written once and closed; nobody else owns it.
        let mut ready = unsafe { fs::File::from_raw_fd(fd) };
        let _ = ready.write_all(b"ready\n");
    }
}

/// Process that owns the daemon: the daemon ends with it.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    pid: i32,
    started: Option<u64>,
}

impl Owner {
    /// The process that has this number now.
    pub fn new(pid: i32) -> Self {
        Owner {
            pid,
            started: start_time(pid),
        }
    }

    /// True if the process has ended, even if its number is in use again.
    pub fn is_gone(&self) -> bool {
        self.started.is_none() || start_time(self.pid) != self.started
    }
}

/// Start time of a process in clock ticks. It distinguishes the process from a later one with the same number.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None; // zombie
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Owner;

    #[test]
    fn zombie_owners_count_as_ended() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let owner = Owner::new(child.id() as i32);
        assert!(!owner.is_gone());
        child.kill().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !owner.is_gone() {
            assert!(std::time::Instant::now() < end);
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(owner.is_gone());
        assert!(!Owner::new(std::process::id() as i32).is_gone());
    }
}
