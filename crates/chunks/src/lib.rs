//! Deduplicating chunk store in a directory of any file system, and its FUSE server.
//!
//! A file is a *map* of chunks, stored at the file's path below `files/`. Chunks are files below `chunks/`, named by
//! the hash of their content. A version is committed by renaming its map over the previous one:
//!
//! ```text
//!  program ─▶ FUSE ─▶ version: chunker ─▶ hash ─▶ in the family's maps? ─no─▶ chunks/ab/ab12…
//!                                                             │ yes                 │
//!                            close, fsync ─▶ map ─▶ tmp/… ◀───┴──── rename ─▶ files/PATH
//! ```
//!
//! # Example
//!
//! ```
//! use penstock_chunks::chunking::Chunking;
//!
//! let data = penstock_chunks::throughput::random_bytes(1 << 20, 1);
//! let chunking: Chunking = "fastcdc:4KiB,16KiB,64KiB".parse().unwrap();
//! let lengths = penstock_chunks::throughput::cuts(&data, chunking);
//! assert_eq!(lengths.iter().sum::<usize>(), data.len());
//! assert!(lengths.iter().all(|&length| length <= 64 << 10));
//! ```

mod attributes;
pub mod chunking;
pub mod clients;
pub mod collect;
pub mod compare;
pub mod core;
pub mod error;
pub mod family;
mod fastcdc;
mod filesystem;
pub mod hash;
mod index;
pub mod inspect;
pub mod map;
mod nodes;
pub mod objects;
mod open_file;
pub mod record;
mod records;
mod seqcdc;
pub mod server;
pub mod throughput;
mod tree;
pub mod version;
mod xattr;

pub use error::{Error, Result};
pub use server::run;
