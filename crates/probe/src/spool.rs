//! Spool in order of start time, with bounded memory.
//!
//! Events are in the spool in the order in which the rings were drained, which is nearly that of their ends. A first
//! pass notes for each part the earliest start in later parts. The second pass sorts each part and emits the events
//! that no later one can precede. Slow events would delay all others, so they are stored separately in sorted runs and
//! merged.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::layout::Event;
use crate::ProbeError;

const RECORD: usize = std::mem::size_of::<Event>();
/// Events read and emitted at a time.
pub const PART: usize = 1 << 20;
/// Latency above which events are stored separately [ns].
const LATE_NS: u64 = 100_000_000;

/// Reader of a spool in order of time.
pub struct Spool {
    file: File,
    name: String,
    events: u64,
    part: usize,
    earliest: VecDeque<u64>,
    window: Vec<Event>,
    late: Late,
    read: u64,
    emitted: u64,
}

impl Spool {
    /// Open a spool and read it once. A torn last record is ignored.
    pub fn open(path: &Path) -> Result<Self, ProbeError> {
        Self::with_part(path, PART)
    }

    fn with_part(path: &Path, part: usize) -> Result<Self, ProbeError> {
        let name = path.display().to_string();
        let broken = |error| ProbeError::io(name.clone())(error);
        let mut file = File::open(path).map_err(broken)?;
        let events = file.metadata().map_err(broken)?.len() / RECORD as u64;
        let mut late = Late::new(path.with_extension("late"), part);
        let mut minima = Vec::new();
        let mut buffer = Vec::new();
        let mut remaining = events;
        while remaining > 0 {
            let count = remaining.min(part as u64) as usize;
            read_events(&mut file, &mut buffer, count).map_err(broken)?;
            remaining -= count as u64;
            let mut earliest = u64::MAX;
            for event in &buffer {
                if event.latency_ns > LATE_NS {
                    late.put_aside(*event)?;
                } else {
                    earliest = earliest.min(event.t_ns);
                }
            }
            minima.push(earliest);
        }
        late.sorted()?;
        file.seek(SeekFrom::Start(0)).map_err(broken)?;
        // for each part, the earliest start in later parts
        let mut after = u64::MAX;
        let mut earliest = VecDeque::with_capacity(minima.len());
        for &minimum in minima.iter().rev() {
            earliest.push_front(after);
            after = after.min(minimum);
        }
        Ok(Self {
            file,
            name,
            events,
            part,
            earliest,
            window: Vec::new(),
            late,
            read: 0,
            emitted: 0,
        })
    }

    /// Number of complete records in the spool.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Events emitted so far.
    pub fn emitted(&self) -> u64 {
        self.emitted
    }

    /// Next events in order of their start, about [`PART`] of them; empty at the end.
    pub fn next_part(&mut self) -> Result<Vec<Event>, ProbeError> {
        let mut buffer = Vec::new();
        while let Some(bound) = self.earliest.pop_front() {
            let count = (self.events - self.read).min(self.part as u64);
            self.read += count;
            read_events(&mut self.file, &mut buffer, count as usize)
                .map_err(ProbeError::io(self.name.clone()))?;
            let timely = buffer.iter().filter(|event| event.latency_ns <= LATE_NS);
            self.window.extend(timely);
            self.window.sort_by_key(|event| event.t_ns);
            let ready = self.window.partition_point(|event| event.t_ns <= bound);
            if ready == 0 && self.late.first_ns() > bound {
                continue;
            }
            let rest = self.window.split_off(ready);
            let timely = std::mem::replace(&mut self.window, rest);
            let part = self.late.merged(timely, bound)?;
            if !part.is_empty() {
                self.emitted += part.len() as u64;
                return Ok(part);
            }
        }
        // only slow events may remain
        let rest = self
            .late
            .merged(std::mem::take(&mut self.window), u64::MAX)?;
        self.emitted += rest.len() as u64;
        Ok(rest)
    }
}

/// Slow events, in memory or, if there are many, as sorted runs in a temporary file.
struct Late {
    path: PathBuf,
    most: usize,
    waiting: Vec<Event>,
    runs: Vec<Run>,
    file: Option<File>,
    written: u64,
}

/// A sorted run: the part in memory, and the rest in the file.
struct Run {
    ready: VecDeque<Event>,
    source: Option<BufReader<std::io::Take<File>>>,
}

impl Late {
    fn new(path: PathBuf, most: usize) -> Self {
        Self {
            path,
            most,
            waiting: Vec::new(),
            runs: Vec::new(),
            file: None,
            written: 0,
        }
    }

