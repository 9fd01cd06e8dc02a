//! State that all files of a served store share.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::clients::Client;
use crate::error::{Error, Result};
use crate::family::Rule;
use crate::hash::Naming;
use crate::index::{Index, Key};
use crate::map::{Entry, Map};
use crate::objects::Objects;

/// Maximum number of maps of a family that are remembered until the family is written: the newest ones. A new version
/// is compared with the last of them.
const MOST_EARLIER: usize = 16;
/// Maximum depth of the directories that are read. Deeper ones do not fit in a path (PATH_MAX).
const MOST_LEVELS: usize = 2048;

/// Versions with which a new one is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Previous versions of the same family.
    Family,
    /// All chunks of the store.
    Global,
}

/// A store, and its state while this process uses it.
pub struct Core {
    /// Directories of the store.
    pub objects: Objects,
    /// Rule that forms families.
    pub rule: Rule,
    /// Scope of the comparison.
    pub scope: Scope,
    index: Mutex<Index>,
    /// Registration of this process if it writes.
    client: Mutex<Option<Client>>,
    /// True after the registration has ended: commits fail.
    retired: AtomicBool,
    /// Locked for reading while a map is loaded and registered. A collection locks it for writing to wait for these.
    pub(crate) loading: RwLock<()>,
    /// Steps of a long operation: completed and total.
    pub(crate) progress: [AtomicU64; 2],
}

/// Time since 1970 in ns.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

impl Core {
    /// Create the state of the store `objects`.
    pub fn new(objects: Objects, rule: Rule, scope: Scope) -> Self {
        Core {
            objects,
            rule,
            scope,
            index: Mutex::default(),
            client: Mutex::default(),
            retired: AtomicBool::default(),
            loading: RwLock::default(),
            progress: Default::default(),
        }
    }

    /// Set the registration of this process for writing.
    pub fn write_as(&self, client: Client) {
        *self.client() = Some(client);
    }

    /// End the registration.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.client().take();
    }

    fn client(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renew the registration before each commit. Error: it was removed, because this process seemed dead. Then chunks
    /// of its versions may have been collected.
    pub(crate) fn renew(&self) -> Result<()> {
        if self.retired.load(Ordering::Acquire) {
            return Err(Error::Damaged("the store is not used any more".into()));
        }
        self.client().as_ref().map_or(Ok(()), Client::touch)
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn step(&self, done: usize, all: usize) {
        self.progress[0].store(done as u64, Ordering::Relaxed);
        self.progress[1].store(all as u64, Ordering::Relaxed);
    }

    /// Family of a path below the mount.
    pub fn family(&self, path: &str) -> String {
        self.rule.family(path)
    }

    /// Find the newest maps of each family. [`Core::prepare`] loads them when they are needed.
    pub fn find_earlier(&self) -> Result<()> {
        let mut dated: HashMap<String, Vec<(i128, PathBuf)>> = HashMap::new();
        let files = self.objects.files();
        walk(&files, &mut |path, facts| {
            let below = path.strip_prefix(&files).unwrap_or(path);
            let changed =
                i128::from(facts.mtime()) * 1_000_000_000 + i128::from(facts.mtime_nsec());
            let of = dated
                .entry(self.family(&below.to_string_lossy()))
                .or_default();
            of.push((changed, path.to_owned()));
            if of.len() > MOST_EARLIER {
                of.sort();
                of.drain(..MOST_EARLIER / 2);
            }
        })?;
        let earlier = dated.into_iter().map(|(family, mut of)| {
            of.sort();
            (family, of.into_iter().map(|(_, path)| path).collect())
        });
        self.index().set_earlier(earlier.collect());
        Ok(())
    }

    /// Load the maps of previous versions of a family when it is first written.
    pub(crate) fn prepare(&self, family: &str) {
        let paths = self.index().take_earlier(family);
        for path in paths {
            let _loading = self.loading.read().unwrap_or_else(PoisonError::into_inner);
            // skip damaged and removed maps
            if let Ok(map) = Map::load(&path) {
                let mut index = self.index();
                index.doubt(&map);
                index.add(family, &map);
            }
        }
    }

    /// True if a file of this length exists for the chunk and it is not recorded as damaged.
    pub(crate) fn is_intact(&self, key: &Key, length: usize) -> bool {
        let damaged = self.index().is_damaged(key);
        !damaged && self.objects.has(key.0, &key.1, length)
    }

    /// Pin a chunk. Return true if it is already stored within the scope.
    pub(crate) fn claim(&self, family: &str, key: Key, length: usize) -> bool {
        let mut index = self.index();
        index.pin(key);
        // a chunk of an earlier mount may be missing or truncated after a power cut
        if index.is_doubtful(&key) {
            if self.objects.has(key.0, &key.1, length) {
                index.trust(&key);
            } else {
                index.note_damage(key);
            }
        }
        match self.scope {
            Scope::Family => index.has(Some(family), &key),
            // under the lock: a collection must not remove the chunk now
            Scope::Global => {
                let stored = || self.objects.has(key.0, &key.1, length);
                index.has(None, &key) || !index.is_damaged(&key) && stored()
            }
        }
    }

    /// Load the map at `path` for the open file `handle`.
    pub(crate) fn load_for(&self, handle: u64, path: &Path) -> Result<Arc<Map>> {
        let _loading = self.loading.read().unwrap_or_else(PoisonError::into_inner);
        let map = Arc::new(Map::load(path)?);
        self.index().opened(handle, &map);
        Ok(map)
    }

    /// Read the content of a chunk. A damaged chunk is stored again when it is next written.
    pub(crate) fn chunk(&self, naming: Naming, entry: &Entry) -> Result<Vec<u8>> {
        let content = self.objects.get(naming, entry);
        if matches!(content, Err(Error::Damaged(_))) {
            self.index().note_damage(naming.key(entry.address));
        }
        content
    }
}

/// Call `see` for each map below `directory`.
pub(crate) fn walk(directory: &Path, see: &mut dyn FnMut(&Path, &fs::Metadata)) -> Result<()> {
    let mut waiting = vec![(directory.to_owned(), 0)];
    while let Some((directory, level)) = waiting.pop() {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && level > 0 => continue,
            entries => entries.map_err(|error| Error::at(&directory, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| Error::at(&directory, error))?;
            let facts = match entry.metadata() {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                facts => facts.map_err(|error| Error::at(&entry.path(), error))?,
            };
            if facts.is_dir() {
                if level == MOST_LEVELS {
                    return Err(Error::Bad(format!(
                        "{}: found more than {MOST_LEVELS} levels of directories",
                        directory.display()
                    )));
                }
                waiting.push((entry.path(), level + 1));
            } else if facts.is_file() {
                see(&entry.path(), &facts);
            }
        }
    }
    Ok(())
}
