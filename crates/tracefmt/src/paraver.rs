//! Paraver: `.prv` (records), `.pcf` (what the numbers mean), `.row` (names of the rows).
//!
//! A process is a task, and a thread is a thread. Every event is one event record (kind 2) at its start, with all its
//! numbers. A call of a thread also has a state record (kind 1) from entry to return, so that a timeline shows bars.
//! The recording does not include the processor of a call: that field is 0. Times are ns from the start of the
//! recording. Records are in order of time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{json, Value};

use crate::columns::{Events, ASYNC};
use crate::context::Context;
use crate::Exporter;

/// Types of the values in an event record.
const TYPES: [(u32, &str); 8] = [
    (70_000_001, "I/O operation"),
    (70_000_002, "File"),
    (70_000_003, "Offset (bytes)"),
    (70_000_004, "Asked for (bytes)"),
    (70_000_005, "Done (bytes)"),
    (70_000_006, "Latency (ns)"),
    (70_000_007, "Error number"),
    (70_000_008, "Flags"),
];
/// Number of the state "I/O" in Paraver.
const STATE_IO: u32 = 12;

/// Writer of the three files.
pub struct Paraver {
    out: BufWriter<File>,
    start_ns: i64,
    end_ns: i64,
    rows: HashMap<(i64, i64), (usize, usize)>,
    busy_until: HashMap<(i64, i64), i64>,
    events: u64,
    states: u64,
    last_ns: i64,
}

impl Paraver {
    /// Create `prv`, and write `pcf` and `row` next to it. `date` has the format `dd/mm/yy at hh:mm`.
    pub fn create(
        prv: &Path,
        pcf: &Path,
        row: &Path,
        context: &Context,
        date: &str,
    ) -> io::Result<Self> {
        let mut tasks: Vec<(i64, Vec<(i64, String)>)> = Vec::new();
        let mut place: HashMap<i64, usize> = HashMap::new();
        let mut rows = HashMap::new();
        for thread in &context.threads {
            let task = *place.entry(thread.pid).or_insert_with(|| {
                tasks.push((thread.pid, Vec::new()));
                tasks.len() - 1
            });
            tasks[task].1.push((thread.tid, thread.name.clone()));
            rows.insert((thread.pid, thread.tid), (task + 1, tasks[task].1.len()));
        }
        let cpus = context.cpus.max(1);
        let mut out = BufWriter::with_capacity(1 << 20, File::create(prv)?);
        let end_ns = context.end_ns.max(context.start_ns);
        write!(
            out,
            "#Paraver ({date}):{}_ns:1({cpus}):1:",
            end_ns - context.start_ns
        )?;
        let list: Vec<_> = tasks
            .iter()
            .map(|(_, t)| format!("{}:1", t.len()))
            .collect();
        writeln!(out, "{}({})", tasks.len(), list.join(","))?;
        write_pcf(pcf, context)?;
        write_row(row, cpus, &tasks)?;
        Ok(Paraver {
            out,
            start_ns: context.start_ns,
            end_ns,
            rows,
            busy_until: HashMap::new(),
            events: 0,
            states: 0,
            last_ns: context.start_ns,
        })
    }
}

impl Exporter for Paraver {
    fn events(&mut self, events: &Events) -> io::Result<()> {
        for e in events.rows() {
            let thread = (e.pid, e.tid);
            let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
            let &(task, row) = self
                .rows
                .get(&thread)
                .ok_or_else(|| wrong(format!("thread {} of no task", e.tid)))?;
            if e.t_ns < self.last_ns || e.end_ns() > self.end_ns {
                return Err(wrong(format!("an event at {} ns is out of order", e.t_ns)));
            }
            self.last_ns = e.t_ns;
            let at = e.t_ns - self.start_ns;
            let free = self.busy_until.entry(thread).or_insert(i64::MIN);
            // states of one thread may not overlap: a call within another one is only an event
            if e.flags & ASYNC == 0 && e.latency_ns > 0 && e.t_ns >= *free {
                *free = e.end_ns();
                let end = e.end_ns() - self.start_ns;
                writeln!(self.out, "1:0:1:{task}:{row}:{at}:{end}:{STATE_IO}")?;
                self.states += 1;
            }
            let [op, file, offset, size, done, latency, errno, flags] = TYPES.map(|t| t.0);
            writeln!(
                self.out,
                "2:0:1:{task}:{row}:{at}:{op}:{}:{file}:{}:{offset}:{}:{size}:{}:{done}:{}:{latency}:{}:{errno}:{}:{flags}:{}",
                e.op + 1,
                e.file_id,
                e.offset.max(0),
                e.size,
                e.done,
                e.latency_ns,
                e.errno,
                e.flags,
            )?;
            self.events += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Value> {
        self.out.flush()?;
        Ok(json!({"events": self.events, "states": self.states, "threads": self.rows.len()}))
    }
}

fn write_pcf(path: &Path, context: &Context) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "DEFAULT_OPTIONS\n")?;
    writeln!(
        out,
        "LEVEL               THREAD\nUNITS               NANOSEC"
    )?;
    writeln!(out, "LOOK_BACK           100\nSPEED               1")?;
    writeln!(out, "FLAG_ICONS          ENABLED\nNUM_OF_STATE_COLORS 1000")?;
    writeln!(out, "YMAX_SCALE          37\n\nDEFAULT_SEMANTIC\n")?;
    writeln!(out, "THREAD_FUNC         State As Is\n")?;
    writeln!(out, "STATES\n0    Idle\n1    Running\n{STATE_IO}    I/O\n")?;
    writeln!(
        out,
        "STATES_COLOR\n0    {{117,195,255}}\n1    {{0,0,255}}\n{STATE_IO}    {{255,144,26}}\n"
    )?;
    for (number, name) in TYPES {
        writeln!(out, "EVENT_TYPE\n0    {number}    {name}")?;
        match number {
            70_000_001 => {
                writeln!(out, "VALUES\n0      End")?;
                for (op, name, _) in &context.operations {
                    writeln!(out, "{}      {name}", op + 1)?;
                }
            }
            70_000_002 => {
                writeln!(out, "VALUES")?;
                for file in &context.files {
                    writeln!(out, "{}      {}", file.file_id, one_line(&file.path))?;
                }
            }
            _ => {}
        }
        writeln!(out)?;
    }
    out.flush()
}

fn write_row(path: &Path, cpus: u32, tasks: &[(i64, Vec<(i64, String)>)]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "LEVEL CPU SIZE {cpus}")?;
    for cpu in 1..=cpus {
        writeln!(out, "{cpu}.host")?;
    }
    writeln!(
        out,
        "\nLEVEL NODE SIZE 1\nhost\n\nLEVEL TASK SIZE {}",
        tasks.len()
    )?;
    for (pid, threads) in tasks {
        let name = threads.first().map_or("", |thread| thread.1.as_str());
        writeln!(out, "{} {pid}", one_line(name))?;
    }
    let all: usize = tasks.iter().map(|(_, threads)| threads.len()).sum();
    writeln!(out, "\nLEVEL THREAD SIZE {all}")?;
    for (_, threads) in tasks {
        for (tid, name) in threads {
            writeln!(out, "{} {tid}", one_line(name))?;
        }
    }
    out.flush()
}

/// Name on one line, with escaped control characters.
fn one_line(name: &str) -> String {
    if name.chars().any(char::is_control) {
        name.escape_debug().to_string()
    } else {
        name.to_owned()
    }
}
