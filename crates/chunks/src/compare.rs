//! Similarity of two files under a method of chunking, without a store.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Serialize;

use crate::chunking::Chunking;
use crate::error::{Error, Result};

/// Chunks of a file that also occur in another one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Similarity {
    /// Number of chunks.
    pub chunks: u64,
    /// Number of chunks that also occur in the other file.
    pub similar_chunks: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of similar chunks.
    pub similar_bytes: u64,
}

/// Call `see` for each chunk of the file at `path`.
fn each_chunk(path: &Path, chunking: Chunking, mut see: impl FnMut(&[u8])) -> Result<()> {
    let chunker = chunking.chunker();
    let mut file = File::open(path).map_err(|error| Error::at(path, error))?;
    let window = 4 * chunker.most() as u64;
    let mut buffer = Vec::new();
    loop {
        let missing = window - buffer.len() as u64;
        let more = file
            .by_ref()
            .take(missing)
            .read_to_end(&mut buffer)
            .map_err(|error| Error::at(path, error))?;
        let mut begin = 0;
        while buffer.len() - begin >= chunker.most() || more == 0 && begin < buffer.len() {
            let length = chunker.cut(&buffer[begin..]);
            see(&buffer[begin..begin + length]);
            begin += length;
        }
        if more == 0 {
            return Ok(());
        }
        buffer.drain(..begin);
    }
}

/// Count the chunks of `new` that also occur in `old`, by BLAKE3.
pub fn compare(old: &Path, new: &Path, chunking: Chunking) -> Result<Similarity> {
    let mut stored = HashSet::new();
    each_chunk(old, chunking, |chunk| {
        stored.insert(blake3::hash(chunk));
    })?;
    let mut similarity = Similarity::default();
    each_chunk(new, chunking, |chunk| {
        let similar = u64::from(stored.contains(&blake3::hash(chunk)));
        similarity.chunks += 1;
        similarity.similar_chunks += similar;
        similarity.bytes += chunk.len() as u64;
        similarity.similar_bytes += similar * chunk.len() as u64;
    })?;
    Ok(similarity)
}
