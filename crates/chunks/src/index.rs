//! Chunks of previous versions by family, and chunks that a collection must retain.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use crate::hash::{Address, Naming};
use crate::map::Map;

/// Identity of a chunk in the store.
pub type Key = (Naming, Address);

/// Number of versions per family with which new ones are compared.
const VERSIONS: usize = 4;
/// Maximum number of chunks of all families, about 100 MB of memory.
const MOST_CHUNKS: usize = 1 << 20;
/// Maximum number of damaged chunks that are remembered.
const MOST_DAMAGED: usize = 1 << 16;

#[derive(Default)]
struct Family {
    /// Chunks of the last versions, the newest last.
    versions: VecDeque<Vec<Key>>,
    /// Number of these versions that have the chunk.
    chunks: HashMap<Key, u32>,
    used: u64,
}

impl Family {
    fn drop_oldest(&mut self) -> usize {
        let Some(oldest) = self.versions.pop_front() else {
            return 0;
        };
        for key in &oldest {
            if let Some(count) = self.chunks.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.chunks.remove(key);
                }
            }
        }
        oldest.len()
    }
}

/// Chunks that are stored: those of previous versions, of versions in progress and of open files.
#[derive(Default)]
pub(crate) struct Index {
    families: HashMap<String, Family>,
    /// Newest maps of each family when the store was opened, the newest last.
    earlier: HashMap<String, Vec<PathBuf>>,
    /// Number of chunks of all versions in `families`.
    listed: usize,
    used: u64,
    /// Number of versions in progress that rely on each chunk.
    pins: HashMap<Key, u32>,
    /// Maps of open files by handle.
    open: HashMap<u64, Arc<Map>>,
    /// Chunks that the collection in progress must retain; None without a collection.
    protected: Option<HashSet<Key>>,
    /// True if a directory was renamed during the collection.
    pub(crate) moved: bool,
    /// Damaged chunks that were not stored again yet.
    damaged: HashSet<Key>,
    /// Chunks from versions of earlier mounts whose files were not checked yet.
    doubtful: HashSet<Key>,
}

/// Distinct chunks of a map.
pub(crate) fn keys(map: &Map) -> impl Iterator<Item = Key> + '_ {
    map.entries()
        .iter()
        .map(|entry| map.naming.key(entry.address))
}

impl Index {
    /// Set the newest maps of each family.
    pub(crate) fn set_earlier(&mut self, earlier: HashMap<String, Vec<PathBuf>>) {
        self.earlier = earlier;
    }

    /// Remove and return the recorded maps of a family.
    pub(crate) fn take_earlier(&mut self, family: &str) -> Vec<PathBuf> {
        let mut paths = self.earlier.remove(family).unwrap_or_default();
        paths.drain(..paths.len().saturating_sub(VERSIONS));
        paths
    }

    /// Add a version to its family.
    pub(crate) fn add(&mut self, family: &str, map: &Map) {
        self.used += 1;
        let used = self.used;
        let unique: HashSet<Key> = keys(map).collect();
        if unique.is_empty() {
            return; // a family of empty files takes no memory
        }
        let of = self.families.entry(family.to_owned()).or_default();
        of.used = used;
        for key in &unique {
            *of.chunks.entry(*key).or_default() += 1;
        }
        self.listed += unique.len();
        of.versions.push_back(unique.into_iter().collect());
        while of.versions.len() > VERSIONS {
            self.listed -= of.drop_oldest();
        }
        while self.listed > MOST_CHUNKS {
            let oldest = self
                .families
                .iter()
                .min_by_key(|(_, of)| of.used)
                .map(|(name, _)| name.clone());
            let Some(name) = oldest else { return };
            let Some(of) = self.families.get_mut(&name) else {
                return;
            };
            self.listed -= of.drop_oldest();
            if of.versions.is_empty() {
                self.families.remove(&name);
            }
        }
    }

    /// True if a previous version of the family has the chunk; with None, of any family.
    pub(crate) fn has(&self, family: Option<&str>, key: &Key) -> bool {
        match family {
            Some(name) => self
                .families
                .get(name)
                .is_some_and(|of| of.chunks.contains_key(key)),
            None => self.families.values().any(|of| of.chunks.contains_key(key)),
        }
    }

    /// Record that the chunk is missing or damaged, and must be stored again.
    pub(crate) fn note_damage(&mut self, key: Key) {
        self.forget(&key);
        if self.damaged.len() < MOST_DAMAGED {
            self.damaged.insert(key);
        }
    }

