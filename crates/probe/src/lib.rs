//! The I/O tracer: BPF programs on the entry and exit of the read and write system calls of one control
//! group, and the process that loads them, empties their rings and writes what they saw.
//!
//! - [`layout`] is what the programs (`src/bpf/`) and the reader share.
//! - [`hooks`] is the table of what can be seen and on which hooks; the first that the kernel takes is used.
//! - [`scope`] says what is traced: processes, control groups, files.
//! - [`tracer`] loads, arms and disarms, and drains the rings into a spool file.
//! - [`daemon`] puts a tracer behind a control socket.
//! - [`latency`] counts requests of block devices by how long they take, for the sampler.
//!
//! Two modes. `trace` writes a record of each call into a ring of the CPU it ended on; the reader comes by
//! every few tens of milliseconds, so the traced program never wakes or waits for anyone: when a ring is full
//! the record is lost and counted. `pattern` writes no records: it keeps counters per thread, file and
//! direction, read when tracing ends; only the calls of too many of those are told one by one. In both, for every CPU and in total,
//! `seen = kept + filtered + lost`.

mod collect;
pub mod daemon;
mod faults;
pub mod features;
mod gaps;
pub mod hooks;
mod hot;
pub mod latency;
pub mod layers;
pub mod layout;
mod live;
mod load;
mod mapped;
mod meter;
pub mod mode;
mod names;
mod object;
mod program;
mod recording;
pub mod scope;
mod sink;
mod skeleton;
pub mod spool;
mod symbols;
pub mod tracer;

pub use hot::Hot;
pub use mode::Mode;
pub use scope::Scope;
pub use tracer::{Target, Tracer};

/// Why tracing could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel refused the programs or the maps.
    #[error("the kernel does not take the tracing programs ({reason}); it must offer BPF with type information (CONFIG_DEBUG_INFO_BTF) and we need CAP_BPF and CAP_PERFMON", reason = crate::features::words(.0))]
    Load(libbpf_rs::Error),
    /// It refused one of them: the hook, and the error by its name.
    #[error("{hook}: {error}")]
    Hook {
        /// As `tp_btf/sys_enter`.
        hook: String,
        /// As `EPERM (Operation not permitted)`.
        error: String,
    },
    /// It takes none of the ways in which something indispensable can be seen.
    #[error("this kernel lets us see no {what} ({hooks})")]
    Refused {
        /// What.
        what: String,
        /// Each way and why not.
        hooks: String,
    },
    /// It refused those that time the requests of block devices: its words.
    #[error("block latency cannot be had: the kernel does not take its programs ({0}); it must offer BPF with type information (CONFIG_DEBUG_INFO_BTF) and we need CAP_BPF and CAP_PERFMON")]
    Latency(String),
    /// A later operation on them failed.
    #[error("tracing programs: {0}")]
    Bpf(#[from] libbpf_rs::Error),
    /// A file or socket.
    #[error("{what}: {source}")]
    Io {
        /// Which one.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The control socket cannot be had.
    #[error(transparent)]
    Daemon(#[from] penstock_daemon::Error),
    /// A request that cannot be met.
    #[error("{0}")]
    Request(String),
}

impl ProbeError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
