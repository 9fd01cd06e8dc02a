//! Common code of the daemons: the disk server, the relay, the sampler and the tracer.
//!
//! A daemon starts with one JSON object as its configuration and writes `ready` to a descriptor. On a socket it
//! answers each JSON object (one per line) with another. It ends on request, on a signal, or when its owner
//! process ends.

pub mod clock;
pub mod control;
pub mod desk;
pub mod due;
mod error;
pub mod private;
pub mod process;

pub use error::Error;
