//! What the daemons have in common: the disk server, the relay, the sampler and the tracer.
//!
//! Each is started with one JSON object, says `ready` to a descriptor, answers one JSON object per line on a
//! socket with one, and ends when it is told to, by a signal, or when the process that owns it is gone.

pub mod clock;
pub mod control;
pub mod desk;
pub mod due;
mod error;
pub mod private;
pub mod process;

pub use error::Error;
