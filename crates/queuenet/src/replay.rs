//! A traced program in a form that can be replayed: calls, dependencies between threads, flushes, write-back.
//!
//! [`Program::new`] derives the steps of each thread from the calls that the tracer recorded and from the requests that
//! the disk logged. A step is a read, write or sync, with the thread's own time before it and the step of another
//! thread that it waits for. Steps do not depend on a device; [`Program::run`] runs them above a page cache and a
//! station.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::closed::SimulationError;

/// A longer gap may mean that the thread sleeps or waits for another thread.
pub(crate) const LONG_GAP_NS: u64 = 5_000_000;
/// A step waited for another thread if it begins within this time after that one's end, or within the share of its gap.
pub(crate) const WAKE_UP_NS: u64 = 200_000;
const WAKE_UP_SHARE: f64 = 0.02;
/// A background thread is active for at most this share of its time.
const BACKGROUND_SHARE: f64 = 0.1;
/// The program requested write-back (`sync_file_range`) if it follows a write within this time.
const SOON_NS: u64 = 100_000_000;

/// Reads and writes that the tracer recorded: one array per column, all of one length.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    /// Time of entry, nanoseconds.
    pub t_ns: Vec<u64>,
    /// Time from entry to return, nanoseconds.
    pub latency_ns: Vec<u64>,
    /// Thread number.
    pub tid: Vec<i64>,
    /// 0 read, 1 write.
    pub op: Vec<u8>,
    /// 1 for direct I/O.
    pub direct: Vec<u8>,
    /// File number.
    pub file: Vec<u32>,
    /// First byte.
    pub offset: Vec<u64>,
    /// Bytes transferred.
    pub size: Vec<u64>,
}

/// Requests that the disk logged: one array per column, all of one length.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// Time of arrival minus the duration of the path before it, nanoseconds.
    pub t_ns: Vec<u64>,
    /// Time of the answer, nanoseconds.
    pub done_ns: Vec<u64>,
    /// Thread that issued the request; 0 for write-back.
    pub tid: Vec<i64>,
    /// 0 read, 1 write, 2 flush.
    pub op: Vec<u8>,
    /// File number.
    pub file: Vec<u32>,
    /// First byte.
    pub offset: Vec<u64>,
    /// Size in bytes.
    pub size: Vec<u64>,
}

/// One file of a traced program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedFile {
    /// Size at the first access.
    pub size_bytes: u64,
    /// Device offset of the first byte.
    pub base: u64,
    /// Number of its directory. Files that are flushed under one lock are in one directory.
    pub place: u32,
    /// True if it is read at random.
    #[serde(default)]
    pub random: bool,
}

/// Properties of the program other than calls and requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Files by number.
    pub files: Vec<TracedFile>,
    /// Time at which the program started.
    pub start_ns: u64,
    /// Processor time of all its threads. If absent, long gaps count as computing.
    #[serde(default)]
    pub cpu_ns: Option<u64>,
}

/// Type of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read, through the page cache or direct.
    Read,
    /// Write, into the page cache or direct.
    Write,
    /// Write back the dirty pages of the file and flush the device.
    Sync,
}

/// One step of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub kind: Kind,
    pub direct: bool,
    pub file: u32,
    pub offset: u64,
    pub size: u64,
    /// The thread's own time before the step, nanoseconds.
    pub think_ns: u64,
    /// Time inside the call without the device, nanoseconds.
    pub own_ns: u64,
    /// Step (of all threads) that this one waits for, and the time from that one's end to the begin of this one.
    pub after: Option<(u32, u64)>,
    /// Place whose lock the step acquires at its begin.
    pub takes: Option<u32>,
    /// Place whose lock the step releases at its end.
    pub gives: Option<u32>,
    /// Write-back that the program requests after the step: delay, file, offset, bytes.
    pub kicks: Vec<(u64, u32, u64, u64)>,
    /// Begin in the trace, nanoseconds.
    pub began_ns: u64,
    /// End in the trace, nanoseconds.
    pub ended_ns: u64,
}

/// One thread: its number in the trace, and its steps.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub tid: i64,
    pub first: u32,
    pub end: u32,
    /// True for a background thread, which mostly waits for a timer or for other threads.
    pub background: bool,
}