    fn put_aside(&mut self, event: Event) -> Result<(), ProbeError> {
        self.waiting.push(event);
        if self.waiting.len() < self.most {
            return Ok(());
        }
        let name = self.path.display().to_string();
        let broken = |error| ProbeError::io(name.clone())(error);
        self.waiting.sort_by_key(|event| event.t_ns);
        if self.file.is_none() {
            self.file = Some(File::create(&self.path).map_err(broken)?);
        }
        let file = self.file.as_mut().expect("made just now");
        file.write_all(as_bytes(&self.waiting)).map_err(broken)?;
        let mut source = File::open(&self.path).map_err(broken)?;
        source
            .seek(SeekFrom::Start(self.written * RECORD as u64))
            .map_err(broken)?;
        let bytes = (self.waiting.len() * RECORD) as u64;
        self.runs.push(Run {
            ready: VecDeque::new(),
            source: Some(BufReader::with_capacity(1 << 16, source.take(bytes))),
        });
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    fn sorted(&mut self) -> Result<(), ProbeError> {
        self.waiting.sort_by_key(|event| event.t_ns);
        self.runs.push(Run {
            ready: std::mem::take(&mut self.waiting).into(),
            source: None,
        });
        if self.file.is_some() {
            // the runs have it open; without a name it cannot be left behind
            let _ = std::fs::remove_file(&self.path);
        }
        for run in &mut self.runs {
            run.fill().map_err(ProbeError::io("put aside"))?;
        }
        Ok(())
    }

    fn first_ns(&self) -> u64 {
        self.runs
            .iter()
            .filter_map(|run| run.ready.front())
            .map(|event| event.t_ns)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Merge `timely` with the slow events that precede it or `bound`; at the end with all of them.
    fn merged(&mut self, timely: Vec<Event>, bound: u64) -> Result<Vec<Event>, ProbeError> {
        if self.first_ns() > bound.min(u64::MAX - 1) {
            return Ok(timely);
        }
        let mut merged = Vec::with_capacity(timely.len());
        let mut next = timely.into_iter().peekable();
        loop {
            let first = self.first_ns();
            let own = next.peek().map(|event| event.t_ns);
            if first <= bound && first != u64::MAX && own.is_none_or(|own| first < own) {
                for run in &mut self.runs {
                    if run.ready.front().is_some_and(|event| event.t_ns == first) {
                        merged.extend(run.ready.pop_front());
                        run.fill().map_err(ProbeError::io("put aside"))?;
                        break;
                    }
                }
            } else if let Some(event) = next.next() {
                merged.push(event);
            } else {
                return Ok(merged);
            }
        }
    }
}

impl Run {
    fn fill(&mut self) -> std::io::Result<()> {
        let Some(source) = self.source.as_mut().filter(|_| self.ready.is_empty()) else {
            return Ok(());
        };
        let available = (source.get_ref().limit() as usize + source.buffer().len()) / RECORD;
        let count = available.min(4096);
        if count == 0 {
            self.source = None;
            return Ok(());
        }
        let mut buffer = Vec::new();
        read_events(source, &mut buffer, count)?;
        self.ready = buffer.into();
        Ok(())
    }
}

fn read_events(
    source: &mut impl Read,
    buffer: &mut Vec<Event>,
    count: usize,
) -> std::io::Result<()> {
    buffer.clear();
    buffer.resize(count, Event::default());
    // SAFETY: events are plain numbers, of which any bytes are a value.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), count * RECORD) };
    source.read_exact(bytes)
}

fn as_bytes(events: &[Event]) -> &[u8] {
    // SAFETY: plain numbers without padding.
    unsafe {
        std::slice::from_raw_parts(events.as_ptr().cast::<u8>(), std::mem::size_of_val(events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spool(name: &str, events: &[Event], torn: usize) -> PathBuf {
        let path = std::env::temp_dir().join(format!("penstock-{}-{name}", std::process::id()));
        let mut bytes = as_bytes(events).to_vec();
        bytes.extend(vec![7; torn]);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn read(path: &Path, part: usize) -> Vec<(u64, u32)> {
        let mut spool = Spool::with_part(path, part).unwrap();
        let mut records = Vec::new();
        let mut most = 0;
        loop {
            let next = spool.next_part().unwrap();
            if next.is_empty() {
                break;
            }
            most = most.max(next.len());
            records.extend(next.iter().map(|event| (event.t_ns, event.tid)));
        }
        assert_eq!(spool.emitted, spool.events());
        assert!(most <= 4 * part, "{most} at once");
        std::fs::remove_file(path).unwrap();
        records
    }

    /// Events of `n` threads in the order of two rings drained alternately; some are slow.
    fn events(n: u64, late_every: u64) -> Vec<Event> {
        let mut ends: Vec<Event> = (0..n)
            .map(|i| Event {
                t_ns: 1000 + i * 700 % (n * 700),
                latency_ns: if i % late_every == 5 {
                    LATE_NS + i * 977 % 500_000_000
                } else {
                    200 + i * 7919 % 90_000
                },
                tid: (i % 2) as u32,
                ..Event::default()
            })
            .collect();
        ends.sort_by_key(|event| event.t_ns + event.latency_ns);
        // drained every 50 events, one ring after the other
        let mut spooled = Vec::new();
        for part in ends.chunks(50) {
            spooled.extend(part.iter().filter(|event| event.tid == 0));
            spooled.extend(part.iter().filter(|event| event.tid == 1));
        }
        spooled
    }

    #[test]
    fn events_are_ordered_by_start_time() {
        for (n, late_every) in [
            (0, 10),
            (1, 10),
            (999, 10),
            (10_007, 10),
            (10_007, 9_999_999),
        ] {
            let all = events(n, late_every);
            let mut truth: Vec<(u64, u32)> = all.iter().map(|e| (e.t_ns, e.tid)).collect();
            truth.sort_unstable();
            let path = spool(&format!("order-{n}-{late_every}"), &all, 0);
            assert_eq!(
                read(&path, 256),
                truth,
                "{n} events, one in {late_every} late"
            );
        }
    }

    #[test]
    fn torn_records_are_skipped() {
        let all = events(1000, 10);
        let path = spool("torn", &all, 47);
        assert_eq!(read(&path, 64).len(), 1000);
    }
}
