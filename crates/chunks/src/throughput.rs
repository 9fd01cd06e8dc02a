//! Throughput of hashes and chunkers on one processor core, from memory.

use std::hint::black_box;
use std::time::Instant;

use crate::chunking::Chunking;
use crate::hash::sha256;

/// Generator of bytes without structure: xorshift64*, Vigna 2016.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Random bytes, the same for the same seed.
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

/// Bytes per second by which `what` treats `data`, once for each repeat: `blake3`, `sha256`, `xxh3`, or a method of
/// chunking. Hashes are computed of pieces of `piece` bytes, as of chunks.
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
        let begin = Instant::now();
        match (what, chunking) {
            (_, Some(chunking)) => _ = black_box(cuts(data, chunking)),
            ("blake3", _) => pieces().for_each(|piece| _ = black_box(blake3::hash(piece))),
            ("sha256", _) => pieces().for_each(|piece| _ = black_box(sha256(piece))),
            _ => pieces().for_each(|piece| _ = black_box(xxhash_rust::xxh3::xxh3_64(piece))),
        }
        rates.push(data.len() as f64 / begin.elapsed().as_secs_f64());
    }
    Ok(rates)
}
