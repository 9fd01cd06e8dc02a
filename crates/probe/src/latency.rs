//! Histograms of the latency of requests to block devices: the programs of `latency.bpf.c` and their reader.
//!
//! They count from loading to dropping, on every device. For a time window take differences. The counters are in
//! memory shared with the kernel, so reading them needs no system call.
//!
//! ```
//! use penstock_probe::latency::{bucket_of, upper_ns, BUCKETS};
//! for ns in [1, 1_024, 1_025, 80_000, 4_000_000, 60_000_000_000] {
//!     let bucket = bucket_of(ns);
//!     let (below, upper) = (upper_ns(bucket - bucket.min(1)).unwrap(), upper_ns(bucket).unwrap());
//!     assert!(ns <= upper && (bucket == 0 || ns > below));
//!     assert!(bucket == 0 || upper - below <= below / 8); // the error of a quantile
//! }
//! assert_eq!(upper_ns(BUCKETS - 1), None);
//! ```

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::btf::types::Typedef;
use libbpf_rs::btf::Btf;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::Link;
use penstock_daemon::clock::now_ns;

use crate::features::kernel_message;
use crate::mapped::Mapped;
use crate::program::recursion_misses;
use crate::ProbeError;

#[allow(clippy::all, dead_code, missing_docs, unused)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/latency.skel.rs"));
}
use skeleton::LatencySkelBuilder;

const FIRST_OCTAVE: u32 = 10;
const LAST_OCTAVE: u32 = 36;
const PART_BITS: u32 = 3;
const PARTS: usize = 1 << PART_BITS;
const SLOTS: usize = 512;
const TIMED: u64 = 64;
const REPLACED_PROGRAM: &str = "latency_completed";
/// Number of buckets of a histogram.
pub const BUCKETS: usize = (LAST_OCTAVE - FIRST_OCTAVE) as usize * PARTS + 2;

/// Names of the counters of each operation: requests by time on the device, requests by time in the queue, and the sums
/// of both times.
const METRICS: [[&str; 4]; 4] = [
    [
        "read_requests",
        "read_queued",
        "read_time",
        "read_queue_time",
    ],
    [
        "write_requests",
        "write_queued",
        "write_time",
        "write_queue_time",
    ],
    [
        "flush_requests",
        "flush_queued",
        "flush_time",
        "flush_queue_time",
    ],
    [
        "discard_requests",
        "discard_queued",
        "discard_time",
        "discard_queue_time",
    ],
];

/// Bucket of a duration.
pub fn bucket_of(ns: u64) -> usize {
    let value = ns.saturating_sub(1);
    if value >> FIRST_OCTAVE == 0 {
        return 0;
    }
    if value >> LAST_OCTAVE != 0 {
        return BUCKETS - 1;
    }
    let octave = value.ilog2();
    let part = (value >> (octave - PART_BITS)) as usize & (PARTS - 1);
    1 + (octave - FIRST_OCTAVE) as usize * PARTS + part
}

/// Upper bound of a bucket, ns; None for the last one.
pub fn upper_ns(bucket: usize) -> Option<u64> {
    match bucket {
        0 => Some(1 << FIRST_OCTAVE),
        n if n < BUCKETS - 1 => {
            let (octave, part) = ((n - 1) / PARTS, (n - 1) % PARTS);
            Some(((PARTS + part + 1) as u64) << (octave as u32 + FIRST_OCTAVE - PART_BITS))
        }
        _ => None,
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Histogram {
    disk: u32,
    op: u32,
    device_ns: u64,
    queue_ns: u64,
    device: [u64; BUCKETS],
    queue: [u64; BUCKETS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    slots: u32,
    pad: u32,
    lost: u64,
    timed_runs: u64,
    timed_ns: u64,
}

/// Identity of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    disk: u32,
    op: u8,
    /// Index in [`METRICS`].
    which: u8,
    /// Bucket; 0 for a sum.
    bucket: u8,
}

impl Key {
    /// Name, such as `read_requests`, `read_queued` (requests of one bucket), `read_time` or `read_queue_time` (sums).
    pub fn metric(self) -> &'static str {
        METRICS[self.op as usize][self.which as usize]
    }

    /// Unit of the value.
    pub fn unit(self) -> &'static str {
        if self.which < 2 {
            "1"
        } else {
            "ns"
        }
    }

    /// Upper bound of the bucket in seconds, in the format of Prometheus; None for a sum.
    pub fn le(self) -> Option<String> {
        let text = |ns: u64| format!("{}", ns as f64 / 1e9);
        (self.which < 2)
            .then(|| upper_ns(self.bucket.into()).map_or_else(|| "+Inf".to_owned(), text))
    }
}

/// Cost of the programs and of this reader so far, and lost requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Requests that did not fit or whose completion was not seen. Includes an upper bound of those that
    /// arrived while the programs were running on their CPU.
    pub lost: u64,
    /// Runs of the programs in a sample of 1 in 64.
    pub runs: u64,
    /// Their total time.
    pub run_ns: u64,
    /// Time of the last reading.
    pub reading_ns: u64,
}

/// Loaded programs; they stay attached until this is dropped.
pub struct BlockLatency {
    _links: Vec<Link>,
    /// Programs that have no replacement for skipped runs.
    alone: Vec<OwnedFd>,
    histograms: Mapped<Histogram>,
    control: Mapped<Control>,
    names: HashMap<u32, String>,
    reading_ns: u64,
}

impl BlockLatency {
    /// Load and attach; the error states the requirements.
    pub fn load() -> Result<Self, ProbeError> {
        let before = libbpf_rs::set_print(None);
        let loaded = Self::attached();
        libbpf_rs::set_print(before);
        loaded
    }

