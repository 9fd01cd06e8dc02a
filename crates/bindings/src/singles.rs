//! Mode `pattern`: calls without a stream in the kernel, one record each, combined into epochs as in the kernel.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;

use penstock_pattern::{block_hash, epoch_requests, Counter, Epoch, Starts};
use penstock_probe::layout::{kind, Event, Stream, FAULT_AROUND, FAULT_AROUND_WRITE, SAMPLES};

/// Blocks with a hash below this are sampled: one in four, as in the kernel.
const SAMPLED: u64 = 1 << 62;
const FAULT_READ: u8 = 13;
const FAULT_WRITE: u8 = 45;
const FIRST_WRITE: u8 = 32;
const FIRST_SYNC: u8 = 64;
const FAULT_PRIVATE: u8 = 4;

/// Calls of one thread on one file in one direction since its last epoch.
#[derive(Default)]
struct Single {
    counter: Option<Box<Counter>>,
    waiting: Vec<(i64, u32, u64)>,
    seen: u64,
    pid: u32,
    errors: u32,
    empty: u32,
    sampled: u32,
    sampled_ns: u64,
    last_ns: u64,
    /// Completed epochs with their samples.
    ended: Vec<(Stream, Vec<u32>)>,
}

/// File, kind, number of the thread, start of the thread. The start is 0 for the first thread with its number.
type Key = (u32, u32, u32, u64);

/// All calls by file, kind and thread.
pub(crate) struct Singles(BTreeMap<Key, Single>);

impl Singles {
    /// Read the daemon's records, without an incomplete last one. `starts` distinguishes threads with the same number.
    pub fn read(path: &Path, starts: &Starts) -> std::io::Result<Self> {
        const SIZE: usize = std::mem::size_of::<Event>();
        let mut source = BufReader::with_capacity(1 << 20, std::fs::File::open(path)?);
        let mut all: BTreeMap<_, Single> = BTreeMap::new();
        let mut record = [0u8; SIZE];
        while source.read_exact(&mut record).is_ok() {
            // SAFETY: the record is as long as the structure, which has only plain numbers.
            let event: Event = unsafe { std::ptr::read_unaligned(record.as_ptr().cast()) };
            if event.op >= FIRST_SYNC || event.file_id == 0 {
                continue;
            }
            let started_ns = starts.started_ns(event.tid, event.t_ns).unwrap_or(0);
            let key = (event.file_id, kind_of(event.op), event.tid, started_ns);
            all.entry(key).or_default().push(&event, key);
        }
        Ok(Self(all))
    }

    /// Pass each epoch with its samples to `take`, the epochs of a sequence in their order.
    pub fn each(self, mut take: impl FnMut(&Stream, &[u32])) {
        for (key, mut single) in self.0 {
            single.end(key);
            for (stream, samples) in &single.ended {
                take(stream, samples);
            }
        }
    }
}

fn kind_of(op: u8) -> u32 {
    match op {
        FAULT_READ | FAULT_AROUND => kind::FAULT_READ,
        FAULT_WRITE | FAULT_AROUND_WRITE => kind::FAULT_WRITE,
        FIRST_WRITE.. => kind::WRITE,
        _ => kind::READ,
    }
}

impl Single {
    /// Like `count` in bpf/epochs.h.
    fn push(&mut self, event: &Event, key: Key) {
        self.pid = event.pid;
        self.last_ns = event.t_ns + event.latency_ns;
        if event.latency_ns > 0 {
            self.sampled += 1;
            self.sampled_ns += event.latency_ns;
        }
        if event.done_bytes < 0 {
            self.errors += 1;
            return;
        }
        let private = event.op == FAULT_WRITE && event.flags & FAULT_PRIVATE != 0;
        if event.done_bytes == 0 || private {
            self.empty += 1;
            return;
        }
        let size = event.done_bytes.unsigned_abs();
        if matches!(key.1, kind::FAULT_READ | kind::FAULT_WRITE) {
            // a fault and the range mapped around its page are one access
            if let Some((first, before, _)) = self.waiting.last_mut() {
                let end = event.offset_bytes + i64::from(size);
                let before_end = *first + i64::from(*before);
                if event.offset_bytes >= *first && end <= before_end {
                    self.empty += 1;
                    return;
                }
                if event.offset_bytes <= *first && end >= before_end {
                    *before = u32::try_from(end - *first).unwrap_or(*before);
                    self.empty += 1;
                    return;
                }
            }
        }
        self.seen += 1;
        self.waiting.push((event.offset_bytes, size, event.t_ns));
        if self.waiting.len() as u64 >= epoch_requests(self.seen) {
            self.end(key);
        }
    }

    /// Complete the current epoch.
    fn end(&mut self, (file_id, stream_kind, tid, started_ns): Key) {
        if self.waiting.is_empty() && self.errors + self.empty == 0 {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let counter = self
            .counter
            .get_or_insert_with(|| Box::new(Counter::as_in_kernel()));
        let (mut samples, mut looked) = (Vec::new(), 0);
        for &(offset, size, t_ns) in &waiting {
            let jumped = counter.push(offset, i64::from(size), t_ns);
            if !jumped || samples.len() == SAMPLES {
                continue;
            }
            looked += 1;
            let hash = block_hash(offset, i64::from(size));
            if hash < SAMPLED {
                samples.push((hash >> 32) as u32);
            }
        }
        let sizes = || waiting.iter().map(|request| request.1);
        let stream = Stream {
            file_id,
            tid,
            pid: self.pid,
            kind: stream_kind,
            started_ns,
            errors: std::mem::take(&mut self.errors),
            empty: std::mem::take(&mut self.empty),
            sampled: std::mem::take(&mut self.sampled),
            sampled_ns: std::mem::take(&mut self.sampled_ns),
            last_ns: self.last_ns,
            least_size: sizes().min().unwrap_or(0),
            most_size: sizes().max().unwrap_or(0),
            samples: samples.len() as u32,
            looked,
            ..of_epoch(&counter.cut())
        };
        self.ended.push((stream, samples));
    }
}

/// Copy the counts that both structures have.
fn of_epoch(epoch: &Epoch) -> Stream {
    // SAFETY: the structure has only plain numbers, for which zero is valid.
    let none: Stream = unsafe { std::mem::zeroed() };
    let mut stream = Stream {
        requests: epoch.requests as u32,
        steps: epoch.steps as u32,
        zero: epoch.zero as u32,
        near: epoch.near as u32,
        forward: epoch.forward as u32,
        reverse: epoch.reverse as u32,
        higher: epoch.higher as u32,
        cycle: epoch.cycle.map(|n| n as u32),
        chained: epoch.chained as u32,
        chains: epoch.chains as u32,
        longest: epoch.longest as u32,
        open_sum: epoch.open_sum,
        done_bytes: epoch.bytes,
        first_ns: epoch.first_ns,
        lowest: epoch.low,
        highest: epoch.high,
        distances: epoch.distances,
        ..none
    };
    for (class, &count) in stream.size_class.iter_mut().zip(&epoch.size_class) {
        *class = count as u32;
    }
    stream
}
