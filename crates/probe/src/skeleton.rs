//! Generated skeleton of the programs in `src/bpf/`.
#![allow(clippy::all, dead_code, missing_docs, unused)]

include!(concat!(env!("OUT_DIR"), "/trace.skel.rs"));
