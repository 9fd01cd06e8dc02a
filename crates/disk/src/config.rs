//! Configuration of the server, and commands of its control socket.

use std::path::PathBuf;

use penstock_station::StorageProfile;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::change::{Cause, Planned};
use crate::owner::OwnerId;
use crate::unsynced::CutMode;

fn two() -> usize {
    2
}
fn readahead() -> u32 {
    128 * 1024
}
fn background() -> u16 {
    128
}
fn dirty() -> u64 {
    64 << 20
}

/// Configuration of the server.
#[derive(Debug, Clone, Deserialize)]
pub struct ServerConfig {
    /// Control socket.
    pub socket: PathBuf,
    /// Process that owns the server.
    pub owner_pid: Option<i32>,
    /// Keep running when the owner ends.
    #[serde(default)]
    pub outlive_owner: bool,
    /// Reader threads per mount.
    #[serde(default = "two")]
    pub readers: usize,
    /// Timer threads.
    #[serde(default = "two")]
    pub timers: usize,
    /// Directory of the statistics pages.
    pub stats_dir: PathBuf,
    /// Descriptor that receives the line `ready` once the control socket is open.
    pub ready_fd: Option<i32>,
    /// Token of the mounts: the source of each mount is `penstock:<token>`.
    #[serde(default)]
    pub token: String,
}

/// Deliberate deviation from the profile, to test that checks detect it.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plant {
    /// Relative slowdown of the device against its profile and its counters.
    pub slow_by: f64,
    /// Sleep of the server before it sends a reply, in seconds.
    pub reply_sleep_s: f64,
    /// Time for which a thread holds the disk's lock every [`Plant::LOCK_EVERY_S`], in seconds.
    pub lock_held_s: f64,
    /// Delay of the timer wake-ups for the disk's replies, in seconds.
    pub timer_late_s: f64,
}

impl Plant {
    /// Interval between two times that a thread holds the lock, in seconds.
    pub const LOCK_EVERY_S: f64 = 1.0;
}

/// Path overhead in nanoseconds: `base_ns + per_byte_ns * bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Overhead of an empty request.
    pub base_ns: f64,
    /// Overhead per byte.
    pub per_byte_ns: f64,
    /// Lower bound of the 96 % confidence interval of `base_ns`.
    #[serde(default)]
    pub low_ns: f64,
    /// Upper bound of that interval.
    #[serde(default)]
    pub high_ns: f64,
}

impl Overhead {
    /// Overhead of a request of `size_bytes`.
    pub fn of(&self, size_bytes: u32) -> u64 {
        (self.base_ns + self.per_byte_ns * f64::from(size_bytes)).max(0.0) as u64
    }
}

/// Path overheads by kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Compensation {
    /// Overhead of reads.
    pub read: Overhead,
    /// Overhead of writes.
    pub write: Overhead,
    /// Median lateness of replies during the measurement. Both overheads include it.
    #[serde(default)]
    pub lateness_ns: f64,
}

/// Transport of requests from the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reads and writes of `/dev/fuse`.
    #[default]
    Device,
    /// io_uring, one queue per processor.
    IoUring,
}