/// Results of the analysis of a program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// Number of steps of all threads.
    pub steps: u64,
    /// Number of flushes.
    pub syncs: u64,
    /// Number of steps that wait for a step of another thread.
    pub waits: u64,
    /// Places that only one thread at a time can use.
    pub locks: Vec<u32>,
    /// Reads that waited for the disk in the traced run.
    pub missed_reads: u64,
    /// Time from a call to its request and back, nanoseconds (median).
    pub path_ns: u64,
    /// Write-back requests that no flush explains and that follow a write at once.
    pub early_writes: u64,
    /// Other write-back requests that no flush explains; the kernel's timer causes them.
    pub late_writes: u64,
    /// True if long gaps are waiting, not computing.
    pub idle: bool,
    /// Number of background threads.
    pub background: u64,
    /// Total of long gaps in other threads that follow no step of another thread. The replay repeats them as they are,
    /// although they may be waits.
    pub unexplained_ns: u64,
}

/// A traced program, ready for replay.
#[derive(Debug, Clone)]
pub struct Program {
    pub(crate) threads: Vec<Thread>,
    pub(crate) steps: Vec<Step>,
    pub(crate) files: Vec<TracedFile>,
    /// Time from the release of a place to the begin of the next section, by place, nanoseconds.
    pub(crate) handover_ns: HashMap<u32, u64>,
    /// Results of the analysis.
    pub analysis: Analysis,
}

pub(crate) fn median(values: &mut [u64]) -> Option<u64> {
    if values.is_empty() {
        return None;
    }
    let middle = values.len() / 2;
    Some(*values.select_nth_unstable(middle).1)
}

/// Requests of one operation by key, in order of time.
fn by_key<K: std::hash::Hash + Eq>(
    log: &Log,
    op: u8,
    key: impl Fn(usize) -> K,
) -> HashMap<K, Vec<usize>> {
    let mut rows: HashMap<K, Vec<usize>> = HashMap::new();
    for i in (0..log.t_ns.len()).filter(|&i| log.op[i] == op) {
        rows.entry(key(i)).or_default().push(i);
    }
    for requests in rows.values_mut() {
        requests.sort_by_key(|&i| log.t_ns[i]);
    }
    rows
}

fn within<'a>(requests: Option<&'a Vec<usize>>, t_ns: &[u64], from: u64, to: u64) -> &'a [usize] {
    let Some(all) = requests else { return &[] };
    let first = all.partition_point(|&i| t_ns[i] < from);
    let end = all.partition_point(|&i| t_ns[i] <= to);
    &all[first..end.max(first)]
}

impl Program {
    /// Analyse a trace and the disk's log of the same run.
    ///
    /// # Errors
    /// The arrays have different lengths, or a file number has no file.
    pub fn new(calls: &Calls, log: &Log, about: &About) -> Result<Program, SimulationError> {
        check(calls, log, about)?;
        let mut program = Program {
            threads: Vec::new(),
            steps: Vec::new(),
            files: about.files.clone(),
            handover_ns: HashMap::new(),
            analysis: Analysis::default(),
        };
        program.take_steps(calls, log);
        program.take_idle(about);
        program.take_flushes_of_places();
        program.take_waits(about);
        program.take_early_writes(log);
        program.analysis.steps = program.steps.len() as u64;
        Ok(program)
    }

