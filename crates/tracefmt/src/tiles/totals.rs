//! Totals of each file, from a first pass. They determine the ranges of the figures.

use std::collections::HashMap;

use serde::Serialize;

use super::{kind, Batch, CHANNELS};

/// Sums and ranges of one file.
#[derive(Clone, Debug, Serialize)]
pub struct FileTotals {
    /// File number.
    pub file_id: i64,
    /// Number of calls that read and wrote, including failed ones.
    pub calls: [u64; 2],
    /// Bytes transferred by these calls.
    pub bytes: [u64; 2],
    /// Time of these calls [ns].
    pub time_ns: [u64; 2],
    /// Number of page faults served.
    pub faults: [u64; 2],
    /// Number of events to draw, per channel.
    pub drawn: [u64; CHANNELS],
    /// Number of events that failed or transferred nothing. They are not plotted.
    pub empty: u64,
    /// Number of flushes to the device.
    pub syncs: u64,
    /// Time of the flushes [ns].
    pub sync_ns: u64,
    /// Number of operations on names and sizes.
    pub others: u64,
    /// Lowest offset of the plotted events [bytes].
    pub low: u64,
    /// Highest offset of the plotted events [bytes].
    pub high: u64,
    /// End of the furthest request [bytes].
    pub end: u64,
    /// First start of the plotted events [ns].
    pub first_ns: i64,
    /// Last end of the plotted events [ns].
    pub last_ns: i64,
}

impl FileTotals {
    fn new(file_id: i64) -> Self {
        Self {
            file_id,
            calls: [0; 2],
            bytes: [0; 2],
            time_ns: [0; 2],
            faults: [0; 2],
            drawn: [0; CHANNELS],
            empty: 0,
            syncs: 0,
            sync_ns: 0,
            others: 0,
            low: u64::MAX,
            high: 0,
            end: 0,
            first_ns: i64::MAX,
            last_ns: i64::MIN,
        }
    }

    fn add(&mut self, kind: u8, t: i64, offset: i64, done: i64, latency: i64) {
        let spent = latency.unsigned_abs();
        match kind & kind::MASK {
            way @ (kind::READ | kind::WRITE) => {
                let way = usize::from(way);
                if kind & kind::FAULT != 0 {
                    self.faults[way] += 1;
                } else {
                    self.calls[way] += 1;
                    self.bytes[way] += u64::try_from(done).unwrap_or(0);
                }
                self.time_ns[way] += spent;
            }
            kind::AROUND => {}
            kind::SYNC => {
                self.syncs += 1;
                self.sync_ns += spent;
                return;
            }
            _ => {
                self.others += 1;
                return;
            }
        }
        if done <= 0 {
            self.empty += 1;
            return;
        }
        self.drawn[usize::from(kind & kind::MASK)] += 1;
        let offset = u64::try_from(offset).unwrap_or(0);
        self.low = self.low.min(offset);
        self.high = self.high.max(offset);
        self.end = self.end.max(offset.saturating_add(done.unsigned_abs()));
        self.first_ns = self.first_ns.min(t);
        self.last_ns = self.last_ns.max(t.saturating_add(latency));
    }
}

/// Totals of all files.
#[derive(Default)]
pub struct Totals {
    places: HashMap<i64, usize>,
    files: Vec<FileTotals>,
}

impl Totals {
    /// Add a batch. Return false, and add nothing, if its columns differ in length.
    pub fn add(&mut self, batch: Batch<'_>) -> bool {
        let Some(n) = batch.rows() else { return false };
        let mut last = (i64::MIN, usize::MAX);
        for i in 0..n {
            let id = batch.file_id[i];
            if last.1 == usize::MAX || last.0 != id {
                let next = self.files.len();
                let place = *self.places.entry(id).or_insert(next);
                if place == next {
                    self.files.push(FileTotals::new(id));
                }
                last = (id, place);
            }
            self.files[last.1].add(
                batch.kind[i],
                batch.t_ns[i],
                batch.offset[i],
                batch.done[i],
                batch.latency[i],
            );
        }
        true
    }

    /// Totals of every file, in order of first appearance.
    pub fn files(&self) -> &[FileTotals] {
        &self.files
    }
}
