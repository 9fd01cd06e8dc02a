//! Mode `pattern`: verdicts and the table of epochs, from the records of the tracing programs.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use penstock_pattern::{
    classify_epochs, judge_epochs, judge_together, Epoch, Epochs, Starts, ThreadVerdict, Verdict,
    MOST_EPOCHS,
};
use penstock_probe::layout::{kind, Stream, SAMPLES};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde::Serialize;

use crate::singles::Singles;

/// Largest number of distinct blocks counted per stream.
const BLOCKS: usize = 1 << 13;
/// Samples are blocks with a hash below this: one in four.
const SAMPLED: u64 = 1 << 62;

/// Number and start of a thread. The start is 0 for a call without a stream of the first thread with its number.
type Thread = (u32, u64);

/// Streams of one kind of one file, with their totals.
#[derive(Default)]
struct Group {
    threads: BTreeMap<Thread, Epochs>,
    calls: u64,
    errors: u64,
    done_bytes: u64,
    sampled: u64,
    sampled_ns: u64,
    first_ns: u64,
    last_ns: u64,
}

/// One column of the table: its name and its value for a row.
type Column = (&'static str, fn(&Stream) -> i64);

const COLUMNS: [Column; 27] = [
    ("file_id", |s| i64::from(s.file_id)),
    ("tid", |s| i64::from(s.tid)),
    ("pid", |s| i64::from(s.pid)),
    ("kind", |s| i64::from(s.kind)),
    ("first_ns", |s| s.first_ns as i64),
    ("last_ns", |s| s.last_ns.max(s.first_ns) as i64),
    ("requests", |s| i64::from(s.requests)),
    ("errors", |s| i64::from(s.errors)),
    ("done_bytes", |s| s.done_bytes as i64),
    ("steps", |s| i64::from(s.steps)),
    ("consecutive", |s| i64::from(s.zero)),
    ("near", |s| i64::from(s.near)),
    ("forward", |s| i64::from(s.forward)),
    ("reverse", |s| i64::from(s.reverse)),
    ("higher", |s| i64::from(s.higher)),
    ("cycle_1", |s| i64::from(s.cycle[0])),
    ("cycle_2", |s| i64::from(s.cycle[1])),
    ("cycle_3", |s| i64::from(s.cycle[2])),
    ("cycle_4", |s| i64::from(s.cycle[3])),
    ("chained", |s| i64::from(s.chained)),
    ("chains", |s| i64::from(s.chains)),
    ("open_sum", |s| s.open_sum as i64),
    ("lowest_bytes", |s| s.lowest),
    ("highest_bytes", |s| s.highest),
    ("least_size_bytes", |s| i64::from(s.least_size)),
    ("most_size_bytes", |s| i64::from(s.most_size)),
    ("sampled_ns", |s| s.sampled_ns as i64),
];

/// Classify the spool of mode `pattern`. Return (JSON like that of `Judge.verdicts` with the sampled calls and their
/// latency, columns of the table `epochs` as bytes of int64, number of rows). An incomplete last record is skipped.
/// `singles` is the file of calls without a stream in the kernel. `threads` are (tid, start [ns]) of threads, to
/// distinguish those with the same number.
#[pyfunction]
#[pyo3(signature = (path, singles=None, threads=Vec::new()))]
fn classify_spool(
    py: Python<'_>,
    path: PathBuf,
    singles: Option<PathBuf>,
    threads: Vec<(u32, u64)>,
) -> PyResult<(String, Bound<'_, PyDict>, usize)> {
    let (verdicts, rows) = py
        .detach(|| read(&path, singles.as_deref(), &Starts::new(threads)))
        .map_err(|error| PyRuntimeError::new_err(format!("{}: {error}", path.display())))?;
    let columns = PyDict::new(py);
    for (name, of) in COLUMNS {
        let values: Vec<u8> = rows.iter().flat_map(|s| of(s).to_le_bytes()).collect();
        columns.set_item(name, PyBytes::new(py, &values))?;
    }
    Ok((verdicts, columns, rows.len()))
}

/// Pass each epoch of a spool with its samples to `take`. An incomplete last record is skipped.
fn each_epoch(path: &Path, mut take: impl FnMut(&Stream, &[u32])) -> std::io::Result<()> {
    const HEAD: usize = std::mem::size_of::<Stream>();
    let mut source = BufReader::with_capacity(1 << 20, std::fs::File::open(path)?);
    let (mut head, mut bytes) = ([0u8; HEAD], [0u8; 4 * SAMPLES]);
    let mut samples: Vec<u32> = Vec::with_capacity(SAMPLES);
    while source.read_exact(&mut head).is_ok() {
        // SAFETY: the record is as long as the structure, which has only plain numbers.
        let stream: Stream = unsafe { std::ptr::read_unaligned(head.as_ptr().cast()) };
        let count = (stream.samples as usize).min(SAMPLES);
        if source.read_exact(&mut bytes[..4 * count]).is_err() {
            break;
        }
        let each = bytes[..4 * count].chunks_exact(4);
        samples.clear();
        samples.extend(each.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        if stream.file_id > 0 && stream.kind < 2 * kind::JOINT {
            take(&stream, &samples);
        }
    }
    Ok(())
}

/// Reads and writes of one thread on one file as one sequence, from the time when it did both.
struct Joint {
    /// Kind of the stream that was copied to start the joint stream.
    first_kind: u32,
    /// Begin of the first joint epoch, nanoseconds.
    since_ns: u64,
    epochs: Epochs,
}

/// Joint sequences by file, kind of the reads, and thread.
type Joints = BTreeMap<(u32, u32, Thread), Joint>;

fn read(
    path: &Path,
    singles: Option<&Path>,
    starts: &Starts,
) -> std::io::Result<(String, Vec<Stream>)> {
    let mut groups: BTreeMap<(u32, u32), Group> = BTreeMap::new();
    let mut rows = Vec::new();
    let mut joints = Joints::new();
    each_epoch(path, |stream, _| {
        if stream.is_joint() && stream.requests > 0 {
            let first_kind = stream.kind - kind::JOINT;
            let place = (stream.file_id, first_kind & !1, thread_of(stream));
            let joint = joints.entry(place).or_insert_with(|| Joint {
                first_kind,
                since_ns: u64::MAX,
                epochs: Epochs::new(BLOCKS),
            });
            joint.since_ns = joint.since_ns.min(stream.first_ns);
        }
    })?;
    each_epoch(path, |stream, samples| {
        let hashes = samples.iter().copied();
        let place = (stream.file_id, stream.kind & 2, thread_of(stream));
        if let Some(joint) = joints.get_mut(&place) {
            let before = stream.kind == joint.first_kind && stream.first_ns < joint.since_ns;
            if stream.is_joint() || before {
                push(&mut joint.epochs, stream, hashes.clone());
            }
        }
        if stream.is_joint() {
            return;
        }
        let group = groups.entry((stream.file_id, stream.kind)).or_default();
        group.add(stream, hashes);
        if stream.requests > 0 {
            rows.push(*stream);
        }
    })?;
    if let Some(path) = singles {
        Singles::read(path, starts)?.each(|stream, samples| {
            let group = groups.entry((stream.file_id, stream.kind)).or_default();
            group.add(stream, samples.iter().copied());
            if stream.requests > 0 {
                rows.push(*stream);
            }
        });
    }
    rows.sort_by_key(|s| (s.first_ns, s.tid));
    // reads and writes together, by the key of the reads
    let mut both: BTreeMap<(u32, u32), Verdict> = BTreeMap::new();
    for (&(file_id, kind), group) in &groups {
        let writes = groups.get(&(file_id, kind + 1));
        if let (true, Some(writes)) = (kind % 2 == 0, writes) {
            if !group.threads.is_empty() && !writes.threads.is_empty() {
                both.insert(
                    (file_id, kind),
                    in_one_order(file_id, kind, group, writes, &joints),
                );
            }
        }
    }
    let judged = groups.into_iter().map(|((file_id, kind), group)| {
        let both = both.get(&(file_id, kind & !1)).cloned();
        group.judged(file_id, kind, both)
    });
    let mut text = String::from("[");
    for row in judged {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&serde_json::to_string(&row)?);
    }
    text.push(']');
    Ok((text, rows))
}

fn thread_of(stream: &Stream) -> Thread {
    (stream.tid, stream.started_ns)
}

fn push(epochs: &mut Epochs, stream: &Stream, hashes: impl Iterator<Item = u32> + Clone) {
    let looked = u64::from(stream.looked);
    epochs.push_sampled(epoch(stream), looked, SAMPLED, hashes, MOST_EPOCHS);
}

/// Verdict on reads and writes together. For a thread that does both it is based on their joint order, if the
/// kernel counted that.
fn in_one_order(
    file_id: u32,
    kind: u32,
    reads: &Group,
    writes: &Group,
    joints: &Joints,
) -> Verdict {
    let mut sequences: Vec<&Epochs> = Vec::new();
    for (thread, epochs) in &reads.threads {
        match joints.get(&(file_id, kind, *thread)) {
            Some(joint) => sequences.push(&joint.epochs),
            None => sequences.push(epochs),
        }
    }
    let counted = |thread: &Thread| {
        reads.threads.contains_key(thread) && joints.contains_key(&(file_id, kind, *thread))
    };
    let uncounted = writes.threads.iter().filter(|(thread, _)| !counted(thread));
    sequences.extend(uncounted.map(|(_, epochs)| epochs));
    match sequences.as_slice() {
        [one] => classify_epochs(one),
        several => judge_together(several),
    }
}

impl Group {
    fn add(&mut self, stream: &Stream, hashes: impl Iterator<Item = u32> + Clone) {
        self.calls += u64::from(stream.requests + stream.errors + stream.empty);
        self.errors += u64::from(stream.errors);
        self.done_bytes += stream.done_bytes;
        self.sampled += u64::from(stream.sampled);
        self.sampled_ns += stream.sampled_ns;
        if stream.requests == 0 {
            return;
        }
        if self.first_ns == 0 || stream.first_ns < self.first_ns {
            self.first_ns = stream.first_ns;
        }
        self.last_ns = self.last_ns.max(stream.last_ns);
        let epochs = self
            .threads
            .entry(thread_of(stream))
            .or_insert_with(|| Epochs::new(BLOCKS));
        push(epochs, stream, hashes);
    }

    fn judged(self, file_id: u32, stream_kind: u32, both: Option<Verdict>) -> Judged {
        let (starts, threads): (Vec<u64>, Vec<_>) = (self.threads.into_iter())
            .map(|((tid, started_ns), epochs)| (started_ns, (tid, epochs)))
            .unzip();
        let mut judgement = judge_epochs(&threads);
        // sorted by number and start: later threads with the same number also need their start
        for at in 1..threads.len() {
            if threads[at].0 == threads[at - 1].0 {
                judgement.threads[at].started_ns = Some(starts[at]);
            }
        }
        let write = matches!(stream_kind, kind::WRITE | kind::FAULT_WRITE);
        let (only_tid, threads) = match <[ThreadVerdict; 1]>::try_from(judgement.threads) {
            Ok([one]) => (Some(one.tid), Vec::new()),
            Err(several) => (None, several),
        };
        Judged {
            file_id,
            direction: if write { "write" } else { "read" },
            basis: if stream_kind >= kind::FAULT_READ {
                "faults"
            } else {
                "calls"
            },
            phase: None,
            calls: self.calls,
            errors: self.errors,
            done_bytes: self.done_bytes,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            sampled: self.sampled,
            sampled_ns: self.sampled_ns,
            together: judgement.together,
            only_tid,
            threads,
            both,
        }
    }
}

/// One row of the result, serialized for Python.
#[derive(Serialize)]
struct Judged {
    file_id: u32,
    direction: &'static str,
    basis: &'static str,
    phase: Option<u32>,
    calls: u64,
    errors: u64,
    done_bytes: u64,
    first_ns: u64,
    last_ns: u64,
    sampled: u64,
    sampled_ns: u64,
    together: Verdict,
    /// Number of the thread if there is only one. Its verdict is `together`, and `threads` is empty.
    only_tid: Option<u32>,
    threads: Vec<ThreadVerdict>,
    /// Verdict on reads and writes together, if there are both.
    both: Option<Verdict>,
}

fn epoch(stream: &Stream) -> Epoch {
    let mut epoch = Epoch {
        first_ns: stream.first_ns,
        last_ns: stream.last_ns.max(stream.first_ns),
        requests: u64::from(stream.requests),
        bytes: stream.done_bytes,
        steps: u64::from(stream.steps),
        zero: u64::from(stream.zero),
        near: u64::from(stream.near),
        forward: u64::from(stream.forward),
        reverse: u64::from(stream.reverse),
        higher: u64::from(stream.higher),
        cycle: stream.cycle.map(u64::from),
        distances: stream.distances,
        chained: u64::from(stream.chained),
        chains: u64::from(stream.chains),
        open_sum: stream.open_sum,
        longest: u64::from(stream.longest),
        low: stream.lowest,
        high: stream.highest,
        one_size: if stream.least_size == stream.most_size {
            u64::from(stream.least_size)
        } else {
            0
        },
        ..Epoch::default()
    };
    for (class, &count) in epoch.size_class.iter_mut().zip(&stream.size_class) {
        *class = u64::from(count);
    }
    epoch
}

/// Add the functions of this file to `penstock._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(classify_spool, module)?)
}
