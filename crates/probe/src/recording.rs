//! Destinations of the data of an active recording.

use std::time::Instant;

use crate::gaps::Gaps;
use crate::hot::{Chooser, MOST_FILES};
use crate::layout::{Event, Ledger, Stream, SAMPLES};
use crate::live::{self, Sums};
use crate::meter::Meter;
use crate::sink::Sink;

/// State of one recording.
pub(crate) struct Recording {
    pub(crate) spool: Sink,
    pub(crate) files: Sink,
    /// True for each file whose announcement arrived, by file number.
    pub(crate) announced: Vec<bool>,
    pub(crate) start: Vec<Ledger>,
    pub(crate) started: Instant,
    pub(crate) start_cpu_ns: u64,
    pub(crate) written: u64,
    pub(crate) meter: Option<Meter>,
    pub(crate) run_time: Vec<(u64, u64)>,
    pub(crate) cgroup_id: u64,
    pub(crate) gaps: Gaps,
    pub(crate) chooser: Option<Chooser>,
    pub(crate) counted: Option<Sink>,
    pub(crate) singles: Option<Sink>,
    pub(crate) sums: Sums,
    pub(crate) presences_lost: u64,
}

impl Recording {
    /// Store events. In mode pattern these are the calls without a stream.
    pub(crate) fn take(&mut self, events: &[u8]) {
        if let Some(chooser) = self.chooser.as_mut() {
            chooser.note(events);
        }
        let count = (events.len() / std::mem::size_of::<Event>()) as u64;
        self.singles
            .as_mut()
            .unwrap_or(&mut self.spool)
            .put(events, count);
    }

    /// Store an epoch from the ring.
    pub(crate) fn keep_epoch(&mut self, epoch: &[u8]) {
        if let Some(chooser) = self.chooser.as_mut() {
            chooser.note_epoch(epoch);
        }
        let operations = live::stream_in(epoch).map_or(0, |stream| operations_of(&stream));
        self.keep_counted(epoch, operations);
    }

    /// Store epochs in the spool, or in the sidecar if the spool has events.
    pub(crate) fn keep_counted(&mut self, epochs: &[u8], operations: u64) {
        self.counted
            .as_mut()
            .unwrap_or(&mut self.spool)
            .put(epochs, operations);
    }

    pub(crate) fn note_announced(&mut self, introduction: &[u8]) {
        let number = introduction
            .first_chunk::<4>()
            .map(|b| u32::from_le_bytes(*b));
        // 0 and the highest number mean no file; other large numbers are invalid
        let Some(number) = number.filter(|&n| n > 0 && n < MOST_FILES) else {
            return;
        };
        let at = number as usize;
        if at >= self.announced.len() {
            self.announced.resize((at + 1).next_power_of_two(), false);
        }
        self.announced[at] = true;
    }

    pub(crate) fn sinks(&self) -> impl Iterator<Item = &Sink> {
        [&self.spool, &self.files]
            .into_iter()
            .chain(&self.counted)
            .chain(&self.singles)
            .chain(self.chooser.as_ref().map(Chooser::log))
    }

    /// Operations that the kernel delivered and that could not be written.
    pub(crate) fn unspooled(&self) -> u64 {
        self.sinks().map(Sink::dropped).sum()
    }

    pub(crate) fn spool_failure(&self) -> Option<&str> {
        self.sinks().find_map(Sink::failure)
    }
}

/// Operations of an epoch; 0 for a joint stream, whose operations are also in other streams.
pub(crate) fn operations_of(stream: &Stream) -> u64 {
    if stream.is_joint() {
        return 0;
    }
    [stream.requests, stream.errors, stream.empty]
        .map(u64::from)
        .iter()
        .sum()
}

/// Part of a delivered epoch that belongs into the spool: the structure and its used samples.
pub(crate) fn epoch_bytes(bytes: &[u8]) -> &[u8] {
    const HEAD: usize = std::mem::size_of::<Stream>();
    if bytes.len() < HEAD + 4 * SAMPLES {
        return &[];
    }
    // SAFETY: long enough, and plain numbers.
    let stream: Stream = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    &bytes[..HEAD + 4 * (stream.samples as usize).min(SAMPLES)]
}
