//! Version of a file while it is written. Each chunk is stored as soon as it is complete.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chunking::{Chunker, Chunking};
use crate::core::{now_ns, Core};
use crate::error::{Error, Result};
use crate::hash::{sha256, Naming};
use crate::index::{keys, Key};
use crate::map::{Entry, Map, MOST_ENTRIES};
use crate::record::Record;

/// Number of bytes per read from a staging file.
const BLOCK_BYTES: usize = 1 << 20;

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    hash: Duration,
    send: Duration,
    bytes: u64,
    similar_bytes: u64,
    chunks: u64,
    similar_chunks: u64,
}

/// Component that hashes chunks and stores those that are not in the store yet.
struct Sender {
    core: Arc<Core>,
    family: String,
    naming: Naming,
    chunker: Box<dyn Chunker>,
    pins: Vec<Key>,
    sent: HashSet<Key>,
    counts: Counts,
}

impl Sender {
    /// Store the first chunk of `data` unless it is already stored.
    fn first_chunk(&mut self, data: &[u8]) -> Result<Entry> {
        let begin = Instant::now();
        let content = &data[..self.chunker.cut(data)];
        let address = match self.naming {
            Naming::Unique => self.core.objects.names.address(content),
            Naming::Sha256 => sha256(content),
            Naming::Blake3 => *blake3::hash(content).as_bytes(),
        };
        let key = self.naming.key(address);
        let stored = match self.naming {
            Naming::Unique => {
                self.core.index().pin(key);
                false
            }
            _ => self.core.claim(&self.family, key, content.len()) || self.sent.contains(&key),
        };
        self.pins.push(key);
        let hashed = Instant::now();
        // without deduplication nothing is compared: the checksum is a part of sending
        match self.naming {
            Naming::Unique => self.counts.send += hashed - begin,
            _ => self.counts.hash += hashed - begin,
        }
        self.counts.chunks += 1;
        self.counts.bytes += content.len() as u64;
        if stored {
            self.counts.similar_chunks += 1;
            self.counts.similar_bytes += content.len() as u64;
        } else {
            // do not replace a chunk of another family: it may be on the devices already, a new copy is not
            if self.naming == Naming::Unique || !self.core.is_intact(&key, content.len()) {
                self.core.objects.put(self.naming, &address, content)?;
            }
            self.counts.send += hashed.elapsed();
            if self.naming != Naming::Unique {
                self.core.index().repaired(&key);
                self.sent.insert(key);
            }
        }
        Ok(Entry {
            length: content.len() as u32,
            address,
        })
    }
}

/// Refuse more chunks than a map can have.
fn check_count(chunks: usize) -> Result<()> {
    if chunks <= MOST_ENTRIES {
        return Ok(());
    }
    let source = std::io::Error::from_raw_os_error(libc::EFBIG);
    let what = format!("a file of more than {MOST_ENTRIES} chunks");
    Err(Error::Io { what, source })
}

/// Content that is written sequentially.
#[derive(Default)]
struct Stream {
    entries: Vec<Entry>,
    /// Bytes of the chunks in `entries`.
    sent_bytes: u64,
    /// Bytes after these chunks, from index `begin` on.
    buffer: Vec<u8>,
    begin: usize,
}

impl Stream {
    fn size_bytes(&self) -> u64 {
        self.sent_bytes + self.tail().len() as u64
    }

    fn tail(&self) -> &[u8] {
        &self.buffer[self.begin..]
    }

    fn push(&mut self, mut data: &[u8], sender: &mut Sender) -> Result<()> {
        let most = sender.chunker.most();
        while !data.is_empty() {
            // cut small chunks from a window of several ones, to move few bytes
            let window = (2 * most).max(BLOCK_BYTES);
            let fits = data.len().min(window.saturating_sub(self.tail().len()));
            if self.buffer.len() + fits > self.buffer.capacity() || self.buffer.is_empty() {
                self.buffer.drain(..self.begin);
                self.begin = 0;
                self.buffer
                    .reserve(window.saturating_sub(self.buffer.len()));
            }
            self.buffer.extend_from_slice(&data[..fits]);
            data = &data[fits..];
            while self.tail().len() >= most {
                self.send_first(sender)?;
            }
        }
        Ok(())
    }

