//! FUSE disk server: a directory served at the speed of a storage profile.
//!
//! One process serves many mounts. A request is read from the kernel by one of a mount's reader
//! threads, the backing file is read or written at once, the [`penstock_station::Station`] says
//! when a device of that profile would have finished, and a timer thread answers then:
//!
//! ```text
//!  program ─▶ page cache ─▶ FUSE ─▶ reader: backing I/O, station ─▶ timer: answer at
//!                                                                  max(due, backing done)
//! ```
//!
//! Metadata operations pass through undelayed: a profile covers reads, writes and flushes.
//!
//! # Position on the device
//!
//! The station knows one address space, files have many. A request at `offset` of a file has the
//! device offset `((fnv1a64(path) mod 2^22) << 40) | (offset mod 2^40)`, `path` being relative to
//! the mount, without a leading slash, as it was when the file was first seen. So the same
//! requests get the same draws in the simulator, which knows the paths too
//! ([`position::device_offset`]).
//!
//! # Statistics page
//!
//! `STATS_DIR/<disk_id>.stats` is a file of 4096 bytes to be mapped shared: see [`counters`].
//!
//! # Request log
//!
//! Records of 80 bytes, little-endian, appended by a housekeeping thread: see [`log`].

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
