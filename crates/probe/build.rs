//! Compiles the BPF programs (clang 12 or newer) and generates their skeleton; the build host's kernel is not asked.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/trace.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Err(error) = SkeletonBuilder::new()
        .source(SOURCE)
        .clang_args(["-mcpu=v3", "-Isrc/bpf", "-Wall", "-Wno-unused-function"])
        .build_and_generate(out.join("trace.skel.rs"))
    {
        eprintln!("the BPF programs need clang (Debian: apt-get install clang llvm): {error:#}");
        std::process::exit(1);
    }
}
