//! Counters of one disk, and the page that publishes them to other processes.
//!
//! The file `STATS_DIR/<disk_id>.stats` has 4096 bytes of little-endian unsigned 64-bit words:
//!
//! | word | is |
//! |---|---|
//! | 0 | magic `PKDISK01` |
//! | 1 | sequence: odd while the page is being written |
//! | 2 | CLOCK_MONOTONIC of the last update, ns |
//! | 3… | the counters in the order of [`NAMES`], cumulative since `add` or `reset` |
//! | 64…127 | histogram of lateness: word 64+i counts replies late by [2^(i-1), 2^i) ns, word 64 by 0 |

use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_daemon::{private, Error};

/// Names of the counters in the order of the page.
pub const NAMES: [&str; 20] = [
    "reads",
    "writes",
    "flushes",
    "read_bytes",
    "written_bytes",
    "read_service_ns",
    "write_service_ns",
    "flush_service_ns",
    "read_time_ns",
    "write_time_ns",
    "flush_time_ns",
    "busy_ns",
    "in_flight",
    "queue_time_ns",
    "late_count",
    "lateness_ns_total",
    "lateness_ns_max",
    "asked_time_ns",
    "delivered_time_ns",
    "errors",
];

/// Number of bins of the lateness histogram.
pub const BINS: usize = 64;
const PAGE_BYTES: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"PKDISK01");
const FIRST_COUNTER: usize = 3;
const FIRST_BIN: usize = 64;

/// iostat-like counters of one disk; times in nanoseconds, sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    /// Read requests finished.
    pub reads: u64,
    /// Write requests finished.
    pub writes: u64,
    /// Flush requests finished.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Sampled service time of reads.
    pub read_service_ns: u64,
    /// Sampled service time of writes.
    pub write_service_ns: u64,
    /// Sampled service time of flushes.
    pub flush_service_ns: u64,
    /// Time from arrival to reply, reads.
    pub read_time_ns: u64,
    /// Time from arrival to reply, writes.
    pub write_time_ns: u64,
    /// Time from arrival to reply, flushes.
    pub flush_time_ns: u64,
    /// Time with at least one request in flight (io_ticks of kernel disks).
    pub busy_ns: u64,
    /// Current number of requests in flight.
    pub in_flight: u64,
    /// Sum over requests of their time in flight so far (time_in_queue of kernel disks).
    pub queue_time_ns: u64,
    /// Replies late by more than both 5 % of their service time and 50 µs.
    pub late_count: u64,
    /// Sum of (reply − due).
    pub lateness_ns_total: u64,
    /// Largest (reply − due).
    pub lateness_ns_max: u64,
    /// Sum of (queueing + service) times computed by the station.
    pub asked_time_ns: u64,
    /// Sum of (reply − compensated arrival).
    pub delivered_time_ns: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Histogram of lateness by powers of two nanoseconds.
    pub lateness_bins: [u64; BINS],
}

impl Default for Counters {
    fn default() -> Self {
        Counters::from_values(&[0; NAMES.len()], [0; BINS])
    }
}

impl Counters {
    fn from_values(values: &[u64; NAMES.len()], lateness_bins: [u64; BINS]) -> Self {
        let [reads, writes, flushes, read_bytes, written_bytes, read_service_ns, write_service_ns, flush_service_ns, read_time_ns, write_time_ns, flush_time_ns, busy_ns, in_flight, queue_time_ns, late_count, lateness_ns_total, lateness_ns_max, asked_time_ns, delivered_time_ns, errors] =
            *values;
        Counters {
            reads,
            writes,
            flushes,
            read_bytes,
            written_bytes,
            read_service_ns,
            write_service_ns,
            flush_service_ns,
            read_time_ns,
            write_time_ns,
            flush_time_ns,
            busy_ns,
            in_flight,
            queue_time_ns,
            late_count,
            lateness_ns_total,
            lateness_ns_max,
            asked_time_ns,
            delivered_time_ns,
            errors,
            lateness_bins,
        }
    }

