//! A switch in user space that delays, loses, duplicates, corrupts and reorders frames between links, for kernels
//! without netem and for delays that differ from pair to pair.
//!
//! ```text
//!  node ── veth ── [packet socket] ─▶ switch ─▶ fate ─▶ delay line ─▶ [packet socket] ── veth ── node
//!                                       │         │
//!                            learned addresses   seeded draws: out of the sender, the pair, into the receiver
//! ```
//!
//! One thread does all the work. A frame is due at its kernel receive time plus its delay, so a late read of
//! the socket does not add to the delay. The remaining lateness of sending is measured and reported by `stats`.
//! Frames keep their large segments (a virtio header states their size), so bulk traffic costs one turn per 64
//! KiB.

mod config;
mod control;
mod engine;
mod fate;
mod frame;
mod jitter;
mod lateness;
mod line;
mod packet;
mod switch;

pub use config::{Delay, Distribution, Impairment};
pub use control::run;
pub use jitter::{quantiles, TABLE};
pub use penstock_daemon::Error;
