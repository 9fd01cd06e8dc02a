//! Open files of a process. A descriptor in /proc never refers to a later process with the same number.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::file::{number, words};

/// Processor time [ns], resident memory [B], threads, bytes from and to devices, bytes read and written by calls.
pub(super) type Values = [f64; 7];

const STAT_BYTES: usize = 1024;
const FILE_BYTES: usize = 512;

/// Fields of /proc/PID/stat (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stat {
    pub(super) comm: String,
    pub(super) parent: u32,
    /// Start, ticks since boot.
    pub(super) start: u64,
    pub(super) cpu_ticks: u64,
    pub(super) threads: u64,
    pub(super) resident_pages: u64,
}

impl Stat {
    /// Parse the text; None if it is malformed.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        // the name is in parentheses, and may contain parentheses and spaces
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let comm = String::from_utf8_lossy(text.get(open + 1..close)?)
            .chars()
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        let fields: Vec<&[u8]> = words(text.get(close + 1..)?).collect();
        // the fields after the name begin with field 3 of the manual, the state
        let field = |manual: usize| fields.get(manual - 3).copied().and_then(number);
        Some(Self {
            comm,
            parent: field(4)? as u32,
            start: field(22)?,
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            resident_pages: field(24)?,
        })
    }

    /// Read the file of a process once; None if there is no such process.
    pub(super) fn of(proc: &Path, pid: u32) -> Option<Self> {
        let mut text = [0; STAT_BYTES];
        let file = File::open(proc.join(format!("{pid}/stat"))).ok()?;
        let read = file.read_at(&mut text, 0).ok()?;
        Self::parse(&text[..read])
    }
}

/// Page size and tick of this kernel. `clocks` is false for a recorded /proc, whose processes have no clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Host {
    pub(super) page_bytes: f64,
    pub(super) tick_ns: f64,
    pub(super) clocks: bool,
}

/// Open files of a process.
#[derive(Debug)]
pub(super) struct ProcessFiles {
    pid: u32,
    stat: File,
    statm: Option<File>,
    io: Option<File>,
    tasks: Option<File>,
    calls: u64,
}

/// Open a file below the directory of one process.
fn beneath(directory: &File, name: &CStr) -> Option<File> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the directory is open and the name ends with a zero byte; the new descriptor has no other owner
    unsafe {
        let opened = libc::openat(directory.as_raw_fd(), name.as_ptr(), flags);
        (opened >= 0).then(|| File::from_raw_fd(opened))
    }
}

impl ProcessFiles {
    /// Open the files; unreadable ones (`io` of another user) are omitted. None if the process has ended.
    pub(super) fn open(proc: &Path, pid: u32) -> Option<(Self, Stat)> {
        let directory = File::open(proc.join(pid.to_string())).ok()?;
        let mut process = Self {
            pid,
            stat: beneath(&directory, c"stat")?,
            statm: beneath(&directory, c"statm"),
            io: beneath(&directory, c"io"),
            tasks: beneath(&directory, c"task"),
            calls: 6,
        };
        let stat = process.stat()?;
        Some((process, stat))
    }

    /// System calls made for the process.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Processor time [ns] from the process's clock; None if the process has ended or has no clock.
    pub(super) fn clock_ns(&mut self) -> Option<f64> {
        self.calls += 1;
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // the clock includes all threads, also ended ones (clock_getcpuclockid(3))
        let clock = (!(self.pid as libc::clockid_t) << 3) | 2;
        // SAFETY: `time` is a valid timespec; a missing clock is an error
        let failed = unsafe { libc::clock_gettime(clock, &mut time) } != 0;
        (!failed).then_some(time.tv_sec as f64 * 1e9 + time.tv_nsec as f64)
    }

    /// Contents of `stat`; None if the process has ended.
    pub(super) fn stat(&mut self) -> Option<Stat> {
        self.calls += 1;
        let mut text = [0; STAT_BYTES];
        let read = self.stat.read_at(&mut text, 0).ok()?;
        Stat::parse(&text[..read])
    }

