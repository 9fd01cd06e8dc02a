//! Writer of fio's I/O log, version 3: one log per thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use crate::columns::{Event, Events, ASYNC, DIRECT};
use crate::context::Context;
use crate::Exporter;

/// First line of a log.
pub const HEADER: &str = "fio version 3 iolog";

/// Maximum size of the buffered text of all logs [bytes].
const BUFFER_BYTES: usize = 32 << 20;

/// Name of a traced file in the logs, relative to the directory of the export.
///
/// fio splits a line at white space, so the traced name is not usable there. Also, a replay must never write to the
/// traced file.
pub fn scratch_name(file_id: i64) -> String {
    format!("file-{file_id:06}")
}

/// Writer of one log per thread.
pub struct FioLogs {
    folder: PathBuf,
    start_ns: i64,
    operations: HashMap<i64, (String, String)>,
    logs: BTreeMap<(i64, i64), ThreadLog>,
    buffered_bytes: usize,
    skipped: BTreeMap<String, u64>,
    ends: BTreeMap<i64, i64>,
    read: BTreeSet<i64>,
    lines: u64,
}

#[derive(Default)]
struct ThreadLog {
    path: PathBuf,
    text: String,
    opened: BTreeSet<i64>,
    first_us: i64,
    last_us: i64,
    operations: u64,
    requests: u64,
    direct: u64,
    asynchronous: u64,
    under_way: Vec<i64>,
    depth: usize,
}

impl FioLogs {
    /// Create a writer of logs `thread-N.log` in `folder`, numbered in order of the threads' first events.
    pub fn create(folder: &Path, context: &Context) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(FioLogs {
            folder: folder.to_owned(),
            start_ns: context.start_ns,
            operations: context.operation_names(),
            logs: BTreeMap::new(),
            buffered_bytes: 0,
            skipped: BTreeMap::new(),
            ends: BTreeMap::new(),
            read: BTreeSet::new(),
            lines: 0,
        })
    }

    fn skip(&mut self, why: &str) {
        *self.skipped.entry(why.to_owned()).or_default() += 1;
    }

    fn take(&mut self, e: &Event) -> io::Result<()> {
        let Some((name, direction)) = self.operations.get(&e.op).cloned() else {
            self.skip("unknown operations");
            return Ok(());
        };
        let (action, length) = match (direction.as_str(), name.as_str()) {
            (_, name) if name.starts_with("fault_") => {
                self.skip("page faults of mapped files");
                return Ok(());
            }
            ("read" | "write", _) if e.errno != 0 => {
                self.skip("calls that failed");
                return Ok(());
            }
            ("read" | "write", _) if e.done <= 0 => {
                self.skip("calls that transferred nothing");
                return Ok(());
            }
            ("read" | "write", _) => (direction.as_str(), e.done),
            (_, "fsync" | "aio_fsync" | "uring_fsync") if e.errno == 0 => ("sync", 0),
            (_, "fdatasync" | "aio_fdsync") if e.errno == 0 => ("datasync", 0),
            _ => {
                self.skip(&name);
                return Ok(());
            }
        };
        let end = self.ends.entry(e.file_id).or_default();
        *end = (*end).max(e.offset.max(0) + length);
        if action == "read" {
            self.read.insert(e.file_id);
        }
        let number = self.logs.len() + 1;
        let folder = &self.folder;
        let log = self
            .logs
            .entry((e.pid, e.tid))
            .or_insert_with(|| ThreadLog {
                path: folder.join(format!("thread-{number}.log")),
                text: format!("{HEADER}\n"),
                first_us: (e.t_ns - self.start_ns) / 1000,
                ..ThreadLog::default()
            });
        let before = log.text.len();
        let us = ((e.t_ns - self.start_ns) / 1000).max(log.last_us);
        log.last_us = us;
        let file = scratch_name(e.file_id);
        if log.opened.insert(e.file_id) {
            log.text
                .push_str(&format!("{us} {file} add\n{us} {file} open\n"));
            self.lines += 2;
        }
        log.text.push_str(&format!(
            "{us} {file} {action} {} {length}\n",
            e.offset.max(0)
        ));
        self.lines += 1;
        log.operations += 1;
        if matches!(action, "read" | "write") {
            log.requests += 1;
            log.direct += u64::from(e.flags & DIRECT != 0);
            if e.flags & ASYNC != 0 {
                log.asynchronous += 1;
                log.under_way.retain(|&end| end > e.t_ns);
                log.under_way.push(e.end_ns());
                log.depth = log.depth.max(log.under_way.len());
            }
        }
        self.buffered_bytes += log.text.len() - before;
        if self.buffered_bytes > BUFFER_BYTES {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> io::Result<()> {
        for log in self.logs.values_mut() {
            if !log.text.is_empty() {
                let file = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(&log.path)?;
                let mut out = BufWriter::new(file);
                out.write_all(log.text.as_bytes())?;
                out.flush()?;
                log.text.clear();
            }
        }
        self.buffered_bytes = 0;
        Ok(())
    }
}

impl Exporter for FioLogs {
    fn events(&mut self, events: &Events) -> io::Result<()> {
        events.rows().try_for_each(|e| self.take(&e))
    }

    fn finish(&mut self) -> io::Result<Value> {
        for log in self.logs.values_mut() {
            for &file_id in &log.opened {
                let file = scratch_name(file_id);
                log.text
                    .push_str(&format!("{} {file} close\n", log.last_us));
                self.lines += 1;
            }
        }
        self.write_out()?;
        let threads: Vec<Value> = self
            .logs
            .iter()
            .map(|((pid, tid), log)| {
                json!({
                    "pid": pid,
                    "tid": tid,
                    "log": log.path.file_name().unwrap_or_default().to_string_lossy(),
                    "first_us": log.first_us,
                    "operations": log.operations,
                    "requests": log.requests,
                    "direct": log.direct,
                    "asynchronous": log.asynchronous,
                    "depth": log.depth.max(1),
                })
            })
            .collect();
        let operations: u64 = self.logs.values().map(|log| log.operations).sum();
        Ok(json!({
            "events": operations,
            "lines": self.lines,
            "threads": threads,
            "ends": self.ends.iter().map(|(id, end)| (id.to_string(), *end)).collect::<BTreeMap<_, _>>(),
            "read": self.read,
            "skipped": self.skipped,
        }))
    }
}