    /// Derive the steps of each thread with their costs, and its flushes if the disk logged them.
    fn take_steps(&mut self, calls: &Calls, log: &Log) {
        let reads = by_key(log, 0, |i| (log.tid[i], log.file[i]));
        let writes = by_key(log, 1, |i| log.file[i]);
        let mut threads: HashMap<i64, (Vec<usize>, Vec<usize>)> = HashMap::new();
        for i in 0..calls.t_ns.len() {
            threads.entry(calls.tid[i]).or_default().0.push(i);
        }
        for i in (0..log.t_ns.len()).filter(|&i| log.op[i] == 2) {
            threads.entry(log.tid[i]).or_default().1.push(i);
        }
        let mut tids: Vec<i64> = threads.keys().copied().collect();
        tids.sort_unstable();

        let call_of = |i: usize| {
            let key = (calls.tid[i], calls.file[i]);
            let end = calls.t_ns[i] + calls.latency_ns[i];
            let earlier = calls.t_ns[i].saturating_sub(50_000);
            within(reads.get(&key), &log.t_ns, earlier, end)
        };
        let mut hits: Vec<u64> = (0..calls.t_ns.len())
            .filter(|&i| calls.op[i] == 0 && calls.direct[i] == 0 && call_of(i).is_empty())
            .map(|i| calls.latency_ns[i])
            .collect();
        let hit_ns = median(&mut hits).unwrap_or(0);
        let mut paths: Vec<u64> = (0..calls.t_ns.len())
            .filter(|&i| calls.op[i] == 0)
            .filter_map(|i| match call_of(i) {
                [one] => {
                    let device = log.done_ns[*one] - log.t_ns[*one].min(log.done_ns[*one]);
                    Some(calls.latency_ns[i].saturating_sub(device + hit_ns))
                }
                _ => None,
            })
            .collect();
        let path_ns = median(&mut paths).unwrap_or(0);
        self.analysis.path_ns = path_ns;

        for tid in tids {
            let (mut own, mut flushes) = threads.remove(&tid).unwrap_or_default();
            own.sort_by_key(|&i| calls.t_ns[i]);
            flushes.sort_by_key(|&i| log.t_ns[i]);
            let first = self.steps.len() as u32;
            let mut flushes = flushes.into_iter().peekable();
            let mut end = 0u64;
            let mut add_flush = |steps: &mut Vec<Step>, end: &mut u64, f: usize| {
                let t = log.t_ns[f].max(*end);
                let before = within(writes.get(&log.file[f]), &log.t_ns, *end, t);
                let began = before.first().map_or(t, |&i| log.t_ns[i]);
                let done = log.done_ns[f].max(t);
                steps.push(Step {
                    kind: Kind::Sync,
                    direct: false,
                    file: log.file[f],
                    offset: 0,
                    size: 0,
                    think_ns: began.saturating_sub(*end),
                    own_ns: 0,
                    after: None,
                    takes: None,
                    gives: None,
                    kicks: Vec::new(),
                    began_ns: began,
                    ended_ns: done,
                });
                *end = done;
                self.analysis.syncs += 1;
            };
            for i in own {
                let t = calls.t_ns[i];
                while let Some(f) = flushes.next_if(|&f| log.t_ns[f] < t) {
                    add_flush(&mut self.steps, &mut end, f);
                }
                let latency = calls.latency_ns[i];
                let direct = calls.direct[i] != 0;
                let read = calls.op[i] == 0;
                // a read of pages that were already under way waited as well, without its own request
                let waited = direct || (read && (!call_of(i).is_empty() || latency > 20 * hit_ns));
                self.analysis.missed_reads += u64::from(read && waited);
                self.steps.push(Step {
                    kind: if read { Kind::Read } else { Kind::Write },
                    direct,
                    file: calls.file[i],
                    offset: calls.offset[i],
                    size: calls.size[i],
                    think_ns: if end == 0 { 0 } else { t.saturating_sub(end) },
                    own_ns: if waited { hit_ns.min(latency) } else { latency },
                    after: None,
                    takes: None,
                    gives: None,
                    kicks: Vec::new(),
                    began_ns: t,
                    ended_ns: t + latency,
                });
                end = end.max(t + latency);
            }
            for f in flushes {
                add_flush(&mut self.steps, &mut end, f);
            }
            let end = self.steps.len() as u32;
            self.threads.push(Thread {
                tid,
                first,
                end,
                background: false,
            });
        }
    }

    /// Determine if long gaps are waiting or computing, and which threads are in the background.
    fn take_idle(&mut self, about: &About) {
        let mut all = 0;
        for thread in &mut self.threads {
            let steps = &self.steps[thread.first as usize..thread.end as usize];
            let (Some(begin), Some(end)) = (steps.first(), steps.last()) else {
                continue;
            };
            let gaps = steps.iter().skip(1).map(|s| s.think_ns);
            let long: u64 = gaps.filter(|g| *g > LONG_GAP_NS).sum();
            let span = end.ended_ns - begin.began_ns;
            thread.background = (span - long.min(span)) as f64 <= BACKGROUND_SHARE * span as f64;
            all += long;
        }
        self.analysis.idle = about
            .cpu_ns
            .is_some_and(|cpu| (cpu as f64) < 0.5 * all as f64);
        for thread in &mut self.threads {
            thread.background &= self.analysis.idle;
        }
        self.analysis.background = self.threads.iter().filter(|t| t.background).count() as u64;
    }

