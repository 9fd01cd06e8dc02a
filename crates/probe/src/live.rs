//! Intermediate results of a recording.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{json, Value};

use crate::layout::{Counter, Event, Stream, FAULT_AROUND, FAULT_AROUND_WRITE};

/// Maximum number of files with separate sums; later files count in the totals only.
const FILES: usize = 65_536;
/// First operation without bytes of its own, such as a sync or rename.
const FIRST_SYNC: u8 = 64;
/// Number of recent epochs that are stored for an early result.
pub const LATEST: usize = 256;

/// Sums of one file in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: u64,
    bytes: u64,
    /// Calls with a measured latency, and the sum of their latencies.
    timed: u64,
    time_ns: u64,
}

impl Sum {
    fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.bytes += more.bytes;
        self.timed += more.timed;
        self.time_ns += more.time_ns;
    }

    /// Total time of all calls, extrapolated from the measured ones [ns].
    fn total_time_ns(&self) -> u64 {
        (self.time_ns as f64 / self.timed.max(1) as f64 * self.calls as f64) as u64
    }
}

impl From<&Stream> for Sum {
    fn from(stream: &Stream) -> Self {
        Self {
            calls: [stream.requests, stream.errors, stream.empty]
                .map(u64::from)
                .iter()
                .sum(),
            bytes: stream.done_bytes,
            timed: stream.sampled.into(),
            time_ns: stream.sampled_ns,
        }
    }
}

/// Sums by file and direction so far, and the latest epochs.
#[derive(Debug, Default)]
pub struct Sums {
    /// Index: twice the file's number, plus one for writes.
    rows: Vec<Sum>,
    bytes: u64,
    latest: VecDeque<Vec<u8>>,
}

impl Sums {
    /// Count records of a ring.
    pub fn add_events(&mut self, records: &[u8]) {
        for record in records.chunks_exact(std::mem::size_of::<Event>()) {
            // SAFETY: as long as the structure, which is plain numbers.
            let event: Event = unsafe { std::ptr::read_unaligned(record.as_ptr().cast()) };
            if event.op >= FIRST_SYNC || matches!(event.op, FAULT_AROUND | FAULT_AROUND_WRITE) {
                continue;
            }
            let sum = Sum {
                calls: 1,
                bytes: u64::try_from(event.done_bytes).unwrap_or(0),
                timed: u64::from(event.latency_ns > 0), // mode pattern measures a sample only
                time_ns: event.latency_ns,
            };
            self.add(event.file_id, event.op >= 32, &sum);
        }
    }

    /// Count an epoch (the structure and its samples) and store it among the latest.
    pub fn add_epoch(&mut self, mut bytes: Vec<u8>) {
        let Some(stream) = stream_in(&bytes).filter(|stream| !stream.is_joint()) else {
            return;
        };
        self.add(stream.file_id, stream.kind % 2 == 1, &Sum::from(&stream));
        bytes.truncate(std::mem::size_of::<Stream>() + 4 * stream.samples as usize);
        self.latest.push_back(bytes);
        if self.latest.len() > LATEST {
            self.latest.pop_front();
        }
    }

    fn add(&mut self, file_id: u32, write: bool, sum: &Sum) {
        self.bytes += sum.bytes;
        let row = 2 * file_id as usize + usize::from(write);
        if row >= 2 * FILES {
            return;
        }
        if row >= self.rows.len() {
            self.rows
                .resize((row + 1).next_power_of_two(), Sum::default());
        }
        self.rows[row].add(sum);
    }

    /// The `most` rows with the longest time, and the bytes of all rows. Includes the current epochs.
    pub fn report(&self, under_way: &[Stream], most: usize) -> Value {
        let mut bytes = self.bytes;
        let mut rows: HashMap<usize, Sum> = self.rows.iter().copied().enumerate().collect();
        for stream in under_way
            .iter()
            .filter(|stream| stream.file_id > 0 && !stream.is_joint())
        {
            bytes += stream.done_bytes;
            let row = 2 * stream.file_id as usize + stream.kind as usize % 2;
            rows.entry(row).or_default().add(&Sum::from(stream));
        }
        json!({"bytes": bytes, "top": first(rows, most)})
    }

    /// Latest epochs of these files, in the form of the spool.
    pub fn latest_of(&self, files: &HashSet<u32>) -> Vec<u8> {
        let own = |bytes: &&Vec<u8>| stream_in(bytes).is_some_and(|s| files.contains(&s.file_id));
        self.latest.iter().filter(own).flatten().copied().collect()
    }
}

