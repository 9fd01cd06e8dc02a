//! Sampling thread.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::account::{self, Account};
use crate::clock::{be_punctual, monotonic_ns, thread_cpu_ns};
use crate::config::StartRequest;
use crate::error::Error;
use crate::schedule::{Schedule, BEGINNING_NS};
use crate::sources::block_latency::Shared;
use crate::sources::{self, Group};
use crate::spool::{Sink, Spool};

const SHORTEST_NS: i64 = 1_000_000;
const LONGEST_NS: i64 = 86_400_000_000_000;
const FLUSH_EVERY_NS: i64 = 500_000_000;
/// Time between complete samples, ns; the interval if that is longer.
const COMPLETE_EVERY_NS: i64 = 1_000_000_000;

/// Results and cost of a recording.
#[derive(Debug, Clone, Serialize)]
pub struct Receipt {
    /// Deadline of the first sample, ns (CLOCK_MONOTONIC).
    pub start_ns: i64,
    /// Time of the stop, ns.
    pub end_ns: i64,
    /// Time between samples, ns.
    pub interval_ns: i64,
    /// Time between samples at the beginning, ns.
    pub close_ns: i64,
    /// Length of the beginning, ns.
    pub beginning_ns: i64,
    /// Samples taken at deadlines.
    pub samples: u64,
    /// Number of deadlines.
    pub expected: u64,
    /// Deadlines without a sample.
    pub missed: u64,
    /// Samples taken between deadlines at the beginning.
    pub between: u64,
    /// Median lateness, ns.
    pub late_p50_ns: i64,
    /// 99th percentile of lateness, ns.
    pub late_p99_ns: i64,
    /// Maximum lateness, ns.
    pub late_max_ns: i64,
    /// Processor time of the sampling thread, ns.
    pub cpu_ns: i64,
    /// Reads of /proc, control groups and pages.
    pub reads: u64,
    /// Size of the spool, bytes.
    pub spool_bytes: u64,
    /// Failed readings of sources.
    pub errors: u64,
    /// Reports of individual sources, by name.
    #[serde(flatten)]
    pub reports: BTreeMap<&'static str, Value>,
}

/// An active recording.
#[derive(Debug)]
pub struct Recorder {
    stop: Sender<()>,
    thread: JoinHandle<Result<Receipt, Error>>,
}

impl Recorder {
    /// Start sampling; the first sample is due at once.
    pub fn start(request: &StartRequest, default_interval_ns: i64) -> Result<Self, Error> {
        Self::start_with(request, default_interval_ns, None)
    }

    /// Start sampling, with histograms of block latency if `latency` is present.
    pub(crate) fn start_with(
        request: &StartRequest,
        default_interval_ns: i64,
        latency: Option<&Shared>,
    ) -> Result<Self, Error> {
        let interval_ns = request.interval_ns.unwrap_or(default_interval_ns);
        if !(SHORTEST_NS..=LONGEST_NS).contains(&interval_ns) {
            return Err(Error::Interval(interval_ns));
        }
        let spool = Spool::create(&request.spool)?;
        let groups = sources::all(request, latency);
        let (stop, stopped) = mpsc::channel();
        let work = Work {
            spool,
            accounts: groups.iter().map(|g| Account::new(g.name)).collect(),
            groups,
            lateness_ns: Vec::new(),
            errors: 0,
        };
        let thread = std::thread::Builder::new()
            .name("penstock-sample".to_owned())
            .spawn(move || work.record(interval_ns, &stopped))
            .map_err(Error::file("the sampling thread"))?;
        Ok(Self { stop, thread })
    }

    /// Stop sampling and return the final report.
    pub fn stop(self) -> Result<Receipt, Error> {
        drop(self.stop);
        self.thread
            .join()
            .unwrap_or(Err(Error::State("the sampling thread panicked")))
    }
}

struct Work {
    spool: Spool,
    groups: Vec<Group>,
    accounts: Vec<Account>,
    lateness_ns: Vec<i64>,
    errors: u64,
}

impl Work {
    fn record(mut self, interval_ns: i64, stopped: &mpsc::Receiver<()>) -> Result<Receipt, Error> {
        be_punctual();
        let lateness = self
            .spool
            .series("sampler", "self", "lateness", "ns", false);
        let cpu_before_ns = thread_cpu_ns();
        let start_ns = monotonic_ns();
        let mut schedule = Schedule::new(start_ns, interval_ns);
        // write the first samples at once, so that they survive an early kill
        let mut flushed_ns = start_ns - FLUSH_EVERY_NS;
        // with additional samples each deadline has a complete sample, because the additional ones are discarded later
        let sparse = schedule.close_ns() == interval_ns;
        let complete_every_ns = if sparse {
            COMPLETE_EVERY_NS
        } else {
            interval_ns
        };
        let mut complete_due_ns = start_ns;
        loop {
            let now_ns = monotonic_ns();
            let Some(due) = schedule.take(now_ns) else {
                let wait = Duration::from_nanos((schedule.next_ns() - now_ns) as u64);
                match stopped.recv_timeout(wait) {
                    Err(RecvTimeoutError::Timeout) => continue,
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                }
            };
            let complete = !due.between && due.due_ns >= complete_due_ns;
            if complete {
                complete_due_ns = due.due_ns + complete_every_ns;
            }
            self.spool.begin(now_ns, complete);
            self.spool.put(lateness, due.lateness_ns as f64);
            self.lateness_ns.push(due.lateness_ns);
            self.read(complete);
            if self.spool.is_full() || now_ns - flushed_ns >= FLUSH_EVERY_NS {
                self.spool.flush()?;
                flushed_ns = now_ns;
            }
        }
        let end_ns = monotonic_ns();
        schedule.close(end_ns);
        self.spool.flush()?;
        self.lateness_ns.sort_unstable();
        let sources = || self.groups.iter().flat_map(|g| &g.sources);
        Ok(Receipt {
            start_ns,
            end_ns,
            interval_ns,
            close_ns: schedule.close_ns(),
            beginning_ns: BEGINNING_NS,
            samples: schedule.completed(),
            expected: schedule.completed() + schedule.missed(),
            missed: schedule.missed(),
            between: schedule.between(),
            late_p50_ns: quantile(&self.lateness_ns, 0.5),
            late_p99_ns: quantile(&self.lateness_ns, 0.99),
            late_max_ns: quantile(&self.lateness_ns, 1.0),
            cpu_ns: thread_cpu_ns() - cpu_before_ns,
            reads: sources().map(|s| s.reads()).sum(),
            spool_bytes: self.spool.written_bytes(),
            errors: self.errors,
            reports: sources()
                .filter_map(|s| s.stats())
                .chain([("sources", account::statistics(&self.accounts))])
                .collect(),
        })
    }