    fn attached() -> Result<Self, ProbeError> {
        let kernel = Btf::from_vmlinux().map_err(refused)?;
        for hook in ["block_rq_issue", "block_rq_complete"] {
            if (kernel.type_by_name::<Typedef<'_>>(&format!("btf_trace_{hook}"))).is_none() {
                return Err(ProbeError::Latency(format!("it has no tp_btf/{hook}")));
            }
        }
        let mut place = MaybeUninit::uninit();
        let open = (LatencySkelBuilder::default().open(&mut place)).map_err(refused)?;
        let skeleton = open.load().map_err(refused)?;
        let (mut links, mut alone) = (Vec::new(), Vec::new());
        // in any order: a request whose issue was not seen is not in the table of issues
        for program in skeleton.object().progs_mut() {
            links.push(program.attach().map_err(refused)?);
            if program.name() != REPLACED_PROGRAM {
                let descriptor = program.as_fd().try_clone_to_owned();
                alone.push(descriptor.map_err(ProbeError::io("a program's descriptor"))?);
            }
        }
        let maps = &skeleton.maps;
        Ok(Self {
            histograms: Mapped::new(maps.histograms.as_fd(), SLOTS, "the histograms")?,
            control: Mapped::new(maps.control.as_fd(), 1, "the control block")?,
            _links: links,
            alone,
            names: HashMap::new(),
            reading_ns: 0,
        })
    }

    /// Call `each` for every counter that is not 0, with its value since loading. Counters of one histogram may
    /// differ by requests that complete during the reading.
    pub fn read(&mut self, mut each: impl FnMut(Key, u64)) {
        let began_ns = now_ns();
        let taken = self.control.read(0).slots as usize;
        for slot in 0..taken.min(SLOTS) {
            let histogram = self.histograms.read(slot);
            let (disk, op) = (histogram.disk, histogram.op as u8 & 3);
            let mut tell = |which, bucket: usize, value| {
                if value != 0 {
                    let bucket = bucket as u8;
                    each(
                        Key {
                            disk,
                            op,
                            which,
                            bucket,
                        },
                        value,
                    );
                }
            };
            for (which, buckets) in [(0, &histogram.device), (1, &histogram.queue)] {
                for (bucket, &value) in buckets.iter().enumerate() {
                    tell(which, bucket, value);
                }
            }
            tell(2, 0, histogram.device_ns);
            tell(3, 0, histogram.queue_ns);
        }
        self.reading_ns = now_ns() - began_ns;
    }

    /// Name of a counter's device, such as `vda`; its numbers if the device is gone.
    pub fn device(&mut self, key: Key) -> &str {
        (self.names.entry(key.disk)).or_insert_with(|| name_of(key.disk >> 20, key.disk & 0xf_ffff))
    }

    /// Cost so far.
    pub fn cost(&self) -> Cost {
        let control = self.control.read(0);
        let missed = (self.alone.iter()).map(|program| recursion_misses(program.as_fd()));
        Cost {
            lost: control.lost + missed.sum::<u64>(),
            runs: TIMED * control.timed_runs,
            run_ns: TIMED * control.timed_ns,
            reading_ns: self.reading_ns,
        }
    }
}

fn refused(error: libbpf_rs::Error) -> ProbeError {
    ProbeError::Latency(kernel_message(&error))
}

fn name_of(major: u32, minor: u32) -> String {
    let numbers = format!("{major}:{minor}");
    let place = std::fs::read_link(format!("/sys/dev/block/{numbers}")).ok();
    let name = place.and_then(|p| Some(p.file_name()?.to_str()?.to_owned()));
    name.unwrap_or(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_structures_have_the_size_of_the_kernel_side() {
        // latency.bpf.c asserts the same size
        assert_eq!(std::mem::size_of::<Histogram>(), 24 + 16 * BUCKETS);
        assert_eq!(std::mem::size_of::<Control>(), 32);
        assert!(u8::try_from(BUCKETS - 1).is_ok());
    }

    #[test]
    fn buckets_are_contiguous_and_at_most_an_eighth_wide() {
        assert_eq!(
            (bucket_of(0), bucket_of(1), bucket_of(u64::MAX)),
            (0, 0, BUCKETS - 1)
        );
        for bucket in 0..BUCKETS - 1 {
            let upper = upper_ns(bucket).unwrap();
            assert_eq!(bucket_of(upper), bucket);
            assert_eq!(bucket_of(upper + 1), bucket + 1);
            if bucket > 0 {
                let lower = upper_ns(bucket - 1).unwrap();
                assert!(upper > lower && 8 * (upper - lower) <= lower, "{bucket}");
            }
        }
    }

    #[test]
    fn edges_are_written_in_seconds() {
        let key = |which, bucket| Key {
            disk: 0,
            op: 1,
            which,
            bucket,
        };
        assert_eq!(key(0, 0).le().unwrap(), "0.000001024");
        assert_eq!(key(1, 8).le().unwrap(), "0.000002048");
        assert_eq!(key(0, (BUCKETS - 1) as u8).le().unwrap(), "+Inf");
        assert_eq!((key(2, 0).le(), key(2, 0).unit()), (None, "ns"));
        assert_eq!(key(1, 8).metric(), "write_queued");
        let edges: Vec<f64> = (0..BUCKETS - 1)
            .map(|b| key(0, b as u8).le().unwrap().parse().unwrap())
            .collect();
        for (bucket, edge) in edges.iter().enumerate() {
            assert_eq!((edge * 1e9).round() as u64, upper_ns(bucket).unwrap());
        }
    }
}