    /// The counters in the order of [`NAMES`].
    pub fn values(&self) -> [u64; NAMES.len()] {
        [
            self.reads,
            self.writes,
            self.flushes,
            self.read_bytes,
            self.written_bytes,
            self.read_service_ns,
            self.write_service_ns,
            self.flush_service_ns,
            self.read_time_ns,
            self.write_time_ns,
            self.flush_time_ns,
            self.busy_ns,
            self.in_flight,
            self.queue_time_ns,
            self.late_count,
            self.lateness_ns_total,
            self.lateness_ns_max,
            self.asked_time_ns,
            self.delivered_time_ns,
            self.errors,
        ]
    }

    /// Counts one lateness in nanoseconds.
    pub fn count_lateness(&mut self, lateness_ns: u64, service_ns: u64) {
        self.lateness_ns_total += lateness_ns;
        self.lateness_ns_max = self.lateness_ns_max.max(lateness_ns);
        if lateness_ns > (service_ns / 20).max(50_000) {
            self.late_count += 1;
        }
        let bin = (u64::BITS - lateness_ns.leading_zeros()) as usize;
        self.lateness_bins[bin.min(BINS - 1)] += 1;
    }
}

/// Shared page of counters. The disk writes it under its lock; any process may read it.
#[derive(Debug)]
pub struct StatsPage {
    words: NonNull<AtomicU64>,
}

// SAFETY: the page is only reached through atomics.
unsafe impl Send for StatsPage {}
// SAFETY: as above.
unsafe impl Sync for StatsPage {}

impl StatsPage {
    /// Create the file at `path` and map it.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let what = || format!("statistics page {}", path.display());
        let file = private::file(path).map_err(|error| Error::host(what(), error))?;
        file.set_len(PAGE_BYTES as u64)
            .map_err(|error| Error::host(what(), error))?;
        // SAFETY: a fresh shared mapping of a file of that length; checked below.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Error::last(what()));
        }
        let words = NonNull::new(address.cast()).ok_or_else(|| Error::last(what()))?;
        let page = StatsPage { words };
        page.word(0).store(MAGIC, Ordering::Release);
        Ok(page)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE_BYTES / 8);
        // SAFETY: inside the mapping, aligned, and alive as long as `self`.
        unsafe { &*self.words.as_ptr().add(index) }
    }

    /// Publish the counters. Only one thread may write at a time.
    pub fn publish(&self, counters: &Counters, now_ns: u64) {
        let sequence = self.word(1).load(Ordering::Relaxed);
        self.word(1).store(sequence | 1, Ordering::Release);
        self.word(2).store(now_ns, Ordering::Relaxed);
        for (index, value) in counters.values().into_iter().enumerate() {
            self.word(FIRST_COUNTER + index)
                .store(value, Ordering::Relaxed);
        }
        self.word(1)
            .store((sequence | 1).wrapping_add(1), Ordering::Release);
    }

    /// Publish the histogram of lateness.
    pub fn publish_bins(&self, counters: &Counters) {
        for (index, value) in counters.lateness_bins.into_iter().enumerate() {
            self.word(FIRST_BIN + index).store(value, Ordering::Relaxed);
        }
    }
}

impl Drop for StatsPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `create`, not used any more.
        unsafe { libc::munmap(self.words.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_names_have_the_same_order() {
        let counted: Vec<u64> = (1..=NAMES.len() as u64).collect();
        let values: [u64; NAMES.len()] = counted.try_into().unwrap();
        let counters = Counters::from_values(&values, [0; BINS]);
        assert_eq!(counters.values(), values);
        assert_eq!(counters.delivered_time_ns, 19);
    }

    #[test]
    fn lateness_is_binned_by_powers_of_two() {
        let mut counters = Counters::default();
        for lateness_ns in [0, 1, 1023, 1024, 300_000] {
            counters.count_lateness(lateness_ns, 5_000_000);
        }
        assert_eq!(counters.lateness_bins[0], 1);
        assert_eq!(counters.lateness_bins[1], 1);
        assert_eq!(counters.lateness_bins[10], 1);
        assert_eq!(counters.lateness_bins[11], 1);
        assert_eq!(counters.late_count, 1);
        assert_eq!(counters.lateness_ns_max, 300_000);
    }
}
