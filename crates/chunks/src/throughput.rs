//! Throughput of hashes and chunkers on one processor core, from memory.

use std::hint::black_box;

use crate::chunking::Chunking;
use crate::hash::sha256;

/// Generator of random bytes: xorshift64*, Vigna 2016.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Create random bytes, the same for the same seed.
pub fn random_bytes(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Lengths of the chunks of `data`.
pub fn cuts(data: &[u8], chunking: Chunking) -> Vec<usize> {
    let chunker = chunking.chunker();
    let (mut rest, mut lengths) = (data, Vec::new());
    while !rest.is_empty() {
        let length = chunker.cut(rest);
        lengths.push(length);
        rest = &rest[length..];
    }
    lengths
}

/// Processor time of this thread in seconds. It excludes other programs.
fn thread_time_s() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Measure the bytes per second of processor time for `what` on `data`, once per repeat. `what` is `blake3`, `sha256`,
/// `xxh3`, or a method of chunking. Hashes are computed over pieces of `piece` bytes, as for chunks.
pub fn throughput(
    what: &str,
    data: &[u8],
    piece: usize,
    repeats: usize,
) -> Result<Vec<f64>, String> {
    let pieces = || data.chunks(piece.max(1));
    let mut rates = Vec::with_capacity(repeats);
    let chunking = match what {
        "blake3" | "sha256" | "xxh3" => None,
        _ => Some(what.parse::<Chunking>()?),
    };
    for _ in 0..repeats {
        let begin_s = thread_time_s();
        match (what, chunking) {
            (_, Some(chunking)) => _ = black_box(cuts(data, chunking)),
            ("blake3", _) => pieces().for_each(|piece| _ = black_box(blake3::hash(piece))),
            ("sha256", _) => pieces().for_each(|piece| _ = black_box(sha256(piece))),
            _ => pieces().for_each(|piece| _ = black_box(xxhash_rust::xxh3::xxh3_64(piece))),
        }
        rates.push(data.len() as f64 / (thread_time_s() - begin_s));
    }
    Ok(rates)
}