    /// Read memory, threads and, without a clock, the processor time. None if the process has ended.
    pub(super) fn size(&mut self, values: &mut Values, host: Host) -> Option<()> {
        let threads = host.clocks.then(|| self.threads()).flatten();
        if let (Some(resident), Some(threads)) = (self.resident_bytes(host), threads) {
            (values[1], values[2]) = (resident, threads);
        } else {
            let stat = self.stat()?;
            if !host.clocks {
                values[0] = stat.cpu_ticks as f64 * host.tick_ns;
            }
            values[1] = stat.resident_pages as f64 * host.page_bytes;
            values[2] = stat.threads as f64;
        }
        Some(())
    }

    fn resident_bytes(&mut self, host: Host) -> Option<f64> {
        let mut text = [0; FILE_BYTES];
        self.calls += 1;
        let read = self.statm.as_ref()?.read_at(&mut text, 0).ok()?;
        let pages = words(&text[..read]).nth(1).and_then(number)?;
        Some(pages as f64 * host.page_bytes)
    }

    /// Number of threads. A directory has two links and one more for each subdirectory.
    fn threads(&mut self) -> Option<f64> {
        let tasks = self.tasks.as_ref()?;
        self.calls += 1;
        // SAFETY: `status` has the size of the structure, and any bytes are valid numbers
        let links = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            (libc::fstat(tasks.as_raw_fd(), &mut status) == 0).then_some(status.st_nlink)
        };
        Some(links?.checked_sub(2).filter(|n| *n > 0)? as f64)
    }

    /// Read the bytes from and to devices and by calls. They do not change if the process has ended.
    pub(super) fn bytes(&mut self, values: &mut Values) {
        let Some(io) = &self.io else { return };
        let mut text = [0; FILE_BYTES];
        self.calls += 1;
        let Ok(read) = io.read_at(&mut text, 0) else {
            return;
        };
        let mut fields = words(&text[..read]);
        while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
            let at = match name {
                b"read_bytes" => 3,
                b"write_bytes" => 4,
                b"rchar" => 5,
                b"wchar" => 6,
                _ => continue,
            };
            values[at] = number(value).map_or(f64::NAN, |n| n as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_brackets_and_spaces() {
        let text = b"77 (a) (b\x1b) S 12 77 77 0 -1 4194560 1 2 3 4 250 50 7 8 20 0 9 0 123456 4096 300 18446744073709551615 1\n";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat.comm, "a) (b\u{fffd}");
        assert_eq!((stat.parent, stat.start), (12, 123_456));
        assert_eq!(
            (stat.cpu_ticks, stat.threads, stat.resident_pages),
            (300, 9, 300)
        );
        assert_eq!(Stat::parse(b"77 (cut short"), None);
        assert_eq!(Stat::parse(b"77 (cut) S 12 77"), None);
    }

    #[test]
    fn this_process_is_found_and_its_threads_are_counted() {
        let host = Host {
            page_bytes: 4096.0,
            tick_ns: 1e7,
            clocks: true,
        };
        let (mut process, stat) =
            ProcessFiles::open(Path::new("/proc"), std::process::id()).unwrap();
        assert!(process.clock_ns().unwrap() > 0.0);
        let mut values = [f64::NAN; 7];
        process.size(&mut values, host).unwrap();
        process.bytes(&mut values);
        assert!(values[0].is_nan() && values[1] > 1e6 && values[2] >= 1.0);
        assert!(values[5] > 0.0, "{values:?}");
        let ticks = Host {
            clocks: false,
            ..host
        };
        process.size(&mut values, ticks).unwrap();
        let clock = process.clock_ns().unwrap();
        assert!((values[0] - clock).abs() < 1e9, "{values:?} {clock}");
        assert!(stat.start > 0);
    }

    #[test]
    fn ended_processes_have_no_values() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let (mut process, _) = ProcessFiles::open(Path::new("/proc"), child.id()).unwrap();
        assert!(process.clock_ns().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.clock_ns().is_none() && process.stat().is_none());
        assert!(ProcessFiles::open(Path::new("/proc"), child.id()).is_none());
    }
}
