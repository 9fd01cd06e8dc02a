//! A storage device as a queueing station: requests go in, due times come out.
//!
//! ```text
//!  Request{op, offset, size}          k servers, first come first served
//!  ──────────────────────▶ [queue] ──▶ (server 1) ─┐    interface shared by all
//!            at t_ns                   (server 2) ─┼──▶ (rate, operations/s) ──▶ due_ns
//!                                      (server k) ─┘
//! ```
//!
//! A [`StorageProfile`] describes the costs of the device: a distribution of overheads and a rate for each class
//! (read or write, sequential or random). It can add a write cache, read-ahead, limits and credits. Limits and credits
//! delay answers. A [`Station`] simulates the device of a profile; a [`Patch`] changes it meanwhile. It does
//! no input or output and reads no clock, so the disk server runs it in real time and the simulator in virtual time.
//!
//! Random draws are counter-based: the draw of a request depends on the seed, its operation, its offset and the number
//! of earlier requests of that operation at that offset. It does not depend on other requests, so the same requests get
//! the same draws in any order.
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
//! // the second request waits for the first
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
