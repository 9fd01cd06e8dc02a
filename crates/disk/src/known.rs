//! Table of the files of a mount that the kernel knows: numbers, names and routes. No system calls.
//!
//! An entry refers to a file by the number of its directory and its name there, so renaming a directory changes
//! one entry, regardless of the number of files below it. An entry takes about 60 bytes and its name. Only a
//! file that lost its last name while in use has a descriptor.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use crate::handle::{Attributes, Key};

/// Number of the root directory.
pub const ROOT: u64 = 1;
/// First number for files whose backing inode number cannot be used.
const FOREIGN: u64 = 1 << 63;
/// Minimum capacity. A smaller table never shrinks.
const LEAST_CAPACITY: usize = 4096;

/// A name: the number of its directory, and the last component.
pub(crate) type Name = (u64, Box<[u8]>);

/// Identity of a file, independent of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Number on the mount: the inode number of the backing file if possible.
    pub number: u64,
    /// Device offset of its first byte, fixed at the kernel's first lookup.
    pub device_base: u64,
    /// Distinguishes successive files with the same number.
    pub generation: u32,
    /// Device and inode number of the backing file.
    pub(crate) key: Key,
}

#[derive(Debug)]
// boxed: an unboxed set would add 40 bytes to every entry, one per file
#[allow(clippy::box_collection)]
enum Way {
    Name(Name),
    /// Hard links.
    Names(Box<HashSet<Name>>),
    /// The file has lost its last name. The name remains for messages and file name patterns.
    Removed(Box<(Arc<OwnedFd>, Name)>),
}

impl Way {
    fn name(&self) -> Option<&Name> {
        match self {
            Way::Name(name) => Some(name),
            Way::Names(names) => names.iter().next(),
            Way::Removed(removed) => Some(&removed.1),
        }
    }
}

#[derive(Debug)]
struct Node {
    device_base: u64,
    lookups: u64,
    generation: u32,
    /// Number of entries with names in this directory. The directory stays while there are any.
    children: u32,
    way: Way,
}

/// Route to a file: names starting at the directory of a descriptor, or at the root.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) start: Option<Arc<OwnedFd>>,
    pub(crate) names: Vec<Box<[u8]>>,
}

/// Table of the files that the kernel knows.
#[derive(Debug)]
pub(crate) struct InodeTable {
    root: Identity,
    nodes: HashMap<u64, Node>,
    foreign: HashMap<(Key, u32), u64>,
    foreign_keys: HashMap<u64, Key>,
    next_foreign: u64,
    /// Descriptors of forgotten files. Close them without the lock, because closing may free the file's blocks.
    closing: Vec<Arc<OwnedFd>>,
}

impl InodeTable {
    pub(crate) fn new(root: Key, device_base: u64) -> Self {
        InodeTable {
            root: Identity {
                number: ROOT,
                device_base,
                generation: 0,
                key: root,
            },
            nodes: HashMap::new(),
            foreign: HashMap::new(),
            foreign_keys: HashMap::new(),
            next_foreign: FOREIGN,
            closing: Vec::new(),
        }
    }

    /// Take the descriptors that are no longer needed.
    pub(crate) fn closing(&mut self) -> Vec<Arc<OwnedFd>> {
        std::mem::take(&mut self.closing)
    }

    pub(crate) fn identity(&self, number: u64) -> Option<Identity> {
        if number == ROOT {
            return Some(self.root);
        }
        let node = self.nodes.get(&number)?;
        Some(Identity {
            number,
            device_base: node.device_base,
            generation: node.generation,
            key: self.key(number),
        })
    }

    fn key(&self, number: u64) -> Key {
        let own = (self.root.key.0, number);
        self.foreign_keys.get(&number).copied().unwrap_or(own)
    }

    /// Number of a file, if known.
    pub(crate) fn number_of(&self, file: &Attributes) -> Option<u64> {
        let key = file.key();
        if key == self.root.key {
            return Some(ROOT);
        }
        if self.can_have_its_own(key) {
            let node = self.nodes.get(&key.1);
            if node.is_some_and(|node| node.generation == file.generation) {
                return Some(key.1);
            }
        }
        self.foreign.get(&(key, file.generation)).copied()
    }