/// Arguments of `add`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// Name of the disk.
    pub disk_id: String,
    /// Mount point.
    pub mount: PathBuf,
    /// Backing directory, whose content the disk shows.
    pub backing: PathBuf,
    /// Storage profile.
    pub profile: StorageProfile,
    /// Seed of the random draws.
    #[serde(default)]
    pub seed: u64,
    /// Initial request log.
    pub log: Option<PathBuf>,
    /// Deliberate deviation from the profile.
    pub plant: Option<Plant>,
    /// True if a flush also syncs the backing file on the host.
    #[serde(default)]
    pub durable: bool,
    /// Maximum readahead of the kernel, in bytes.
    #[serde(default = "readahead")]
    pub readahead_bytes: u32,
    /// Maximum number of background requests (readahead, write-back, asynchronous direct I/O).
    #[serde(default = "background")]
    pub max_background: u16,
    /// Limit of dirty pages and pages under write-back of this mount, in bytes.
    #[serde(default = "dirty")]
    pub dirty_bytes: u64,
    /// Known path overheads; measured if absent.
    pub compensation: Option<Compensation>,
    /// Token of the mount; the server's if absent.
    pub token: Option<String>,
    /// Size of the disk; limited only by the host if absent.
    pub size_bytes: Option<u64>,
    /// Owner, on the mount, of the files that the owner of the backing directory owns on the host.
    pub owner: Option<OwnerId>,
    /// True if mounts and unmounts propagate to mount namespaces that have the mount point (see
    /// [`crate::mount`]).
    #[serde(default)]
    pub shared: bool,
    /// Transport of requests; `/dev/fuse` if the kernel lacks io_uring for FUSE.
    #[serde(default)]
    pub transport: Transport,
    /// True if the disk keeps track of unflushed data, so that a power cut can discard it.
    #[serde(default)]
    pub volatile: bool,
    /// Initial patch.
    #[serde(default)]
    pub patch: Value,
}

/// Command of the control socket.
#[derive(Debug, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum Command {
    /// Check that the server responds.
    Ping,
    /// Start a disk.
    Add(Box<Add>),
    /// Replace the profile of a disk.
    Set {
        /// The disk.
        disk_id: String,
        /// The new profile.
        profile: Box<StorageProfile>,
        /// Seed of the random draws.
        #[serde(default)]
        seed: u64,
        /// Relative slowdown against the profile from now on; unchanged if absent.
        slow_by: Option<f64>,
    },
    /// Apply a patch to a disk now.
    Patch {
        /// The disk.
        disk_id: String,
        /// The patch.
        patch: Value,
        /// Planned time of the change; now if absent.
        planned_ns: Option<u64>,
        /// Cause of the change; `request` if absent.
        cause: Option<Cause>,
    },
    /// Plan changes of a disk. The server applies them without further requests.
    Schedule {
        /// The disk.
        disk_id: String,
        /// Planned changes.
        events: Vec<Planned>,
        /// Drop earlier plans of this disk.
        #[serde(default)]
        replace: bool,
    },
    /// Mark the start of a phase.
    Mark {
        /// The disk; all disks if absent.
        disk_id: Option<String>,
        /// Name of the phase.
        phase: String,
        /// Start of the phase; now if absent.
        t_ns: Option<u64>,
    },
    /// Return applied and planned changes.
    Events {
        /// The disk.
        disk_id: String,
    },
    /// Cut the power: the disk loses unflushed data and is mounted again.
    PowerCut {
        /// The disk.
        disk_id: String,
        /// Fate of unflushed data.
        #[serde(default)]
        mode: CutMode,
        /// Seed of the random draws of a torn cut.
        #[serde(default)]
        seed: u64,
    },
    /// Switch the request log.
    Log {
        /// The disk.
        disk_id: String,
        /// File of the log; no log if absent.
        path: Option<PathBuf>,
    },
    /// Bypass the page cache for files opened from now on, or stop doing so.
    Exact {
        /// The disk.
        disk_id: String,
        /// True to bypass the page cache.
        on: bool,
    },
    /// Return the path overhead. Reuse only a recent measurement after the last reset.
    Path {
        /// The disk.
        disk_id: String,
    },
    /// Return processor waits of the server and stolen time since the disk's counters were reset.
    HostWaits {
        /// The disk.
        disk_id: String,
    },
    /// Return the counters.
    Stats {
        /// The disk.
        disk_id: String,
    },
    /// Reset the counters and the random draws.
    Reset {
        /// The disk.
        disk_id: String,
    },
    /// Stop a disk.
    Remove {
        /// The disk.
        disk_id: String,
        /// Complete pending write-back without delay.
        #[serde(default)]
        hurry: bool,
    },
    /// List the disks.
    List,
    /// Stop all disks and end the server.
    Shutdown,
}
