//! Choice of the files whose calls are recorded individually, renewed during the recording.
//!
//! The smallest set of files that covers most requests (or bytes) of the last interval is hot: its events are stored.
//! Calls on the other (cold) files are counted in the kernel, as in mode `pattern`. A new file is hot until the next
//! decision. Nothing is lost: the counts are in the streams.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde_json::json;

use crate::layout::{Event, Stream, FAULT_AROUND, FAULT_AROUND_WRITE};
use crate::mapped::Mapped;
use crate::sink::Sink;
use crate::ProbeError;

/// Words of the bitmap, 64 files each. Files with larger numbers are always hot.
pub(crate) const COLD_WORDS: usize = 16_384;
/// Upper bound of file numbers (`files` in `bpf/maps.h` has fewer entries); higher numbers mean no file.
pub(crate) const MOST_FILES: u32 = 1 << 24;
/// First operation that is neither a read nor a write. A range mapped around a fault is not a request either.
const FIRST_SYNC: u8 = 64;

/// Measure by which files are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Number of reads and writes.
    #[default]
    Requests,
    /// Bytes transferred.
    Bytes,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bytes => "bytes",
        }
    }
}

/// When and how to decide.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default)]
pub struct Hot {
    /// The measure.
    pub by: By,
    /// Share of the measure that hot files are to cover.
    pub share: f64,
    /// Time until the first decision, unless `first_requests` come earlier.
    pub first_s: f64,
    /// Number of requests until the first decision, unless `first_s` passes earlier.
    pub first_requests: u64,
    /// Time between later decisions.
    pub every_s: f64,
}

impl Default for Hot {
    fn default() -> Self {
        Self {
            by: By::Requests,
            share: 0.9,
            first_s: 5.0,
            first_requests: 100_000,
            every_s: 10.0,
        }
    }
}

/// Requests and bytes of one file in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub requests: u64,
    pub bytes: u64,
}

impl Tally {
    fn by(&self, measure: By) -> u64 {
        match measure {
            By::Requests => self.requests,
            By::Bytes => self.bytes,
        }
    }
}

/// Counts of one stream: its ended epochs, and the total that earlier decisions used.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    handed_over: Tally,
    before: Tally,
}

fn key_of(stream: &Stream) -> (u32, u32, u64, u32) {
    (stream.file_id, stream.tid, stream.started_ns, stream.kind)
}

/// Counts of an epoch, current or ended.
fn tally_of(stream: &Stream) -> Tally {
    Tally {
        requests: u64::from(stream.requests) + u64::from(stream.errors) + u64::from(stream.empty),
        bytes: stream.done_bytes,
    }
}

/// Smallest set of files whose tallies sum to at least `share` of the total. Ties are resolved by file number.
pub(crate) fn smallest_set(tallies: &[Tally], by: By, share: f64) -> Vec<usize> {
    let total: u64 = tallies.iter().map(|tally| tally.by(by)).sum();
    let mut order: Vec<usize> = (0..tallies.len())
        .filter(|&file| tallies[file].by(by) > 0)
        .collect();
    order.sort_by_key(|&file| (std::cmp::Reverse(tallies[file].by(by)), file));
    let mut covered = 0;
    let enough = order.iter().position(|&file| {
        covered += tallies[file].by(by);
        covered as f64 >= share * total as f64
    });
    order.truncate(enough.map_or(0, |last| last + 1));
    order
}

/// State and log of the choice during one recording.
pub(crate) struct Chooser {
    settings: Hot,
    log: Sink,
    tallies: Vec<Tally>,
    /// Key: file, thread (number and start) and kind of stream.
    counted: HashMap<(u32, u32, u64, u32), Counted>,
    requests: u64,
    since_ns: u64,
    cold: HashSet<usize>,
    decisions: u64,
}

impl Chooser {
    pub fn new(settings: Hot, log: &Path, now_ns: u64) -> Result<Self, ProbeError> {
        Ok(Self {
            settings,
            log: Sink::create(log)?,
            tallies: Vec::new(),
            counted: HashMap::new(),
            requests: 0,
            since_ns: now_ns,
            cold: HashSet::new(),
            decisions: 0,
        })
    }

    /// Add records on their way into the spool.
    pub fn note(&mut self, records: &[u8]) {
        for bytes in records.chunks_exact(std::mem::size_of::<Event>()) {
            // SAFETY: as long as the structure, which is plain numbers.
            let event: Event = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            if event.op >= FIRST_SYNC || matches!(event.op, FAULT_AROUND | FAULT_AROUND_WRITE) {
                continue;
            }
            let Some(tally) = self.tally(event.file_id) else {
                continue;
            };
            tally.requests += 1;
            tally.bytes += u64::try_from(event.done_bytes).unwrap_or(0);
            self.requests += 1;
        }
    }

