//! Map of a file's version: its chunks in order.
//!
//! A map is a file with these parts. Numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `PENCHUNK` |
//! | 2 | version of the format, 1 |
//! | 1 | naming of the chunks: 0 unique, 1 SHA-256, 2 BLAKE3 |
//! | 1 | n, length of the configuration's name |
//! | 4 | zero |
//! | 8 | size of the file in bytes |
//! | 8 | number of chunks |
//! | 8 | time of the version, ns since 1970 |
//! | 8 | xxHash3 (64 bits) of the above |
//! | n | name of the configuration |
//! | 36 per chunk | length (4), address (32) |
//! | 32 | BLAKE3 of everything above |

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::hash::{Address, Naming, ADDRESS_BYTES};

const MAGIC: &[u8; 8] = b"PENCHUNK";
const FORMAT: u16 = 1;
/// Bytes before the name of the configuration.
pub const HEADER_BYTES: usize = 48;
const CHECKED_BYTES: usize = 40;
const ENTRY_BYTES: usize = 4 + ADDRESS_BYTES;
const SUM_BYTES: usize = 32;
/// Maximum size of a map in bytes. It suffices for 4 TiB in chunks of 128 KiB, for instance.
const MOST_BYTES: u64 = 1 << 30;
/// Maximum number of chunks of a file, from `MOST_BYTES`.
pub(crate) const MOST_ENTRIES: usize =
    (MOST_BYTES as usize - HEADER_BYTES - 255 - SUM_BYTES) / ENTRY_BYTES;

/// Maximum size of a chunk in bytes.
const MOST_CHUNK_BYTES: u32 = 16 << 20;

/// A chunk of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Length in bytes.
    pub length: u32,
    /// Address in the store.
    pub address: Address,
}

/// Chunks of one version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Naming of the chunks.
    pub naming: Naming,
    /// Configuration with which the version was written.
    pub configuration: String,
    /// Time of the version, ns since 1970.
    pub committed_ns: u64,
    entries: Vec<Entry>,
    /// Offset at which each chunk ends.
    ends: Vec<u64>,
}

/// Header of a map: the fields before the chunks.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    naming: Naming,
    name_bytes: usize,
    /// Size of the file in bytes.
    pub size_bytes: u64,
    count: u64,
    committed_ns: u64,
}

