//! The sampler's configuration and the commands of its control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// Configuration of the sampler's process.
#[derive(Debug, Clone, Deserialize)]
pub struct SamplerConfig {
    /// Control socket.
    pub socket: PathBuf,
    /// Process on whose behalf it runs.
    pub owner_pid: Option<i32>,
    /// Whether to stay when the owner is gone.
    #[serde(default)]
    pub outlive_owner: bool,
    /// Interval where `start` gives none.
    #[serde(default = "one_second")]
    pub interval_ns: i64,
    /// Whether to sample histograms of block latency, by BPF; without it the process needs no privilege.
    #[serde(default)]
    pub block_latency: bool,
    /// Descriptor to write `ready` to.
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

/// What to sample and where to leave it.
#[derive(Debug, Clone, Deserialize)]
pub struct StartRequest {
    /// Spool file, made anew.
    pub spool: PathBuf,
    /// Time between samples.
    pub interval_ns: Option<i64>,
    /// Directories of the run's control group by controller; `unified` is the v2 one.
    #[serde(default)]
    pub cgroups: BTreeMap<String, PathBuf>,
    /// The same of virtual nodes, by name of the node.
    #[serde(default)]
    pub nodes: BTreeMap<String, BTreeMap<String, PathBuf>>,
    /// Statistics pages of the emulated disks by disk.
    #[serde(default)]
    pub disks: BTreeMap<String, PathBuf>,
    /// Whether to sample network interfaces.
    #[serde(default = "yes")]
    pub network: bool,
    /// Whether to sample the processes of these groups; where there is none, the descendants of `tree`.
    #[serde(default)]
    pub processes: bool,
    /// Patterns (`*` and `?`) of names of further processes, of the whole host.
    #[serde(default)]
    pub processes_named: Vec<String>,
    /// Process whose descendants are sampled where no group has processes: those that began after this request.
    pub tree: Option<u32>,
    /// Files that begin with a number, by name.
    #[serde(default)]
    pub files: BTreeMap<String, PathBuf>,
    /// Commands that print a number, by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, String>,
    /// Time from the beginning of one run of a command to the next.
    #[serde(default = "one_second")]
    pub metric_interval_ns: i64,
    /// Where commands are run.
    #[serde(default = "root")]
    pub directory: PathBuf,
    /// Directory in which `proc` and `sys` are found (recorded ones in tests).
    #[serde(default = "root")]
    pub root: PathBuf,
}
