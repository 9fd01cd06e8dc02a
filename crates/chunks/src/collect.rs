//! Garbage collection: removal of chunks that no map refers to.
//!
//! The mark phase reads the maps of all files. The sweep phase removes the chunks that existed before the mark phase
//! and are in none of the maps. It retains chunks of versions in progress, of open files, and of files that are opened,
//! committed or renamed during the collection. The collection fails if the store has another client, because that
//! client's versions in progress are not visible here. It also fails if a map is damaged, because the chunks of that
//! file are unknown.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::PoisonError;

use serde::Serialize;

use crate::clients::{others, Client, Role};
use crate::core::{walk, Core};
use crate::error::{Error, Result};
use crate::hash::{Address, Naming, ADDRESS_BYTES};
use crate::index::{keys, Key};
use crate::map::Map;

/// Maximum number of attempts to read all maps while directories are renamed.
const ATTEMPTS: usize = 5;

/// Result of a collection.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Collected {
    /// Number of maps.
    pub maps: u64,
    /// Number of chunks before the collection.
    pub chunks: u64,
    /// Number of removed chunks.
    pub removed_chunks: u64,
    /// Bytes of the removed chunks.
    pub removed_bytes: u64,
    /// Number of removed temporary files of dead clients.
    pub removed_drafts: u64,
}

/// A chunk and its size.
struct Candidate {
    key: Key,
    bytes: u64,
}

impl Core {
    /// Remove chunks that no file needs. Error: another client uses the store, or a map is damaged.
    pub fn collect(&self) -> Result<Collected> {
        let _client = Client::register(&self.objects, Role::Collector)?;
        let mut prefixes = vec![self.objects.names.prefix()];
        prefixes.extend(others(&self.objects)?.into_iter().map(|other| other.prefix));
        if !self.index().start_collection() {
            return Err(Error::Bad("a collection is in progress already".into()));
        }
        let result = self.collect_now(&prefixes);
        self.index().end_collection();
        result
    }

    fn wait_for_loading(&self) {
        drop(self.loading.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn collect_now(&self, prefixes: &[String]) -> Result<Collected> {
        let mut collected = Collected::default();
        self.wait_for_loading();
        let candidates = self.candidates()?;
        let marked = self.mark(&mut collected)?;
        self.wait_for_loading();
        // otherwise, a power cut could restore a replaced map whose chunks were removed
        self.objects.sync()?;
        collected.chunks = candidates.len() as u64;
        for (done, candidate) in candidates.iter().enumerate() {
            self.step(done, candidates.len());
            let key = candidate.key;
            if marked.contains(&key) {
                continue;
            }
            let path = self.objects.chunk_path(key.0, &key.1);
            // under the lock, so that no version begins to rely on the chunk now
            let mut index = self.index();
            if index.release(&key) {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(Error::at(&path, error));
                    }
                    _ => {}
                }
                drop(index);
                collected.removed_chunks += 1;
                collected.removed_bytes += candidate.bytes;
            }
        }
        collected.removed_drafts = self.remove_drafts(prefixes)?;
        Ok(collected)
    }

    fn candidates(&self) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        walk(&self.objects.chunk_directory(), &mut |path, facts| {
            let name = path.file_name().unwrap_or_default();
            if let Some(key) = key_of(&name.to_string_lossy()) {
                let bytes = facts.len();
                candidates.push(Candidate { key, bytes });
            }
        })?;
        Ok(candidates)
    }

    /// Collect the chunks of all files.
    fn mark(&self, collected: &mut Collected) -> Result<HashSet<Key>> {
        let mut marked = HashSet::new();
        for _ in 0..ATTEMPTS {
            let mut damaged = Vec::new();
            collected.maps = 0;
            walk(&self.objects.files(), &mut |path, _| {
                collected.maps += 1;
                self.step(0, collected.maps as usize);
                match Map::load(path) {
                    Ok(map) => marked.extend(keys(&map)),
                    // removed during the walk
                    Err(Error::Io { source, .. })
                        if source.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => damaged.push(error.to_string()),
                }
            })?;
            if let Some(first) = damaged.first() {
                return Err(Error::Damaged(format!(
                    "{first}; nothing is removed while the chunks of {} unknown: restore or remove the file first",
                    if damaged.len() == 1 { "a file are".into() } else { format!("{} files are", damaged.len()) }
                )));
            }
            // the walk may have missed a directory that was moved; wait for renames in progress, then try again
            self.wait_for_loading();
            if !std::mem::take(&mut self.index().moved) {
                return Ok(marked);
            }
        }
        Err(Error::Bad(
            "directories were renamed all the time; collect again later".into(),
        ))
    }

    fn remove_drafts(&self, prefixes: &[String]) -> Result<u64> {
        let directory = self.objects.drafts();
        let mut removed = 0;
        let entries = fs::read_dir(&directory).map_err(|error| Error::at(&directory, error))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let live = prefixes.iter().any(|prefix| name.starts_with(prefix));
            if !live && fs::remove_file(entry.path()).is_ok() {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Record a rename of a file or directory, which the collection in progress may miss.
    pub(crate) fn note_rename(&self, path: &Path) {
        if path.is_dir() {
            self.index().moved = true;
        } else if let Ok(map) = Map::load(path) {
            self.index().protect(&map);
        }
    }
}

/// Identity of the chunk in a file with this name.
fn key_of(name: &str) -> Option<Key> {
    let (digits, naming) = match name.split_once('.') {
        None => (name, Naming::Blake3),
        Some((digits, "s")) => (digits, Naming::Sha256),
        Some((digits, "u")) => (digits, Naming::Unique),
        Some(_) => return None,
    };
    if !digits.is_ascii() || digits.len() % 2 != 0 || digits.len() > 2 * ADDRESS_BYTES {
        return None;
    }
    let mut address: Address = [0; ADDRESS_BYTES];
    for (byte, at) in address.iter_mut().zip((0..digits.len()).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    (naming.file_name(&address) == name).then_some((naming, address))
}
