//! Metrics of single processes: those of the run's control groups (without groups, of its tree), and those by name.
//!
//! The entity is `pid=PID comm=NAME`, or `node=NODE pid=PID comm=NAME` for a process of a node. A process that
//! executes another program continues under its new name. The process's own clock has the processor time. If the
//! clock has not advanced since the last sample, the process was idle and nothing else is read. Memory and threads
//! are reread after a millisecond of processor time, or after ten seconds. An incomplete sample omits idle
//! processes. When such a process runs again, its values at the previous sample are added. Activity of a process
//! after its last sample is missing in its series; the series of its control group include it.

mod found;
mod kept;

use std::collections::HashSet;
use std::path::PathBuf;

use penstock_daemon::process::all_descriptors;
use serde_json::{json, Value};

use self::found::Finder;
use self::kept::{Host, ProcessFiles, Stat, Values};
use super::{Entities, Metric, Source};
use crate::clock::{since_boot_ns, ticks_per_second};
use crate::config::StartRequest;
use crate::error::Error;
use crate::spool::Sink;

/// Maximum number of processes that are read; the rest is counted.
const MOST: usize = 512;
/// Maximum number of names of a process.
const MOST_NAMES: usize = 8;
/// Processor time after which memory and threads are reread, ns. They hardly change within less.
const WORK_NS: f64 = 1e6;
/// Time after which they and the name are reread, ns. The kernel may have reclaimed pages.
const AGAIN_NS: i64 = 10_000_000_000;
/// Age below which a process is young and likely to execute another program, ns.
const YOUNG_NS: i64 = 3_000_000_000;

const SOURCE: &str = "process";
const METRICS: [Metric; 7] = [
    Metric("cpu_time", "ns", true),
    Metric("resident", "B", false),
    Metric("threads", "1", false),
    Metric("read_bytes", "B", true),
    Metric("written_bytes", "B", true),
    Metric("call_read_bytes", "B", true),
    Metric("call_written_bytes", "B", true),
];
/// Metrics of all processes together.
const ALL: [Metric; 2] = [
    Metric("sampled", "1", false),
    Metric("not_sampled", "1", false),
];

pub(super) fn sources(request: &StartRequest) -> Vec<Box<dyn Source>> {
    if !request.processes && request.processes_named.is_empty() {
        return Vec::new();
    }
    all_descriptors();
    vec![Box::new(Processes::new(request))]
}

struct Process {
    pid: u32,
    node: String,
    comm: String,
    files: ProcessFiles,
    first: u64,
    names: usize,
    values: Values,
    since_ns: i64,
    /// Time of the last reading of its size, and its processor time then.
    sized_ns: i64,
    sized_cpu_ns: f64,
    named_ns: i64,
    reported_ns: i64,
}

struct Processes {
    proc: PathBuf,
    host: Host,
    finder: Finder,
    processes: Vec<Process>,
    pids: HashSet<u32>,
    series: Entities,
    all: Entities,
    last_ns: i64,
    not_read: usize,
    most: usize,
    most_not_read: usize,
    ended: u64,
    seen: u64,
    calls: u64,
}

impl Processes {
    fn new(request: &StartRequest) -> Self {
        let hz = ticks_per_second();
        // SAFETY: takes a number only
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        // the start time of a process is rounded down to a tick
        let began = (since_boot_ns() as f64 / 1e9 * hz) as u64;
        Self {
            proc: request.root.join("proc"),
            host: Host {
                page_bytes: page_bytes as f64,
                tick_ns: 1e9 / hz,
                clocks: request.root.as_os_str() == "/",
            },
            finder: Finder::new(request, began),
            processes: Vec::new(),
            pids: HashSet::new(),
            series: Entities::new(SOURCE, &METRICS),
            all: Entities::new(SOURCE, &ALL),
            last_ns: 0,
            not_read: 0,
            most: 0,
            most_not_read: 0,
            ended: 0,
            seen: 0,
            calls: 0,
        }
    }

    /// Add new processes, up to the maximum number.
    fn admit(&mut self, sink: &mut dyn Sink) {
        let now_ns = sink.time_ns();
        let Some(processes) = self.finder.look(now_ns) else {
            return;
        };
        self.not_read = 0;
        let mut twice = HashSet::new();
        for (pid, node) in processes {
            if self.pids.contains(&pid) || !twice.insert(pid) {
                continue;
            }
            if self.processes.len() >= MOST {
                self.not_read += 1;
                continue;
            }
            let Some((mut files, Stat { comm, .. })) = ProcessFiles::open(&self.proc, pid) else {
                self.finder.forget(pid);
                continue; // the process has ended in the meantime
            };
            let mut values = [f64::NAN; METRICS.len()];
            if self.host.clocks {
                values[0] = files.clock_ns().unwrap_or(f64::NAN);
            }
            files.bytes(&mut values);
            if files.size(&mut values, self.host).is_none() {
                continue;
            }
            let first = self.series.first(&entity(&node, pid, &comm), sink);
            put(sink, now_ns, first, &values);
            self.pids.insert(pid);
            self.seen += 1;
            self.processes.push(Process {
                pid,
                node,
                comm,
                files,
                first,
                names: 1,
                values,
                since_ns: now_ns,
                // staggered, so that not all are reread in the same sample
                sized_ns: now_ns - i64::from(pid % 10) * (AGAIN_NS / 10),
                sized_cpu_ns: values[0],
                named_ns: now_ns,
                reported_ns: now_ns,
            });
        }
        self.most = self.most.max(self.processes.len());
        self.most_not_read = self.most_not_read.max(self.not_read);
    }
}