fn number(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

impl Header {
    /// Parse a header. Error: the reason why it is damaged.
    fn parse(raw: &[u8]) -> std::result::Result<Self, String> {
        if raw.len() < HEADER_BYTES {
            return Err(format!("it has {} bytes", raw.len()));
        }
        if &raw[..8] != MAGIC {
            return Err("it does not begin as a map".into());
        }
        if number(&raw[CHECKED_BYTES..HEADER_BYTES]) != xxh3_64(&raw[..CHECKED_BYTES]) {
            return Err("the checksum of its header is wrong".into());
        }
        let format = number(&raw[8..10]);
        if format != u64::from(FORMAT) {
            return Err(format!("it has format {format}; expected {FORMAT}"));
        }
        Ok(Header {
            naming: Naming::from_number(raw[10]).ok_or("the naming of its chunks is unknown")?,
            name_bytes: raw[11].into(),
            size_bytes: number(&raw[16..24]),
            count: number(&raw[24..32]),
            committed_ns: number(&raw[32..40]),
        })
    }

    /// Read the header of the map in `file`. Error: it is damaged.
    pub fn read(file: &File, path: &Path) -> Result<Self> {
        let mut raw = [0; HEADER_BYTES];
        let mut filled = 0;
        while filled < raw.len() {
            match file
                .read_at(&mut raw[filled..], filled as u64)
                .map_err(|error| Error::at(path, error))?
            {
                0 => break,
                more => filled += more,
            }
        }
        Self::parse(&raw[..filled]).map_err(|why| damaged(path, &why))
    }
}

fn damaged(path: &Path, why: &str) -> Error {
    Error::Damaged(format!("map {} is damaged: {why}", path.display()))
}

impl Map {
    /// Create a map of `entries`.
    pub fn new(
        naming: Naming,
        configuration: String,
        committed_ns: u64,
        entries: Vec<Entry>,
    ) -> Self {
        let mut end = 0;
        let ends = entries
            .iter()
            .map(|entry| {
                end += u64::from(entry.length);
                end
            })
            .collect();
        Map {
            naming,
            configuration,
            committed_ns,
            entries,
            ends,
        }
    }

    /// Size of the file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Chunks in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Index of the chunk that contains the byte at `offset`, and the offset of its first byte.
    pub fn chunk_at(&self, offset: u64) -> Option<(usize, u64)> {
        let index = self.ends.partition_point(|&end| end <= offset);
        let end = self.ends.get(index)?;
        Some((index, end - u64::from(self.entries[index].length)))
    }

    /// Encode the map.
    pub fn to_bytes(&self) -> Vec<u8> {
        let name = self.configuration.as_bytes();
        let name = &name[..name.len().min(255)];
        let mut raw = Vec::with_capacity(
            HEADER_BYTES + name.len() + ENTRY_BYTES * self.entries.len() + SUM_BYTES,
        );
        raw.extend_from_slice(MAGIC);
        raw.extend_from_slice(&FORMAT.to_le_bytes());
        raw.extend_from_slice(&[self.naming.number(), name.len() as u8, 0, 0, 0, 0]);
        raw.extend_from_slice(&self.size_bytes().to_le_bytes());
        raw.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        raw.extend_from_slice(&self.committed_ns.to_le_bytes());
        let sum = xxh3_64(&raw);
        raw.extend_from_slice(&sum.to_le_bytes());
        raw.extend_from_slice(name);
        for entry in &self.entries {
            raw.extend_from_slice(&entry.length.to_le_bytes());
            raw.extend_from_slice(&entry.address);
        }
        let sum = blake3::hash(&raw);
        raw.extend_from_slice(sum.as_bytes());
        raw
    }

    /// Read the map at `path`. Error: it is damaged.
    pub fn load(path: &Path) -> Result<Self> {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path);
        let mut file = file.map_err(|error| Error::at(path, error))?;
        let mut raw = Vec::new();
        file.by_ref()
            .take(MOST_BYTES + 1)
            .read_to_end(&mut raw)
            .map_err(|error| Error::at(path, error))?;
        Self::parse(&raw).map_err(|why| damaged(path, &why))
    }

    fn parse(raw: &[u8]) -> std::result::Result<Self, String> {
        let header = Header::parse(raw)?;
        let fixed = HEADER_BYTES + header.name_bytes + SUM_BYTES;
        let expected = header
            .count
            .checked_mul(ENTRY_BYTES as u64)
            .and_then(|bytes| bytes.checked_add(fixed as u64));
        if expected != Some(raw.len() as u64) || raw.len() as u64 > MOST_BYTES {
            let expected = expected.map_or("fewer".into(), |bytes| bytes.to_string());
            return Err(format!("it has {} bytes; expected {expected}", raw.len()));
        }
        let (checked, sum) = raw.split_at(raw.len() - SUM_BYTES);
        if blake3::hash(checked).as_bytes() != sum {
            return Err("its checksum is wrong".into());
        }
        let (name, entries) = checked[HEADER_BYTES..].split_at(header.name_bytes);
        let entries = entries.chunks_exact(ENTRY_BYTES).map(|raw| {
            let mut address = [0; ADDRESS_BYTES];
            address.copy_from_slice(&raw[4..]);
            Entry {
                length: number(&raw[..4]) as u32,
                address,
            }
        });
        let name = String::from_utf8_lossy(name).into_owned();
        let map = Map::new(header.naming, name, header.committed_ns, entries.collect());
        if map
            .entries
            .iter()
            .any(|entry| entry.length > MOST_CHUNK_BYTES)
        {
            return Err(format!(
                "it has a chunk of more than {MOST_CHUNK_BYTES} bytes"
            ));
        }
        if map.size_bytes() == header.size_bytes {
            Ok(map)
        } else {
            Err(format!(
                "its chunks have {} bytes; expected {}",
                map.size_bytes(),
                header.size_bytes
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(lengths: &[u32]) -> Map {
        let entries = lengths.iter().enumerate().map(|(i, &length)| Entry {
            length,
            address: [i as u8; 32],
        });
        Map::new(Naming::Blake3, "fixed:1".into(), 7, entries.collect())
    }

    proptest! {
        #[test]
        fn maps_round_trip(lengths in prop::collection::vec(1u32..1000, 0..50)) {
            let map = map(&lengths);
            prop_assert_eq!(Map::parse(&map.to_bytes()), Ok(map));
        }

        #[test]
        fn truncated_and_changed_maps_are_detected(
            lengths in prop::collection::vec(1u32..1000, 0..9), at in any::<prop::sample::Index>(), flip in 1u8..=255
        ) {
            let raw = map(&lengths).to_bytes();
            let at = at.index(raw.len());
            prop_assert!(Map::parse(&raw[..at]).is_err());
            let mut changed = raw.clone();
            changed[at] ^= flip;
            prop_assert!(Map::parse(&changed).is_err());
            let mut longer = raw;
            longer.push(0);
            prop_assert!(Map::parse(&longer).is_err());
        }
    }

    #[test]
    fn offsets_map_to_chunks() {
        let map = map(&[3, 1, 2]);
        let chunks: Vec<_> = (0..7).map(|offset| map.chunk_at(offset)).collect();
        assert_eq!(
            chunks,
            [
                Some((0, 0)),
                Some((0, 0)),
                Some((0, 0)),
                Some((1, 3)),
                Some((2, 4)),
                Some((2, 4)),
                None
            ]
        );
    }
}
