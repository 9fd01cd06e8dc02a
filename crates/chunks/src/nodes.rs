//! Inodes of the mount: numbers, names, and the state of open files.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use crate::version::Version;

/// Number of the mount's root.
pub(crate) const ROOT: u64 = 1;

/// State of a file that is open for writing.
#[derive(Default)]
pub(crate) struct Writing {
    /// Version in progress; None before the first change.
    pub(crate) version: Option<Version>,
    /// Number of handles for writing.
    pub(crate) writers: usize,
    /// Number of commits since the file was looked up.
    pub(crate) commits: u64,
    /// Access and modification time that a program has set since the last change.
    pub(crate) times: Option<[Option<SystemTime>; 2]>,
}

/// A file or directory that the kernel has looked up.
pub(crate) struct Node {
    pub(crate) number: u64,
    writing: Mutex<Writing>,
}

impl Node {
    /// Lock the state of writing. Lock it before the tree, never after it.
    pub(crate) fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Placed {
    node: Arc<Node>,
    /// Parent directory and name; None once it is removed.
    place: Option<(u64, OsString)>,
    lookups: u64,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<u64, Placed>,
    names: HashMap<(u64, OsString), u64>,
    last: u64,
}

/// All inodes of a mount.
pub(crate) struct Nodes {
    root: PathBuf,
    table: RwLock<Table>,
}

impl Nodes {
    /// Create the inodes of the tree below `root`.
    pub(crate) fn new(root: PathBuf) -> Self {
        let mut table = Table {
            last: ROOT,
            ..Table::default()
        };
        let node = Arc::new(Node {
            number: ROOT,
            writing: Mutex::default(),
        });
        let placed = Placed {
            node,
            place: None,
            lookups: 1,
        };
        table.nodes.insert(ROOT, placed);
        Nodes {
            root,
            table: RwLock::new(table),
        }
    }

    /// Inode with this number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<Node>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.nodes.get(&number).map(|placed| placed.node.clone())
    }

    /// Path in the store; None once it is removed.
    pub(crate) fn path(&self, number: u64) -> Option<PathBuf> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let (mut number, mut names) = (number, Vec::new());
        while number != ROOT {
            let (parent, name) = table.nodes.get(&number)?.place.as_ref()?;
            names.push(name);
            number = *parent;
        }
        let mut path = self.root.clone();
        path.extend(names.into_iter().rev());
        Some(path)
    }

    /// Inode of a name. The number of its lookups increases by one.
    pub(crate) fn looked_up(&self, parent: u64, name: &OsStr) -> Arc<Node> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let key = (parent, name.to_owned());
        if let Some(placed) = table
            .names
            .get(&key)
            .copied()
            .and_then(|number| table.nodes.get_mut(&number))
        {
            placed.lookups += 1;
            return placed.node.clone();
        }
        table.last += 1;
        let number = table.last;
        let node = Arc::new(Node {
            number,
            writing: Mutex::default(),
        });
        let placed = Placed {
            node: node.clone(),
            place: Some(key.clone()),
            lookups: 1,
        };
        table.names.insert(key, number);
        table.nodes.insert(number, placed);
        node
    }

    /// Decrease the number of an inode's lookups, after the kernel has forgotten `lookups` of them.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(placed) = table.nodes.get_mut(&number).filter(|_| number != ROOT) else {
            return;
        };
        placed.lookups = placed.lookups.saturating_sub(lookups);
        if placed.lookups == 0 {
            if let Some(place) = table.nodes.remove(&number).and_then(|placed| placed.place) {
                table.names.remove(&place);
            }
        }
    }

    /// Record that a name was removed.
    pub(crate) fn removed(&self, parent: u64, name: &OsStr) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&(parent, name.to_owned()));
    }

    /// Record that a file or directory was renamed. It replaces an existing entry of the new name.
    pub(crate) fn renamed(&self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let to = (to.0, to.1.to_owned());
        table.remove(&to);
        let Some(number) = table.names.remove(&(from.0, from.1.to_owned())) else {
            return;
        };
        if let Some(placed) = table.nodes.get_mut(&number) {
            placed.place = Some(to.clone());
        }
        table.names.insert(to, number);
    }
}

impl Table {
    fn remove(&mut self, place: &(u64, OsString)) {
        if let Some(number) = self.names.remove(place) {
            if let Some(placed) = self.nodes.get_mut(&number) {
                placed.place = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_renames_and_removals() {
        let nodes = Nodes::new("/s".into());
        let directory = nodes.looked_up(ROOT, OsStr::new("d"));
        let file = nodes.looked_up(directory.number, OsStr::new("f"));
        let other = nodes.looked_up(ROOT, OsStr::new("o"));
        let path = |node: &Node| nodes.path(node.number);
        assert_eq!(path(&file), Some("/s/d/f".into()));
        nodes.renamed((ROOT, OsStr::new("d")), (ROOT, OsStr::new("e")));
        assert_eq!(path(&file), Some("/s/e/f".into()));
        nodes.renamed((directory.number, OsStr::new("f")), (ROOT, OsStr::new("o")));
        assert_eq!(path(&file), Some("/s/o".into()));
        assert_eq!(path(&other), None);
        nodes.removed(ROOT, OsStr::new("o"));
        assert_eq!(path(&file), None);
        assert_ne!(nodes.looked_up(ROOT, OsStr::new("o")).number, file.number);
        nodes.forget(file.number, 1);
        assert!(nodes.get(file.number).is_none());
    }
}
