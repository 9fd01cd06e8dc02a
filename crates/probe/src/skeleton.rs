//! The programs of `src/bpf/`, as built.
#![allow(clippy::all, dead_code, missing_docs, unused)]

include!(concat!(env!("OUT_DIR"), "/trace.skel.rs"));
