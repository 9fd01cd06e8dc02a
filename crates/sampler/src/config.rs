//! Configuration of the sampler and commands of its control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// Configuration of the sampler's process.
#[derive(Debug, Clone, Deserialize)]
pub struct SamplerConfig {
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Process that owns the sampler; the sampler ends with it.
    pub owner_pid: Option<i32>,
    /// True to continue after the owner has ended.
    #[serde(default)]
    pub outlive_owner: bool,
    /// Interval if `start` has none.
    #[serde(default = "one_second")]
    pub interval_ns: i64,
    /// True to sample histograms of block latency by BPF. Without it the process needs no privileges.
    #[serde(default)]
    pub block_latency: bool,
    /// File descriptor to which `ready` is written.
    pub ready_fd: Option<i32>,
}

fn one_second() -> i64 {
    1_000_000_000
}

fn yes() -> bool {
    true
}

fn root() -> PathBuf {
    PathBuf::from("/")
}

/// Request to start a recording: what to sample, and the spool to write.
#[derive(Debug, Clone, Deserialize)]
pub struct StartRequest {
    /// Spool file; an existing file is truncated.
    pub spool: PathBuf,
    /// Time between samples.
    pub interval_ns: Option<i64>,
    /// Directories of the run's control group by controller; `unified` is the v2 hierarchy.
    #[serde(default)]
    pub cgroups: BTreeMap<String, PathBuf>,
    /// Directories of the control groups of virtual nodes, by name of the node.
    #[serde(default)]
    pub nodes: BTreeMap<String, BTreeMap<String, PathBuf>>,
    /// Statistics pages of the emulated disks, by name of the disk.
    #[serde(default)]
    pub disks: BTreeMap<String, PathBuf>,
    /// True to sample network interfaces.
    #[serde(default = "yes")]
    pub network: bool,
    /// True to sample the processes of these groups; without groups, the descendants of `tree`.
    #[serde(default)]
    pub processes: bool,
    /// Patterns (`*` and `?`) of names of further processes, on the entire host.
    #[serde(default)]
    pub processes_named: Vec<String>,
    /// Process whose descendants are sampled if no group has processes. Only those that began after this request.
    pub tree: Option<u32>,
    /// Files that begin with a number, by name.
    #[serde(default)]
    pub files: BTreeMap<String, PathBuf>,
    /// Commands that print a number, by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, String>,
    /// Time from the start of one execution of a command to the start of the next.
    #[serde(default = "one_second")]
    pub metric_interval_ns: i64,
    /// Working directory of the commands.
    #[serde(default = "root")]
    pub directory: PathBuf,
    /// Directory that contains `proc` and `sys` (recorded ones in tests).
    #[serde(default = "root")]
    pub root: PathBuf,
}