    /// Derive dependencies: the first step of a thread, and steps after long gaps if gaps are waiting, wait for the
    /// last completed step of another thread. A step after a gap must follow that one at once, except in a background
    /// thread, which acts on the results of others at any later time.
    fn take_waits(&mut self, about: &About) {
        let mut ends: Vec<(u64, u32)> = self
            .steps
            .iter()
            .enumerate()
            .map(|(i, s)| (s.ended_ns, i as u32))
            .collect();
        ends.sort_unstable();
        for thread in &self.threads {
            let mut inside = false;
            for at in thread.first..thread.end {
                let first = at == thread.first;
                let step = &self.steps[at as usize];
                let long = self.analysis.idle && step.think_ns > LONG_GAP_NS;
                if first || (long && !inside) {
                    let (began, gap) = (step.began_ns, step.think_ns as f64);
                    let n = ends.partition_point(|(end, _)| *end <= began);
                    let latest = ends[..n].last().copied();
                    // the thread's own steps precede it anyway
                    let of_another = latest.filter(|l| l.1 < thread.first || l.1 >= thread.end);
                    let at_once = WAKE_UP_NS.max((gap * WAKE_UP_SHARE) as u64);
                    let waits = of_another
                        .filter(|(end, _)| first || thread.background || began - end <= at_once);
                    let step = &mut self.steps[at as usize];
                    match waits {
                        Some((end, other)) => {
                            step.after = Some((other, began - end));
                            step.think_ns = 0;
                            self.analysis.waits += 1;
                        }
                        _ if first => step.think_ns = began.saturating_sub(about.start_ns),
                        _ => self.analysis.unexplained_ns += step.think_ns,
                    }
                }
                let step = &self.steps[at as usize];
                inside = (inside || step.takes.is_some()) && step.gives.is_none();
            }
        }
    }

    /// Assign write-back that no flush explains: the program requested it if it follows a write at once.
    fn take_early_writes(&mut self, log: &Log) {
        let mut syncs: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
        let mut writes: HashMap<u32, Vec<(u64, u32)>> = HashMap::new();
        for (i, step) in self.steps.iter().enumerate() {
            match step.kind {
                Kind::Sync => syncs
                    .entry(step.file)
                    .or_default()
                    .push((step.began_ns, step.ended_ns)),
                Kind::Write if !step.direct => writes
                    .entry(step.file)
                    .or_default()
                    .push((step.ended_ns, i as u32)),
                _ => {}
            }
        }
        writes.values_mut().for_each(|w| w.sort_unstable());
        for intervals in syncs.values_mut() {
            intervals.sort_unstable();
            // replace each end by the latest one so far, so that one lookup is enough
            let mut latest = 0;
            for (_, to) in intervals {
                latest = latest.max(*to);
                *to = latest;
            }
        }
        for i in (0..log.t_ns.len()).filter(|&i| log.op[i] == 1 && log.tid[i] == 0) {
            let (file, t) = (log.file[i], log.t_ns[i]);
            let synced = syncs.get(&file).is_some_and(|intervals| {
                let n = intervals.partition_point(|(from, _)| *from <= t);
                n > 0 && t <= intervals[n - 1].1
            });
            if synced {
                continue;
            }
            let before = writes.get(&file).and_then(|w| {
                let n = w.partition_point(|(end, _)| *end <= t);
                w[..n].last().copied()
            });
            match before {
                Some((end, step)) if t - end <= SOON_NS => {
                    let kick = (t - end, file, log.offset[i], log.size[i]);
                    self.steps[step as usize].kicks.push(kick);
                    self.analysis.early_writes += 1;
                }
                _ => self.analysis.late_writes += 1,
            }
        }
    }
}

fn check(calls: &Calls, log: &Log, about: &About) -> Result<(), SimulationError> {
    let n = calls.t_ns.len();
    let lengths = [
        calls.latency_ns.len(),
        calls.tid.len(),
        calls.op.len(),
        calls.direct.len(),
        calls.file.len(),
        calls.offset.len(),
        calls.size.len(),
    ];
    let m = log.t_ns.len();
    let logged = [
        log.done_ns.len(),
        log.tid.len(),
        log.op.len(),
        log.file.len(),
        log.offset.len(),
        log.size.len(),
    ];
    if lengths.iter().any(|l| *l != n) || logged.iter().any(|l| *l != m) {
        return Err(SimulationError("the columns differ in length".into()));
    }
    let files = about.files.len();
    let unknown = calls
        .file
        .iter()
        .chain(&log.file)
        .find(|f| **f as usize >= files);
    if let Some(file) = unknown {
        return Err(SimulationError(format!("file {file} of {files} files")));
    }
    if n == 0 && m == 0 {
        return Err(SimulationError("nothing was traced on the disk".into()));
    }
    Ok(())
}