    fn send_first(&mut self, sender: &mut Sender) -> Result<()> {
        check_count(self.entries.len() + 1)?;
        let entry = sender.first_chunk(&self.buffer[self.begin..])?;
        self.begin += entry.length as usize;
        self.sent_bytes += u64::from(entry.length);
        self.entries.push(entry);
        Ok(())
    }

    /// Chunks of the file if it ended here. The bytes of the tail stay, because more may follow.
    fn ended(&self, sender: &mut Sender) -> Result<Vec<Entry>> {
        let mut entries = self.entries.clone();
        let mut tail = self.tail();
        while !tail.is_empty() {
            let entry = sender.first_chunk(tail)?;
            tail = &tail[entry.length as usize..];
            entries.push(entry);
        }
        check_count(entries.len())?;
        Ok(entries)
    }
}

/// A complete copy of the content, for writes in any order.
struct Staged {
    path: PathBuf,
    file: File,
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

enum Body {
    Stream(Stream),
    Staged(Staged),
}

/// A version that is being written.
pub struct Version {
    sender: Sender,
    configuration: Chunking,
    body: Body,
    /// True if the content has changed since the last commit.
    pub dirty: bool,
    started: Instant,
    started_ns: u64,
    committed: Option<Instant>,
}

impl Version {
    /// Create a version of a file that begins with the content of `base`.
    pub fn new(
        core: &Arc<Core>,
        family: String,
        configuration: Chunking,
        hash: Naming,
        base: Option<&Map>,
    ) -> Result<Self> {
        core.prepare(&family);
        let naming = match configuration {
            Chunking::Off => Naming::Unique,
            _ => hash,
        };
        let mut version = Version {
            sender: Sender {
                core: core.clone(),
                family,
                naming,
                chunker: configuration.chunker(),
                pins: Vec::new(),
                sent: HashSet::new(),
                counts: Counts::default(),
            },
            configuration,
            body: Body::Stream(Stream::default()),
            dirty: false,
            started: Instant::now(),
            started_ns: now_ns(),
            committed: None,
        };
        if let Some(base) = base.filter(|base| base.size_bytes() > 0) {
            version.begin_with(base)?;
        }
        Ok(version)
    }

    /// Continue `base`. Chunks of the same configuration are reused, except the last one, which may grow.
    fn begin_with(&mut self, base: &Map) -> Result<()> {
        let same = base.naming == self.sender.naming
            && base.configuration == self.configuration.to_string();
        if !same {
            self.stage(Some(base))?;
            return Ok(());
        }
        if let Some((last, entries)) = base.entries().split_last() {
            let core = self.sender.core.clone();
            for entry in entries {
                let key = base.naming.key(entry.address);
                core.index().pin(key);
                self.sender.pins.push(key);
            }
            self.body = Body::Stream(Stream {
                entries: entries.to_vec(),
                sent_bytes: base.size_bytes() - u64::from(last.length),
                buffer: core.chunk(base.naming, last)?,
                begin: 0,
            });
        }
        Ok(())
    }

    /// Size of the content in bytes.
    pub fn size_bytes(&self) -> Result<u64> {
        match &self.body {
            Body::Stream(stream) => Ok(stream.size_bytes()),
            Body::Staged(staged) => {
                let facts = staged.file.metadata();
                facts
                    .map(|facts| facts.len())
                    .map_err(|error| Error::at(&staged.path, error))
            }
        }
    }

    /// Write `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.dirty = true;
        if let Body::Stream(stream) = &mut self.body {
            if offset == stream.size_bytes() {
                return stream.push(data, &mut self.sender);
            }
        }
        let staged = self.stage(None)?;
        staged
            .file
            .write_all_at(data, offset)
            .map_err(|error| Error::at(&staged.path, error))
    }

    /// Set the size: truncate the content, or extend it with zeros.
    pub fn set_size(&mut self, size_bytes: u64) -> Result<()> {
        if size_bytes == self.size_bytes()? {
            return Ok(());
        }
        self.dirty = true;
        if size_bytes == 0 {
            self.body = Body::Stream(Stream::default());
            return Ok(());
        }
        let staged = self.stage(None)?;
        staged
            .file
            .set_len(size_bytes)
            .map_err(|error| Error::at(&staged.path, error))
    }