    pub(crate) fn is_damaged(&self, key: &Key) -> bool {
        self.damaged.contains(key)
    }

    /// Record that the chunk was stored again.
    pub(crate) fn repaired(&mut self, key: &Key) {
        self.damaged.remove(key);
    }

    /// Record that the chunks of a map from before this mount may be missing.
    pub(crate) fn doubt(&mut self, map: &Map) {
        self.doubtful.extend(keys(map));
    }

    pub(crate) fn is_doubtful(&self, key: &Key) -> bool {
        self.doubtful.contains(key)
    }

    /// Record that the chunk exists.
    pub(crate) fn trust(&mut self, key: &Key) {
        self.doubtful.remove(key);
    }

    fn forget(&mut self, key: &Key) {
        self.doubtful.remove(key);
        for of in self.families.values_mut() {
            if of.chunks.remove(key).is_some() {
                for version in &mut of.versions {
                    let before = version.len();
                    version.retain(|other| other != key);
                    self.listed -= before - version.len();
                }
            }
        }
    }

    /// Pin a chunk on which a version in progress relies.
    pub(crate) fn pin(&mut self, key: Key) {
        *self.pins.entry(key).or_default() += 1;
    }

    /// Release the pins of a version. A collection in progress still retains the chunks.
    pub(crate) fn unpin(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(count) = self.pins.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.pins.remove(key);
                }
            }
            if let Some(protected) = &mut self.protected {
                protected.insert(*key);
            }
        }
    }

    /// Register the map of an open file.
    pub(crate) fn opened(&mut self, handle: u64, map: &Arc<Map>) {
        self.protect(map);
        self.open.insert(handle, map.clone());
    }

    /// Remove the map of a closed file.
    pub(crate) fn closed(&mut self, handle: u64) {
        self.open.remove(&handle);
    }

    /// Protect the chunks of a map from the collection in progress.
    pub(crate) fn protect(&mut self, map: &Map) {
        if let Some(protected) = &mut self.protected {
            protected.extend(keys(map));
        }
    }

    /// Start a collection. Return false if one is in progress.
    pub(crate) fn start_collection(&mut self) -> bool {
        if self.protected.is_some() {
            return false;
        }
        let of_open: HashSet<Key> = self.open.values().flat_map(|map| keys(map)).collect();
        self.protected = Some(of_open);
        self.moved = false;
        true
    }

    pub(crate) fn end_collection(&mut self) {
        self.protected = None;
    }

    /// Forget the chunk and return true if the collection in progress may remove it.
    pub(crate) fn release(&mut self, key: &Key) -> bool {
        let needed = self.pins.contains_key(key)
            || self.protected.as_ref().is_none_or(|all| all.contains(key));
        if !needed {
            self.forget(key);
        }
        !needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Entry;

    fn key(number: u8) -> Key {
        (Naming::Blake3, [number; 32])
    }

    fn map(numbers: &[u8]) -> Map {
        let entries = numbers.iter().map(|&number| Entry {
            length: 1,
            address: [number; 32],
        });
        Map::new(Naming::Blake3, String::new(), 0, entries.collect())
    }

    #[test]
    fn only_recent_versions_of_a_family_are_compared() {
        let mut index = Index::default();
        for number in 0..6 {
            index.add("a", &map(&[number, number, 9]));
        }
        let listed: Vec<bool> = (0..6).map(|n| index.has(Some("a"), &key(n))).collect();
        assert_eq!(listed, [false, false, true, true, true, true]);
        assert!(index.has(Some("a"), &key(9)));
        assert!(!index.has(Some("b"), &key(9)));
        assert!(index.has(None, &key(9)));
        index.forget(&key(9));
        assert!(!index.has(Some("a"), &key(9)));
        assert_eq!(index.listed, 4);
    }

    #[test]
    fn collection_keeps_pinned_and_open_chunks() {
        let mut index = Index::default();
        index.opened(1, &Arc::new(map(&[1])));
        index.pin(key(2));
        assert!(index.start_collection());
        assert!(!index.start_collection());
        index.closed(1);
        index.unpin(&[key(2)]); // committed during the collection; the walk may have missed its map
        index.pin(key(3));
        let may: Vec<bool> = (1..5).map(|n| index.release(&key(n))).collect();
        assert_eq!(may, [false, false, false, true]);
        index.end_collection();
        index.start_collection();
        assert!(index.release(&key(1)));
        assert!(index.release(&key(2)));
    }
}