    /// Read all sources and measure each. A complete sample reports these times.
    fn read(&mut self, complete: bool) {
        let mut before_ns = monotonic_ns();
        for (group, account) in self.groups.iter_mut().zip(&mut self.accounts) {
            let mut failed = 0;
            for source in &mut group.sources {
                failed += u64::from(source.sample(&mut self.spool).is_err());
            }
            let after_ns = monotonic_ns();
            account.note(after_ns - before_ns, failed == 0);
            self.errors += failed;
            before_ns = after_ns;
        }
        if complete {
            for account in &mut self.accounts {
                account.tell(&mut self.spool);
            }
        }
    }
}

/// Smallest of the sorted values that is not below this share of them (quantile of type 1).
fn quantile(sorted: &[i64], share: f64) -> i64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.clamp(1, sorted.len().max(1)) - 1)
        .copied()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::{series_path, RECORD_BYTES};

    #[test]
    fn records_name_their_series_and_match_deadlines() {
        let spool = std::env::temp_dir().join(format!("penstock-spool-{}", std::process::id()));
        let request: StartRequest = serde_json::from_value(serde_json::json!({
            "spool": spool, "interval_ns": 5_000_000, "root": super::tests::root(),
        }))
        .unwrap();
        let recorder = Recorder::start(&request, 1).unwrap();
        std::thread::sleep(Duration::from_millis(120));
        let report = recorder.stop().unwrap();

        assert!(report.samples >= 1);
        assert_eq!(report.expected, report.samples + report.missed);
        let due = ((report.end_ns - report.start_ns) / report.interval_ns) as u64;
        assert!(report.expected.abs_diff(due) <= 1, "{report:?}");

        let names = std::fs::read_to_string(series_path(&spool)).unwrap();
        let records = std::fs::read(&spool).unwrap();
        assert_eq!(records.len() as u64, report.spool_bytes);
        assert_eq!(records.len() % RECORD_BYTES, 0);
        let n_series = names.lines().count() as u64;
        let mut samples = 0;
        for record in records.chunks_exact(RECORD_BYTES) {
            let word = |at: usize| <[u8; 8]>::try_from(&record[at..at + 8]).unwrap();
            let (time, series, value) = (
                i64::from_le_bytes(word(0)),
                u64::from_le_bytes(word(8)),
                f64::from_le_bytes(word(16)),
            );
            assert!(series < n_series);
            if series == 0 {
                samples += 1;
                let due = time - value as i64;
                assert_eq!((due - report.start_ns) % report.interval_ns, 0);
            }
        }
        assert_eq!(samples, report.samples);
        assert!(names.contains("\"entity\":\"source=cpu\",\"metric\":\"source_up\""));
        assert_eq!(report.reports["sources"]["cpu"]["readings"], samples);
        assert_eq!(report.reports["sources"]["cpu"]["failed"], 0);
        std::fs::remove_file(series_path(&spool)).unwrap();
        std::fs::remove_file(spool).unwrap();
    }

    pub(super) fn root() -> std::path::PathBuf {
        crate::sources::testing::fixture("host")
    }

    #[test]
    fn an_interval_that_cannot_be_kept_is_refused() {
        // the longest interval: a longer one makes deadlines overflow, with an endless series of samples
        for wrong in [999_999, 0, -1, LONGEST_NS + 1, i64::MAX] {
            let request: StartRequest = serde_json::from_value(
                serde_json::json!({"spool": "/nonexistent/x", "interval_ns": wrong}),
            )
            .unwrap();
            let refused = Recorder::start(&request, 1).unwrap_err();
            assert!(matches!(refused, Error::Interval(found) if found == wrong));
        }
    }

    #[test]
    fn quantiles_of_few() {
        assert_eq!(quantile(&[], 0.99), 0);
        assert_eq!(quantile(&[7], 0.5), 7);
        assert_eq!(quantile(&[1, 2, 3, 4], 0.5), 2);
        assert_eq!(quantile(&[1, 2, 3, 4], 1.0), 4);
    }
}