fn entity(node: &str, pid: u32, comm: &str) -> Vec<u8> {
    let of_node = if node.is_empty() {
        String::new()
    } else {
        format!("node={node} ")
    };
    format!("{of_node}pid={pid} comm={comm}").into_bytes()
}

fn put(sink: &mut dyn Sink, time_ns: i64, first: u64, values: &Values) {
    for (series, value) in (first..).zip(values) {
        if !value.is_nan() {
            sink.put_at(time_ns, series, *value);
        }
    }
}

impl Process {
    /// Read the values that may have changed and add them to the sample. None if the process has ended.
    fn sample(
        &mut self,
        host: Host,
        last_ns: i64,
        series: &mut Entities,
        sink: &mut dyn Sink,
    ) -> Option<()> {
        let now_ns = sink.time_ns();
        let before = self.values;
        if host.clocks {
            self.values[0] = self.files.clock_ns()?;
        }
        let ran = self.values[0] != before[0] || !host.clocks;
        let worked = self.values[0] - self.sized_cpu_ns >= WORK_NS;
        if worked || now_ns - self.sized_ns >= AGAIN_NS || !host.clocks {
            self.files.size(&mut self.values, host)?;
            (self.sized_ns, self.sized_cpu_ns) = (now_ns, self.values[0]);
        }
        if ran {
            if self.reported_ns < last_ns {
                put(sink, last_ns, self.first, &before); // it was idle until then
            }
            self.files.bytes(&mut self.values);
            let young = now_ns - self.since_ns < YOUNG_NS;
            if young || now_ns - self.named_ns >= AGAIN_NS || !host.clocks {
                self.named_ns = now_ns;
                self.rename(series, sink)?;
            }
        }
        if ran || sink.complete() {
            put(sink, now_ns, self.first, &self.values);
            self.reported_ns = now_ns;
        }
        Some(())
    }

    fn rename(&mut self, series: &mut Entities, sink: &mut dyn Sink) -> Option<()> {
        let comm = self.files.stat()?.comm;
        if comm != self.comm && self.names < MOST_NAMES {
            self.first = series.first(&entity(&self.node, self.pid, &comm), sink);
            self.comm = comm;
            self.names += 1;
        }
        Some(())
    }
}

impl Source for Processes {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        let Self {
            host,
            finder,
            processes,
            pids,
            series,
            last_ns,
            ended,
            calls,
            ..
        } = self;
        processes.retain_mut(|process| {
            let stays = process.sample(*host, *last_ns, series, sink).is_some();
            if !stays {
                pids.remove(&process.pid);
                finder.forget(process.pid);
                *ended += 1;
                *calls += process.files.calls();
            }
            stays
        });
        self.admit(sink);
        if sink.complete() || self.last_ns == 0 {
            let first = self.all.first(b"all", sink);
            sink.put(first, self.processes.len() as f64);
            sink.put(first + 1, self.not_read as f64);
        }
        self.last_ns = sink.time_ns();
        Ok(())
    }

    fn reads(&self) -> u64 {
        let of_those: u64 = self.processes.iter().map(|p| p.files.calls()).sum();
        self.calls + self.finder.calls() + of_those
    }

    fn stats(&self) -> Option<(&'static str, Value)> {
        let stats = json!({
            "seen": self.seen,
            "ended": self.ended,
            "most": self.most,
            "most_not_sampled": self.most_not_read,
        });
        Some((SOURCE, stats))
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! A directory in the form of /proc.

    use std::fs;
    use std::path::{Path, PathBuf};

    pub(crate) struct Place(PathBuf);

    impl Place {
        pub(crate) fn new(name: &str) -> Self {
            let pid = std::process::id();
            let path = std::env::temp_dir().join(format!("penstock-proc-{pid}-{name}"));
            fs::create_dir_all(path.join("proc")).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Create a process, or change one.
    pub(crate) fn process(place: &Place, pid: u32, comm: &str, parent: u32, start: u64) {
        let directory = place.path().join(format!("proc/{pid}"));
        fs::create_dir_all(directory.join("task")).unwrap();
        let stat = format!(
            "{pid} ({comm}) S {parent} 0 0 0 -1 0 0 0 0 0 7 3 0 0 20 0 2 0 {start} 4096 5 0\n"
        );
        fs::write(directory.join("stat"), stat).unwrap();
        fs::write(directory.join("statm"), "9 5 1 1 0 1 0\n").unwrap();
        let io = "rchar: 11\nwchar: 12\nsyscr: 1\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 8192\n\
            cancelled_write_bytes: 0\n";
        fs::write(directory.join("io"), io).unwrap();
    }
}

#[cfg(test)]
mod tests;