    fn can_have_its_own(&self, key: Key) -> bool {
        key.0 == self.root.key.0 && key.1 != ROOT && key.1 < FOREIGN
    }

    /// Record a lookup of `name` in the directory `parent` by the kernel; `base` maps a path to a device
    /// offset.
    pub(crate) fn meet(
        &mut self,
        parent: u64,
        name: &OsStr,
        file: &Attributes,
        base: impl FnOnce(&str) -> u64,
    ) -> Identity {
        let name: Name = (parent, name.as_bytes().into());
        let number = match self.number_of(file) {
            Some(ROOT) => return self.root,
            Some(number) => {
                self.add_name(number, name, file.has_more_names());
                number
            }
            None => self.add(name, file, base),
        };
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups += 1;
        }
        self.identity(number).unwrap_or(self.root)
    }

    fn add(&mut self, name: Name, file: &Attributes, base: impl FnOnce(&str) -> u64) -> u64 {
        let key = file.key();
        let number = if self.can_have_its_own(key) && !self.nodes.contains_key(&key.1) {
            key.1
        } else {
            self.next_foreign += 1;
            self.foreign
                .insert((key, file.generation), self.next_foreign);
            self.foreign_keys.insert(self.next_foreign, key);
            self.next_foreign
        };
        let path = self.path_below(name.0, OsStr::from_bytes(&name.1));
        let device_base = base(&path.to_string_lossy());
        self.hold(name.0);
        let node = Node {
            device_base,
            lookups: 0,
            generation: file.generation,
            children: 0,
            way: Way::Name(name),
        };
        self.nodes.insert(number, node);
        number
    }

    fn hold(&mut self, directory: u64) {
        if let Some(node) = self.nodes.get_mut(&directory) {
            node.children += 1;
        }
    }

    /// Remove a name from `directory`. With its last name, a directory that the kernel has forgotten is removed
    /// too.
    fn release(&mut self, mut directory: u64) {
        while let Some(node) = self.nodes.get_mut(&directory) {
            node.children = node.children.saturating_sub(1);
            if node.children > 0 || node.lookups > 0 {
                return;
            }
            match self.take(directory) {
                Some(Way::Name(name)) => directory = name.0,
                Some(Way::Removed(removed)) => {
                    let (handle, name) = *removed;
                    self.closing.push(handle);
                    directory = name.0;
                }
                // directories have no hard links
                Some(Way::Names(_)) | None => return,
            }
        }
    }

    fn take(&mut self, number: u64) -> Option<Way> {
        let node = self.nodes.remove(&number)?;
        if let Some(key) = self.foreign_keys.remove(&number) {
            self.foreign.remove(&(key, node.generation));
        }
        let (used, capacity) = (self.nodes.len(), self.nodes.capacity());
        if capacity > LEAST_CAPACITY && used < capacity / 8 {
            self.nodes.shrink_to(capacity / 4);
        }
        Some(node.way)
    }

    /// Add a name to a file. Unless the file has `more` than one name, it replaces the old one.
    pub(crate) fn add_name(&mut self, number: u64, name: Name, more: bool) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        let directory = name.0;
        let freed = match &mut node.way {
            Way::Name(old) if *old == name => return,
            Way::Names(names) if more => {
                if !names.insert(name) {
                    return;
                }
                Vec::new()
            }
            Way::Name(old) if more => {
                let old = std::mem::replace(old, (ROOT, Box::default()));
                node.way = Way::Names(Box::new(HashSet::from([old, name])));
                Vec::new()
            }
            way => match std::mem::replace(way, Way::Name(name)) {
                Way::Name(old) => vec![old.0],
                Way::Names(old) => old.into_iter().map(|name| name.0).collect(),
                Way::Removed(old) => vec![old.1 .0],
            },
        };
        self.hold(directory);
        for directory in freed {
            self.release(directory);
        }
    }

    /// Remove a name from a file; `handle` is its descriptor in case it was the last known name.
    pub(crate) fn remove_name(&mut self, number: u64, name: &Name, handle: OwnedFd) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        match &mut node.way {
            Way::Name(last) if last == name => {
                let last = std::mem::replace(last, (ROOT, Box::default()));
                node.way = Way::Removed(Box::new((Arc::new(handle), last)));
            }
            Way::Names(names) => {
                if !names.remove(name) {
                    return;
                }
                if names.len() == 1 {
                    let last = names.drain().next();
                    if let Some(last) = last {
                        node.way = Way::Name(last);
                    }
                }
                self.release(name.0);
            }
            Way::Name(_) | Way::Removed(_) => {}
        }
    }

    /// Replace a name of a file. Files below a directory follow.
    pub(crate) fn rename(&mut self, number: u64, old: &Name, new: Name) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        match &mut node.way {
            Way::Names(names) => {
                let (removed, directory) = (names.remove(old), new.0);
                let added = names.insert(new);
                if added {
                    self.hold(directory);
                }
                if removed {
                    self.release(old.0);
                }
            }
            _ => self.add_name(number, new, false),
        }
    }

    /// Subtract `lookups` lookups that the kernel dropped. Return true if the file is no longer known.
    pub(crate) fn forget(&mut self, number: u64, lookups: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&number) else {
            return false;
        };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 || node.children > 0 {
            return false;
        }
        match self.take(number) {
            Some(Way::Name(name)) => self.release(name.0),
            Some(Way::Names(names)) => names.into_iter().for_each(|name| self.release(name.0)),
            Some(Way::Removed(removed)) => {
                let (handle, name) = *removed;
                self.closing.push(handle);
                self.release(name.0);
            }
            None => {}
        }
        true
    }

    /// All routes to a file, or only the `first`; `open` returns the descriptor of a directory that is already
    /// open.
    pub(crate) fn routes(
        &self,
        number: u64,
        first: bool,
        open: impl Fn(u64) -> Option<Arc<OwnedFd>>,
    ) -> Vec<Route> {
        match self.nodes.get(&number).map(|node| &node.way) {
            None => Vec::new(),
            Some(Way::Removed(removed)) => vec![Route {
                start: Some(removed.0.clone()),
                names: Vec::new(),
            }],
            Some(Way::Name(name)) => self.route(name, &open).into_iter().collect(),
            Some(Way::Names(names)) => {
                let most = if first { 1 } else { names.len() };
                let names = names.iter().take(most);
                names.filter_map(|name| self.route(name, &open)).collect()
            }
        }
    }

    fn route(&self, name: &Name, open: impl Fn(u64) -> Option<Arc<OwnedFd>>) -> Option<Route> {
        let mut names = vec![name.1.clone()];
        let mut directory = name.0;
        let start = loop {
            if directory == ROOT {
                break None;
            }
            if let Some(fd) = open(directory) {
                break Some(fd);
            }
            let way = &self.nodes.get(&directory)?.way;
            if let Way::Removed(removed) = way {
                break Some(removed.0.clone());
            }
            let (above, component) = way.name()?;
            names.push(component.clone());
            directory = *above;
            // names changed by anything but the mount may form a cycle
            if names.len() > self.nodes.len() + 1 {
                return None;
            }
        };
        names.reverse();
        Some(Route { start, names })
    }

    /// Path relative to the mount. A file without a name has its last one.
    pub(crate) fn path(&self, number: u64) -> String {
        let way = self.nodes.get(&number).map(|node| &node.way);
        match way.and_then(Way::name) {
            Some((parent, name)) => {
                let path = self.path_below(*parent, OsStr::from_bytes(name));
                path.to_string_lossy().into_owned()
            }
            None => String::new(),
        }
    }

    /// Path of `name` in a directory, relative to the mount.
    pub(crate) fn path_below(&self, directory: u64, name: &OsStr) -> OsString {
        let mut parts = vec![name.as_bytes()];
        let mut at = directory;
        while let Some((above, component)) = self.nodes.get(&at).and_then(|node| node.way.name()) {
            parts.push(component);
            at = *above;
            if parts.len() > self.nodes.len() + 1 {
                break;
            }
        }
        parts.reverse();
        OsString::from_vec(parts.join(&b'/'))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn file(number: u64, links: u64) -> Attributes {
        // SAFETY: a stat of zeros is valid.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        (stat.st_dev, stat.st_ino, stat.st_nlink) = (7, number, links);
        stat.st_mode = libc::S_IFREG;
        Attributes {
            stat,
            generation: 1,
        }
    }

    fn meet(table: &mut InodeTable, parent: u64, name: &str, number: u64, links: u64) -> Identity {
        table.meet(parent, OsStr::new(name), &file(number, links), |path| {
            path.len() as u64
        })
    }

    fn name(parent: u64, name: &str) -> Name {
        (parent, name.as_bytes().into())
    }

    fn empty_table() -> InodeTable {
        InodeTable::new((7, 2), 0)
    }

    #[test]
    fn renaming_a_directory_moves_its_descendants() {
        let mut table = empty_table();
        meet(&mut table, ROOT, "a", 10, 1);
        meet(&mut table, 10, "b", 11, 1);
        let deep = meet(&mut table, 11, "c", 12, 1);
        assert_eq!((table.path(12).as_str(), deep.device_base), ("a/b/c", 5));
        table.rename(10, &name(ROOT, "a"), name(ROOT, "z"));
        assert_eq!(table.path(12), "z/b/c");
        assert_eq!(table.identity(12), Some(deep), "its place on the device");
        let route = &table.routes(12, true, |_| None)[0];
        let names: Vec<&[u8]> = route.names.iter().map(|name| &name[..]).collect();
        assert_eq!(names, [b"z", b"b", b"c"]);
    }

    #[test]
    fn directories_stay_while_entries_need_their_names() {
        let mut table = empty_table();
        meet(&mut table, ROOT, "a", 10, 1);
        meet(&mut table, 10, "b", 11, 1);
        meet(&mut table, 11, "c", 12, 1);
        assert!(!table.forget(10, 1) && !table.forget(11, 1));
        assert_eq!((table.len(), table.path(12).as_str()), (3, "a/b/c"));
        assert!(table.forget(12, 1));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn hard_links_survive_removal_of_the_other_name() {
        let mut table = empty_table();
        meet(&mut table, ROOT, "d", 10, 1);
        meet(&mut table, ROOT, "one", 12, 2);
        meet(&mut table, 10, "two", 12, 2);
        assert_eq!(table.routes(12, false, |_| None).len(), 2);
        table.remove_name(12, &name(ROOT, "one"), File::open("/").unwrap().into());
        assert_eq!(table.path(12), "d/two");
        table.remove_name(12, &name(10, "two"), File::open("/").unwrap().into());
        let routes = table.routes(12, false, |_| None);
        assert!(routes[0].start.is_some() && routes[0].names.is_empty());
        assert_eq!(table.path(12), "d/two", "its last name");
        table.forget(10, 1);
        table.forget(12, 2);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn numbers_in_use_are_not_reassigned() {
        let mut table = empty_table();
        let first = meet(&mut table, ROOT, "a", 12, 1);
        let mut later = file(12, 1);
        later.generation = 2;
        let second = table.meet(ROOT, OsStr::new("b"), &later, |_| 0);
        assert_eq!(first.number, 12);
        assert_ne!(second.number, 12);
        assert_eq!(table.number_of(&later), Some(second.number));
        table.forget(second.number, 1);
        assert_eq!(table.number_of(&later), None);
        assert_eq!(table.number_of(&file(12, 1)), Some(12));
    }

    #[test]
    fn forgetting_files_releases_memory() {
        let mut table = empty_table();
        for number in 100..100_100 {
            meet(&mut table, ROOT, &format!("f{number}"), number, 1);
        }
        let most = table.nodes.capacity();
        for number in 100..100_100 {
            table.forget(number, 1);
        }
        assert_eq!(table.len(), 0);
        assert!(table.nodes.capacity() < most / 4);
    }
}