/// The same for the counters of mode count, whose index is twice the file's number, plus one for writes.
pub fn of_counters(counters: impl Iterator<Item = (usize, Counter)>, most: usize) -> Value {
    let mut bytes = 0;
    let rows: HashMap<usize, Sum> = counters
        .map(|(row, counter)| {
            bytes += counter.done_bytes;
            let sum = Sum {
                calls: counter.calls,
                bytes: counter.done_bytes,
                ..Sum::default()
            };
            (row, sum)
        })
        .collect();
    json!({"bytes": bytes, "top": first(rows, most)})
}

/// Numbers of the files in such a result.
pub fn files_of(summary: &Value) -> HashSet<u32> {
    let rows = summary["top"].as_array().into_iter().flatten();
    rows.filter_map(|row| row["file_id"].as_u64()?.try_into().ok())
        .collect()
}

/// Bytes of a stream in memory.
pub fn bytes_of(stream: &Stream) -> &[u8] {
    // SAFETY: plain numbers, and no padding: the kernel's structure has the same fields and length.
    unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(stream).cast::<u8>(),
            std::mem::size_of::<Stream>(),
        )
    }
}

pub(crate) fn stream_in(bytes: &[u8]) -> Option<Stream> {
    // SAFETY: long enough, and plain numbers.
    (bytes.len() >= std::mem::size_of::<Stream>())
        .then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast::<Stream>()) })
        .filter(|stream| stream.file_id > 0)
}

fn first(rows: HashMap<usize, Sum>, most: usize) -> Value {
    let mut rows: Vec<_> = rows.into_iter().filter(|row| row.1.calls > 0).collect();
    rows.sort_by_key(|(row, sum)| (std::cmp::Reverse((sum.total_time_ns(), sum.calls)), *row));
    let row_json = |(row, sum): &(usize, Sum)| {
        json!({
            "file_id": row / 2,
            "direction": if row % 2 == 0 { "read" } else { "write" },
            "calls": sum.calls,
            "bytes": sum.bytes,
            "time_ns": sum.total_time_ns(),
        })
    };
    json!(rows.iter().take(most).map(row_json).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(file_id: u32, op: u8, done: i32, latency_ns: u64) -> Vec<u8> {
        let event = Event {
            file_id,
            op,
            done_bytes: done,
            latency_ns,
            ..Event::default()
        };
        let (at, length) = (std::ptr::from_ref(&event), std::mem::size_of::<Event>());
        // SAFETY: plain numbers without padding.
        unsafe { std::slice::from_raw_parts(at.cast::<u8>(), length) }.to_vec()
    }

    fn stream(file_id: u32, tid: u32, requests: u32) -> Stream {
        // SAFETY: plain numbers, of which zero is a value.
        let none: Stream = unsafe { std::mem::zeroed() };
        Stream {
            file_id,
            tid,
            requests,
            done_bytes: 10 * u64::from(requests),
            sampled: 2,
            sampled_ns: 200,
            ..none
        }
    }

    #[test]
    fn events_are_summed_by_file_and_direction() {
        let mut sums = Sums::default();
        let mut records = Vec::new();
        for _ in 0..10 {
            records.extend(record(1, 0, 4096, 50));
        }
        records.extend(record(2, 33, 100, 9_000));
        records.extend(record(1, 0, -5, 1));
        records.extend(record(1, 64, 0, 1 << 40)); // a sync
        records.extend(record(u32::MAX, 0, 7, 1 << 40)); // one file too many
        sums.add_events(&records);
        let summary = sums.report(&[], 8);
        assert_eq!(summary["bytes"], 10 * 4096 + 100 + 7);
        assert_eq!(
            summary["top"],
            json!([
                {"file_id": 2, "direction": "write", "calls": 1, "bytes": 100, "time_ns": 9000},
                {"file_id": 1, "direction": "read", "calls": 11, "bytes": 40960, "time_ns": 501},
            ])
        );
        assert_eq!(files_of(&sums.report(&[], 1)), HashSet::from([2]));
    }

    #[test]
    fn finished_and_current_epochs_share_a_row() {
        let mut sums = Sums::default();
        for _ in 0..300 {
            sums.add_epoch(bytes_of(&stream(1, 7, 30)).to_vec());
        }
        sums.add_epoch(bytes_of(&stream(2, 7, 1)).to_vec());
        let summary = sums.report(&[stream(1, 8, 12), stream(0, 0, 0)], 1);
        assert_eq!(summary["bytes"], 10 * (9000 + 12 + 1));
        let row = &summary["top"][0];
        assert_eq!((&row["file_id"], &row["calls"]), (&json!(1), &json!(9012)));
        assert_eq!(row["time_ns"], 901_200);
        // the store is bounded and returns the requested files only
        let latest = sums.latest_of(&HashSet::from([1]));
        assert_eq!(latest.len(), (LATEST - 1) * std::mem::size_of::<Stream>());
    }
}
