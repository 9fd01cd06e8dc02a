//! FUSE disk server: serves a directory at the speed of a storage profile.
//!
//! One process serves many mounts. A reader thread of the mount reads a request from the kernel and reads or
//! writes the backing file at once. The [`penstock_station::Station`] computes when a device of that profile
//! would have finished. A timer thread sends the reply at that time:
//!
//! ```text
//!  program ─▶ page cache ─▶ FUSE ─▶ reader: backing I/O, station ─▶ timer: answer at
//!                                                                  max(due, backing done)
//! ```
//!
//! Metadata operations are not delayed: a profile covers reads, writes and flushes.
//!
//! # Position on the device
//!
//! The station has one address space, but requests address many files. A request at `offset` of a file has the
//! device offset `((fnv1a64(path) mod 2^22) << 40) | (offset mod 2^40)`, where `path` is the path relative to
//! the mount, without a leading slash, when the server first saw the file. The simulator knows the paths too,
//! so it draws the same service times for the same requests ([`position::device_offset`]).
//!
//! # Statistics page
//!
//! `STATS_DIR/<disk_id>.stats` is a file of 4096 bytes for shared mapping: see [`counters`].
//!
//! # Request log
//!
//! Records of 80 bytes, little-endian. A housekeeping thread appends them: see [`log`].

mod awake;
mod backing;
pub mod calibration;
pub mod change;

mod clock;
pub mod closed_loop;
pub mod config;
pub mod control;
pub mod counters;
mod data;
mod directory;
pub mod disk;
pub mod faults;
pub mod file_names;
pub mod filesystem;
pub mod gate;
pub mod handle;
pub mod inode;
mod known;
pub mod log;
pub mod mount;
mod names;
mod open_file;
pub mod owner;
pub mod patch;
pub mod places;
pub mod position;
mod removed;
mod report;
pub mod schedule;
mod service;
mod serving;
pub mod space;
mod state;
pub mod ticket;
pub mod timer;
mod tree;
pub mod unsynced;
pub mod witness;

pub use control::run;
pub use penstock_daemon::Error;
