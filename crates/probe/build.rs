//! Compiles the BPF programs (clang 12 or newer) and generates their skeletons; the build host's kernel is not queried.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["trace", "features", "layers", "latency"] {
        if let Err(error) = SkeletonBuilder::new()
            .source(format!("src/bpf/{name}.bpf.c"))
            .clang_args(["-mcpu=v3", "-Isrc/bpf", "-Wall"])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
        {
            eprintln!(
                "the BPF programs need clang (Debian: apt-get install clang llvm): {error:#}"
            );
            std::process::exit(1);
        }
    }
}
