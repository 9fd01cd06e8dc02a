//! I/O tracer: BPF programs on entry and exit of the read and write system calls of one control group, and the
//! process that loads them, drains their rings and writes the records.
//!
//! - [`layout`]: structures shared by the programs (`src/bpf/`) and the reader.
//! - [`hooks`]: table of features with the hooks that can observe each; the first one that the kernel accepts is used.
//! - [`scope`]: processes, control groups and files to trace.
//! - [`tracer`]: loads, arms and disarms the programs, and drains the rings into a spool file.
//! - [`daemon`]: serves a tracer on a control socket.
//! - [`latency`]: histograms of the latency of block requests, for the sampler.
//!
//! There are two main modes. `trace` writes a record of each call into the ring of the CPU on which the call ended.
//! The reader polls every few tens of milliseconds, so the traced program never wakes or waits for it. If a ring is
//! full, the record is lost and counted. `pattern` writes no records. It maintains counters per thread, file and
//! direction, which are read when tracing ends. Only calls beyond the maximum number of such streams get records. In
//! both modes, for every CPU and in total, `seen = kept + filtered + lost`.

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

/// An error of the tracer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel refused the programs or the maps.
    #[error("the kernel does not take the tracing programs ({reason}); it must offer BPF with type information (CONFIG_DEBUG_INFO_BTF) and we need CAP_BPF and CAP_PERFMON", reason = crate::features::kernel_message(.0))]
    Load(libbpf_rs::Error),
    /// The kernel refused one of the programs. The fields are the hook and the name of the error.
    #[error("{hook}: {error}")]
    Hook {
        /// Hook, such as `tp_btf/sys_enter`.
        hook: String,
        /// Error, such as `EPERM (Operation not permitted)`.
        error: String,
    },
    /// The kernel refuses every way to observe a required feature.
    #[error("this kernel lets us see no {what} ({hooks})")]
    Refused {
        /// The feature.
        what: String,
        /// Each way, and why it was refused.
        hooks: String,
    },
    /// The kernel refused the programs that time block requests. The field is its message.
    #[error("block latency cannot be had: the kernel does not take its programs ({0}); it must offer BPF with type information (CONFIG_DEBUG_INFO_BTF) and we need CAP_BPF and CAP_PERFMON")]
    Latency(String),
    /// A later operation on the programs or maps failed.
    #[error("tracing programs: {0}")]
    Bpf(#[from] libbpf_rs::Error),
    /// An error of a file or socket.
    #[error("{what}: {source}")]
    Io {
        /// The file or socket.
        what: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The control socket is not available.
    #[error(transparent)]
    Daemon(#[from] penstock_daemon::Error),
    /// The request is invalid or cannot be satisfied.
    #[error("{0}")]
    Request(String),
}

impl ProbeError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
