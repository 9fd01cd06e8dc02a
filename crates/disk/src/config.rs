//! The server's configuration and the commands of its control socket.

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
    /// Process on whose behalf the server runs.
    pub owner_pid: Option<i32>,
    /// Whether to stay when the owner is gone.
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
    /// Descriptor that gets the line `ready` when the control socket is open.
    pub ready_fd: Option<i32>,
    /// Carried by every mount as source `penstock:<token>`.
    #[serde(default)]
    pub token: String,
}

/// A planted departure from the profile: what a check must find.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plant {
    /// Share by which the device is slower than its profile and than its counters say.
    pub slow_by: f64,
    /// How long the server sleeps before it sends a reply, in seconds.
    pub reply_sleep_s: f64,
    /// How long the disk's lock is held, in seconds, once every [`Plant::LOCK_EVERY_S`].
    pub lock_held_s: f64,
    /// By how much its replies wake the timers too late, in seconds.
    pub timer_late_s: f64,
}

impl Plant {
    /// How often the lock is held.
    pub const LOCK_EVERY_S: f64 = 1.0;
}

/// Path overhead in nanoseconds: `base_ns + per_byte_ns * bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// For an empty request.
    pub base_ns: f64,
    /// For each byte.
    pub per_byte_ns: f64,
    /// Beginning of the 96 % interval of `base_ns`.
    #[serde(default)]
    pub low_ns: f64,
    /// End of it.
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
    /// Of reads.
    pub read: Overhead,
    /// Of writes.
    pub write: Overhead,
    /// How late replies were while this was measured (median); part of both.
    #[serde(default)]
    pub lateness_ns: f64,
}

/// How requests come from the kernel.
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
    /// Where it appears.
    pub mount: PathBuf,
    /// Whose content it shows.
    pub backing: PathBuf,
    /// How fast it is.
    pub profile: StorageProfile,
    /// Seed of the draws.
    #[serde(default)]
    pub seed: u64,
    /// Request log to begin with.
    pub log: Option<PathBuf>,
    /// A planted departure.
    pub plant: Option<Plant>,
    /// Whether a flush also syncs the backing file on the host.
    #[serde(default)]
    pub durable: bool,
    /// Most the kernel reads ahead, in bytes.
    #[serde(default = "readahead")]
    pub readahead_bytes: u32,
    /// Background requests (readahead, write-back, asynchronous direct I/O) at once.
    #[serde(default = "background")]
    pub max_background: u16,
    /// Dirty and written-back pages of this mount at most, in bytes.
    #[serde(default = "dirty")]
    pub dirty_bytes: u64,
    /// Known path overheads; measured when absent.
    pub compensation: Option<Compensation>,
    /// Token of the mount, if not the server's.
    pub token: Option<String>,
    /// Size of the disk; the host's room if absent.
    pub size_bytes: Option<u64>,
    /// Whom the files of the backing directory's owner belong to on the mount.
    pub owner: Option<OwnerId>,
    /// Whether mounts and unmounts reach mount namespaces that have the mount point (see [`crate::mount`]).
    #[serde(default)]
    pub shared: bool,
    /// How requests come; the device where the kernel does not offer io_uring.
    #[serde(default)]
    pub transport: Transport,
    /// Whether what is not flushed is kept apart, so that a power cut can take it.
    #[serde(default)]
    pub volatile: bool,
    /// What is changed from the beginning.
    #[serde(default)]
    pub patch: Value,
}

/// Commands of the control socket.
#[derive(Debug, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum Command {
    /// Are you there?
    Ping,
    /// Puts a disk up.
    Add(Box<Add>),
    /// Changes its profile.
    Set {
        /// The disk.
        disk_id: String,
        /// The new profile.
        profile: Box<StorageProfile>,
        /// Seed of the draws.
        #[serde(default)]
        seed: u64,
        /// Share by which it is slower from now on than its profile; as it was if absent.
        slow_by: Option<f64>,
    },
    /// Changes a disk now.
    Patch {
        /// The disk.
        disk_id: String,
        /// The patch.
        patch: Value,
        /// When it was to be; now if absent.
        planned_ns: Option<u64>,
        /// Why; on request if absent.
        cause: Option<Cause>,
    },
    /// Gives a disk a schedule, which the server keeps to without anyone.
    Schedule {
        /// The disk.
        disk_id: String,
        /// What is to happen.
        events: Vec<Planned>,
        /// Whether what was planned before is dropped.
        #[serde(default)]
        replace: bool,
    },
    /// A phase begins.
    Mark {
        /// The disk; all of them if absent.
        disk_id: Option<String>,
        /// The phase.
        phase: String,
        /// When; now if absent.
        t_ns: Option<u64>,
    },
    /// What was changed, and what is planned.
    Events {
        /// The disk.
        disk_id: String,
    },
    /// Takes the power away: what was not flushed is lost, the disk comes back empty of it.
    PowerCut {
        /// The disk.
        disk_id: String,
        /// What becomes of what was not flushed.
        #[serde(default)]
        mode: CutMode,
        /// Seed of the draws of a torn cut.
        #[serde(default)]
        seed: u64,
    },
    /// Switches the request log.
    Log {
        /// The disk.
        disk_id: String,
        /// Where to, or nowhere.
        path: Option<PathBuf>,
    },
    /// Files opened from now on bypass the page cache, or do no longer.
    Exact {
        /// The disk.
        disk_id: String,
        /// Whether they do.
        on: bool,
    },
    /// The way through the kernel, measured once more since the last reset.
    Path {
        /// The disk.
        disk_id: String,
    },
    /// What the host did to the server since the disk's counters were zeroed.
    HostWaits {
        /// The disk.
        disk_id: String,
    },
    /// Counters.
    Stats {
        /// The disk.
        disk_id: String,
    },
    /// Zeroes counters and forgets draws.
    Reset {
        /// The disk.
        disk_id: String,
    },
    /// Takes a disk down.
    Remove {
        /// The disk.
        disk_id: String,
        /// Whether what is still to be written back takes no time.
        #[serde(default)]
        hurry: bool,
    },
    /// Names the disks.
    List,
    /// Takes all down and ends.
    Shutdown,
}
