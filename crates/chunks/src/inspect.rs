//! Verification and disk usage of a store.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::core::{walk, Core};
use crate::error::{Error, Result};
use crate::index::Key;
use crate::map::{Header, Map};

/// Maximum number of problems that are listed. Further ones are only counted.
const MOST_LISTED: usize = 1000;

/// Result of a verification.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Verified {
    /// Number of maps that were read.
    pub maps: u64,
    /// Number of distinct chunks that were read.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub bytes: u64,
    /// Number of damaged files.
    pub damaged_files: u64,
    /// Path below the mount and reason for each damaged file, at most 1000.
    pub damaged: Vec<(String, String)>,
}

/// Disk usage of a family of files.
#[derive(Debug, Default, Clone, Serialize)]
pub struct FamilyUsage {
    /// Number of files.
    pub files: u64,
    /// Bytes of the files.
    pub logical_bytes: u64,
    /// Bytes of their chunks, each counted once in the family.
    pub unique_bytes: u64,
}

/// Disk usage of a store.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Usage {
    /// Number of files.
    pub files: u64,
    /// Bytes of the files.
    pub logical_bytes: u64,
    /// Bytes of all chunks.
    pub stored_bytes: u64,
    /// Bytes of the maps.
    pub map_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Number of files with a damaged map.
    pub damaged_files: u64,
    /// Disk usage by family.
    pub families: BTreeMap<String, FamilyUsage>,
}

impl Core {
    fn maps(&self) -> Result<Vec<(PathBuf, u64)>> {
        let mut paths = Vec::new();
        walk(&self.objects.files(), &mut |path, facts| {
            paths.push((path.to_owned(), facts.len()));
        })?;
        paths.sort();
        Ok(paths)
    }

    /// Path below the mount, as in records and reports.
    pub(crate) fn below(&self, path: &Path) -> String {
        let below = path.strip_prefix(self.objects.files()).unwrap_or(path);
        below.to_string_lossy().into_owned()
    }

    /// Read all maps and all of their chunks, and compare the chunks with their hashes.
    pub fn verify(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut seen: HashMap<Key, Option<String>> = HashMap::new();
        let paths = self.maps()?;
        for (done, (path, _)) in paths.iter().enumerate() {
            self.step(done, paths.len());
            let problem = match Map::load(path) {
                Ok(map) => self.damaged_chunk(&map, &mut seen, &mut verified)?,
                // removed during the walk
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    continue
                }
                Err(error) => Some(error.to_string()),
            };
            verified.maps += 1;
            // if the file was replaced or removed during the check, its chunks may be removed
            if let Some(why) = problem.filter(|_| path.exists()) {
                verified.damaged_files += 1;
                if verified.damaged.len() < MOST_LISTED {
                    verified.damaged.push((self.below(path), why));
                }
            }
        }
        Ok(verified)
    }

    fn damaged_chunk(
        &self,
        map: &Map,
        seen: &mut HashMap<Key, Option<String>>,
        verified: &mut Verified,
    ) -> Result<Option<String>> {
        let mut first = None;
        for entry in map.entries() {
            let key = map.naming.key(entry.address);
            if let Some(earlier) = seen.get(&key) {
                first = first.or_else(|| earlier.clone());
                continue;
            }
            let problem = match self.objects.load(map.naming, entry, false) {
                Ok(_) => None,
                Err(error @ Error::Damaged(_)) => {
                    self.index().note_damage(key);
                    Some(error.to_string())
                }
                Err(error) => return Err(error),
            };
            verified.chunks += 1;
            verified.bytes += u64::from(entry.length);
            first = first.or_else(|| problem.clone());
            seen.insert(key, problem);
        }
        Ok(first)
    }

    /// Add up the bytes of files and chunks.
    pub fn usage(&self) -> Result<Usage> {
        let mut usage = Usage::default();
        let mut seen: HashMap<String, HashSet<Key>> = HashMap::new();
        let paths = self.maps()?;
        for (done, (path, map_bytes)) in paths.iter().enumerate() {
            self.step(done, paths.len());
            usage.files += 1;
            usage.map_bytes += map_bytes;
            let Ok(map) = Map::load(path) else {
                usage.damaged_files += 1;
                continue;
            };
            let family = self.family(&self.below(path));
            let of = usage.families.entry(family.clone()).or_default();
            let seen = seen.entry(family).or_default();
            of.files += 1;
            of.logical_bytes += map.size_bytes();
            usage.logical_bytes += map.size_bytes();
            for entry in map.entries() {
                if seen.insert(map.naming.key(entry.address)) {
                    of.unique_bytes += u64::from(entry.length);
                }
            }
        }
        walk(&self.objects.chunk_directory(), &mut |_, facts| {
            usage.chunks += 1;
            usage.stored_bytes += facts.len();
        })?;
        Ok(usage)
    }
}

/// Size of the file whose map is at `path` [bytes]. Error: the header is damaged.
pub(crate) fn size_at(path: &Path) -> Result<u64> {
    let file = fs::File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| Error::at(path, error))?;
    Header::read(&file, path).map(|header| header.size_bytes)
}