    /// Add an ended epoch of a stream.
    pub fn note_epoch(&mut self, epoch: &[u8]) {
        if epoch.len() < std::mem::size_of::<Stream>() {
            return;
        }
        // SAFETY: at least as long as the structure, which is plain numbers.
        let stream: Stream = unsafe { std::ptr::read_unaligned(epoch.as_ptr().cast()) };
        if stream.is_joint() {
            return;
        }
        let ended = tally_of(&stream);
        let counted = self.counted.entry(key_of(&stream)).or_default();
        counted.handed_over.requests += ended.requests;
        counted.handed_over.bytes += ended.bytes;
    }

    /// Tally of a file; None if no file can have the number.
    fn tally(&mut self, number: u32) -> Option<&mut Tally> {
        if number >= MOST_FILES {
            return None;
        }
        let file = number as usize;
        if file >= self.tallies.len() {
            self.tallies.resize(file + 1, Tally::default());
        }
        Some(&mut self.tallies[file])
    }

    fn due(&self, now_ns: u64) -> bool {
        let waited_s = now_ns.saturating_sub(self.since_ns) as f64 / 1e9;
        if self.decisions == 0 {
            waited_s >= self.settings.first_s || self.requests >= self.settings.first_requests
        } else {
            waited_s >= self.settings.every_s
        }
    }

    /// Decide if a decision is due. `streams` are those in use.
    pub fn look(&mut self, now_ns: u64, streams: impl Iterator<Item = Stream>, cold: &Mapped<u64>) {
        if !self.due(now_ns) {
            return;
        }
        for stream in streams.filter(|stream| !stream.is_joint()) {
            let counted = self.counted.entry(key_of(&stream)).or_default();
            let under_way = tally_of(&stream);
            let (requests, bytes) = (
                counted.handed_over.requests + under_way.requests,
                counted.handed_over.bytes + under_way.bytes,
            );
            // an epoch may end between the poll of the ring and this check: it is counted the next time
            let more = Tally {
                requests: requests.saturating_sub(counted.before.requests),
                bytes: bytes.saturating_sub(counted.before.bytes),
            };
            counted.before.requests += more.requests;
            counted.before.bytes += more.bytes;
            if let Some(tally) = self.tally(stream.file_id) {
                tally.requests += more.requests;
                tally.bytes += more.bytes;
            }
        }
        self.decide(now_ns);
        for word in 0..COLD_WORDS {
            let bits = (0..64).filter(|bit| self.cold.contains(&(64 * word + bit)));
            let value = bits.fold(0, |sum, bit| sum | 1u64 << bit);
            // SAFETY: an aligned u64 in a mapping that outlives this reference.
            unsafe { AtomicU64::from_ptr(cold.at(word)) }.store(value, Ordering::Relaxed);
        }
    }

    /// Decide by the tallies since the last decision, log the decision and begin a new interval.
    fn decide(&mut self, now_ns: u64) {
        let window_ns = now_ns - std::mem::replace(&mut self.since_ns, now_ns);
        let last = self.tallies.len();
        let tallies = std::mem::replace(&mut self.tallies, vec![Tally::default(); last]);
        self.requests = 0;
        let total: u64 = tallies.iter().map(|tally| tally.by(self.settings.by)).sum();
        if total == 0 {
            return; // no data: the last decision remains in effect
        }
        self.decisions += 1;
        let hot: HashSet<usize> = smallest_set(&tallies, self.settings.by, self.settings.share)
            .into_iter()
            .collect();
        // number 0 means an unknown file
        let cold: HashSet<usize> = (1..tallies.len()).filter(|n| !hot.contains(n)).collect();
        let mut lines = String::new();
        for (file, tally) in tallies.iter().enumerate().skip(1) {
            let unused = *tally == Tally::default();
            if unused && cold.contains(&file) == self.cold.contains(&file) {
                continue;
            }
            let reason = match (hot.contains(&file), unused) {
                (true, _) => "in the smallest set",
                (false, false) => "beyond the smallest set",
                (false, true) => "not used",
            };
            let line = json!({
                "t_ns": now_ns,
                "window_ns": window_ns,
                "file_id": file,
                "kept": hot.contains(&file),
                "share": tally.by(self.settings.by) as f64 / total as f64,
                "requests": tally.requests,
                "bytes": tally.bytes,
                "reason": reason,
            });
            lines.push_str(&line.to_string());
            lines.push('\n');
        }
        self.cold = cold;
        self.log.put(lines.as_bytes(), 0);
    }