    /// Copy the content to a staging file if there is none yet: that of `base`, or else what was written so far.
    fn stage(&mut self, base: Option<&Map>) -> Result<&Staged> {
        if let Body::Stream(stream) = &self.body {
            let core = &self.sender.core;
            let (path, file) = core.objects.draft()?;
            let staged = Staged { path, file };
            let written;
            let (naming, entries) = match base {
                Some(map) => (map.naming, map.entries()),
                None => {
                    written = &stream.entries;
                    (self.sender.naming, written.as_slice())
                }
            };
            let mut at = 0;
            let put = |content: &[u8], at: u64| {
                let result = staged.file.write_all_at(content, at);
                result.map_err(|error| Error::at(&staged.path, error))
            };
            for entry in entries {
                put(&core.chunk(naming, entry)?, at)?;
                at += u64::from(entry.length);
            }
            if base.is_none() {
                put(stream.tail(), at)?;
            }
            self.body = Body::Staged(staged);
        }
        match &self.body {
            Body::Staged(staged) => Ok(staged),
            Body::Stream(_) => Err(Error::Bad("the content is not staged".into())),
        }
    }

    /// Read up to `size` bytes at `offset`.
    pub fn read(&self, offset: u64, size: usize) -> Result<Vec<u8>> {
        let stream = match &self.body {
            Body::Stream(stream) => stream,
            Body::Staged(staged) => {
                let mut content = vec![0; size];
                let filled = read_full(&staged.file, &mut content, offset)
                    .map_err(|error| Error::at(&staged.path, error))?;
                content.truncate(filled);
                return Ok(content);
            }
        };
        let end = (offset + size as u64).min(stream.size_bytes());
        let mut content = Vec::with_capacity(size);
        let mut begin = 0;
        for entry in &stream.entries {
            let next = begin + u64::from(entry.length);
            if next > offset && begin < end {
                let chunk = self.sender.core.chunk(self.sender.naming, entry)?;
                let from = offset.saturating_sub(begin) as usize;
                content.extend_from_slice(&chunk[from..(end.min(next) - begin) as usize]);
            }
            begin = next;
        }
        if end > begin.max(offset) {
            let from = offset.saturating_sub(begin) as usize;
            content.extend_from_slice(&stream.tail()[from..(end - begin) as usize]);
        }
        Ok(content)
    }

    /// Store the remaining chunks and return the map of the content.
    pub fn map(&mut self) -> Result<Map> {
        let entries = match &self.body {
            Body::Stream(stream) => stream.ended(&mut self.sender)?,
            Body::Staged(staged) => {
                let mut stream = Stream::default();
                let mut block = vec![0; BLOCK_BYTES];
                let mut at = 0;
                loop {
                    let filled = read_full(&staged.file, &mut block, at)
                        .map_err(|error| Error::at(&staged.path, error))?;
                    if filled == 0 {
                        break stream.ended(&mut self.sender)?;
                    }
                    stream.push(&block[..filled], &mut self.sender)?;
                    at += filled as u64;
                }
            }
        };
        let configuration = self.configuration.to_string();
        Ok(Map::new(
            self.sender.naming,
            configuration,
            now_ns(),
            entries,
        ))
    }

    /// Record that the version was committed as `map`. `sending` is the time for storing the map.
    pub fn committed(&mut self, map: &Map, sending: Duration) {
        self.dirty = false;
        self.sender.counts.send += sending;
        self.committed = Some(Instant::now());
        let core = self.sender.core.clone();
        let mut index = core.index();
        index.add(&self.sender.family, map);
        // the last chunks of earlier commits are garbage now
        let pins: Vec<Key> = keys(map).collect();
        pins.iter().for_each(|&key| index.pin(key));
        let current: HashSet<Key> = pins.iter().copied().collect();
        index.unpin(&std::mem::replace(&mut self.sender.pins, pins));
        self.sender.sent.retain(|key| current.contains(key));
    }

    /// Record of the version; None if it was never committed.
    pub fn record(&self, path: String) -> Option<Record> {
        let counts = &self.sender.counts;
        Some(Record {
            family: self.sender.family.clone(),
            path,
            at_s: self.started_ns as f64 / 1e9,
            duration_s: (self.committed? - self.started).as_secs_f64(),
            hash_s: counts.hash.as_secs_f64(),
            send_s: counts.send.as_secs_f64(),
            bytes: counts.bytes,
            similar_bytes: counts.similar_bytes,
            chunks: counts.chunks,
            similar_chunks: counts.similar_chunks,
            configuration: self.configuration.to_string(),
        })
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        self.sender.core.index().unpin(&self.sender.pins);
    }
}

fn read_full(file: &File, into: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match file.read_at(&mut into[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
