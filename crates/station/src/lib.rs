//! A storage device as a queueing station: requests go in, due times come out.
//!
//! ```text
//!  Request{op, offset, size}          k servers, first come first served
//!  ──────────────────────▶ [queue] ──▶ (server 1) ─┐    interface shared by all
//!            at t_ns                   (server 2) ─┼──▶ (rate, operations/s) ──▶ due_ns
//!                                      (server k) ─┘
//! ```
//!
//! A [`StorageProfile`] says what the device costs: a distribution of overheads and a rate for every class
//! (read or write, sequential or random); it may add a write cache, read-ahead, and limits and credits that hold
//! answers back. A [`Station`] is that profile at work, and may be changed meanwhile by a [`Patch`]. It does no input or output and
//! knows no clock, so that the disk server can drive it in real time and the simulator in virtual time.
//!
//! Draws are counter-based: the draw of a request depends on the seed, its operation, its offset and how often that
//! offset was asked before, never on what other requests did. The same requests get the same draws in any order.
//!
//! ```
//! use penstock_station::{Op, Request, Station, StorageProfile};
//! let profile = StorageProfile::from_json(r#"{
//!   "schema": "penstock/storage-profile/1", "name": "one-ms", "servers": 1,
//!   "read":  {"sequential": {"overhead": {"kind": "constant", "value_s": 0.001}},
//!             "random":     {"overhead": {"kind": "constant", "value_s": 0.001}}},
//!   "write": {"sequential": {"overhead": {"kind": "constant", "value_s": 0.001}},
//!             "random":     {"overhead": {"kind": "constant", "value_s": 0.001}}}
//! }"#).unwrap();
//! let mut station = Station::new(&profile, 1).unwrap();
//! let read = Request { op: Op::Read, offset: 0, size: 4096 };
//! assert_eq!(station.arrive(0, read).due_ns, 1_000_000);
//! // the second one waits for the first
//! let served = station.arrive(0, read);
//! assert_eq!((served.wait_ns, served.due_ns), (1_000_000, 2_000_000));
//! ```

mod cost;
mod distribution;
mod gates;
mod normal;
mod pace;
mod patch;
mod profile;
mod random;
mod retime;
mod seek;
mod shape;
mod station;

pub use distribution::{Distribution, Part, Sampler};
pub use patch::{change, Change, LimitsPatch, Patch};
pub use profile::{
    Direction, Flush, InvalidProfile, PageFetch, ServiceClass, Source, StorageProfile, MAX_STREAMS,
    SCHEMA_ID,
};
pub use random::{mix64, Draws};
pub use retime::Retimed;
pub use seek::{file_base, Seek, SeekTimes, FILE_BITS};
pub use shape::{
    Bucket, Credits, Limits, Readahead, Slow, Stall, Stray, WriteCache, LIMIT_BURST_S,
    MAX_BUFFER_PAGES,
};
pub use station::{Levels, Op, Request, Served, Station};