    /// Log of the decisions. After a write error the log ends, but decisions continue.
    pub fn log(&self) -> &Sink {
        &self.log
    }

    /// Statistics for the final report.
    pub fn report(&self) -> serde_json::Value {
        json!({"by": self.settings.by.name(), "share": self.settings.share, "decisions": self.decisions})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(requests: &[u64]) -> Vec<Tally> {
        let of = |(i, &n): (usize, &u64)| Tally {
            requests: n,
            bytes: n * (i as u64 + 1),
        };
        requests.iter().enumerate().map(of).collect()
    }

    #[test]
    fn no_smaller_set_covers_as_much() {
        let all = tallies(&[0, 50, 20, 20, 5, 5]);
        assert_eq!(smallest_set(&all, By::Requests, 0.9), vec![1, 2, 3]);
        assert_eq!(smallest_set(&all, By::Requests, 0.91), vec![1, 2, 3, 4]);
        assert_eq!(smallest_set(&all, By::Requests, 1.0), vec![1, 2, 3, 4, 5]);
        // bytes: 100, 60, 80, 25, 30
        assert_eq!(smallest_set(&all, By::Bytes, 0.8), vec![1, 3, 2]);
        assert!(smallest_set(&tallies(&[0, 0]), By::Requests, 0.9).is_empty());
        // compare with an exhaustive search of all subsets of five files
        for seed in 1..200u64 {
            let counts: Vec<u64> = (0..5).map(|i| ((seed * 7919) >> (2 * i)) % 23).collect();
            let total: u64 = counts.iter().sum();
            let covers = |set: u32| -> bool {
                let sum: u64 = (0..5)
                    .filter(|i| set >> i & 1 == 1)
                    .map(|i| counts[i])
                    .sum();
                sum as f64 >= 0.9 * total as f64
            };
            let fewest = (0..32u32).filter(|&s| covers(s)).map(u32::count_ones).min();
            let chosen = smallest_set(&tallies(&counts), By::Requests, 0.9);
            assert_eq!(Some(chosen.len() as u32), fewest, "{counts:?}");
            assert!(covers(chosen.iter().fold(0, |set, i| set | 1 << i)));
        }
    }

    #[test]
    fn unused_file_numbers_take_no_memory() {
        let mut chooser = Chooser::new(Hot::default(), Path::new("/dev/null"), 0).unwrap();
        for file_id in [u32::MAX, u32::MAX - 1, MOST_FILES, 3] {
            let event = Event {
                file_id,
                ..Event::default()
            };
            let length = std::mem::size_of::<Event>();
            // SAFETY: a complete structure without padding.
            chooser.note(unsafe {
                std::slice::from_raw_parts(std::ptr::from_ref(&event).cast(), length)
            });
        }
        assert_eq!((chooser.tallies.len(), chooser.requests), (4, 1));
    }

    #[test]
    fn full_disk_affects_only_the_log() {
        let mut chooser = Chooser::new(Hot::default(), Path::new("/dev/full"), 0).unwrap();
        chooser.tallies = tallies(&[0, 95, 5]);
        chooser.decide(5_000_000_000);
        assert_eq!((chooser.decisions, chooser.cold.len()), (1, 1));
        assert!(chooser.log().failure().unwrap().starts_with("/dev/full: "));
    }

    #[test]
    fn each_interval_is_decided_separately() {
        let path = std::env::temp_dir().join(format!("penstock-hot-{}", std::process::id()));
        let settings = Hot::default();
        let mut chooser = Chooser::new(settings, &path, 0).unwrap();
        assert!(!chooser.due(4_999_999_999));
        assert!(chooser.due(5_000_000_000));
        chooser.requests = settings.first_requests;
        assert!(chooser.due(1));
        chooser.tallies = tallies(&[0, 95, 5]);
        chooser.decide(5_000_000_000);
        assert_eq!(chooser.cold, HashSet::from([2]));
        assert!(!chooser.due(14_999_999_999));
        assert!(chooser.due(15_000_000_000));
        chooser.decide(15_000_000_000); // nothing happened
        assert_eq!((chooser.decisions, chooser.cold.len()), (1, 1));
        chooser.tallies = tallies(&[0, 0, 95, 5]);
        chooser.decide(25_000_000_000);
        assert_eq!(chooser.cold, HashSet::from([1, 3]));
        let log = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let rows: Vec<serde_json::Value> = log
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(rows.len(), 5); // two files, then three
        assert_eq!(rows[2]["reason"], "not used");
        assert_eq!(rows[3]["share"], 0.95);
        assert_eq!(rows[4]["kept"], false);
    }
}
