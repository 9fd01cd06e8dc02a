//! Inodes of one mount: the numbers that the kernel has, and their files in the backing directory.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::handle::{component, open_beneath, open_root, path_of, stat_at, Attributes};
pub use crate::known::Identity;
use crate::known::{InodeTable, Name, Route, ROOT};
use crate::position;

/// Maximum number of directory descriptors that stay open for reuse.
const OPEN_DIRECTORIES: usize = 256;

/// A file or directory in use: its identity and a descriptor, which stays valid after a rename or unlink.
#[derive(Debug, Clone)]
pub struct Inode {
    /// Identity of the file.
    pub id: Identity,
    handle: Arc<OwnedFd>,
}

impl Inode {
    /// The O_PATH descriptor.
    pub fn fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }

    /// Path of the file, valid while this exists.
    pub fn proc_path(&self) -> CString {
        path_of(self.fd())
    }

    /// Attributes of the file.
    pub fn stat(&self) -> io::Result<libc::stat> {
        stat_at(self.fd(), c"", libc::AT_EMPTY_PATH)
    }
}

/// Descriptors of recently used directories.
#[derive(Debug, Default)]
struct Directories {
    open: HashMap<u64, Arc<OwnedFd>>,
    order: VecDeque<u64>,
}

impl Directories {
    fn insert(&mut self, number: u64, handle: Arc<OwnedFd>) {
        if self.open.insert(number, handle).is_none() {
            self.order.push_back(number);
        }
        while self.open.len() > OPEN_DIRECTORIES {
            if let Some(oldest) = self.order.pop_front() {
                self.open.remove(&oldest);
            }
        }
        if self.order.len() > 2 * OPEN_DIRECTORIES {
            let open = &self.open;
            self.order.retain(|number| open.contains_key(number));
        }
    }
}

/// Inodes of one mount.
#[derive(Debug)]
pub struct Inodes {
    root: Inode,
    table: RwLock<InodeTable>,
    directories: Mutex<Directories>,
    /// Held while a name is removed or moved. A thread that does not find a file can lock it and try again.
    changing: Mutex<()>,
}

fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

impl Inodes {
    /// Inodes of the tree whose root is the directory at `backing`.
    pub fn new(backing: &CStr) -> io::Result<Self> {
        let handle = open_root(backing)?;
        let root = Attributes::at(handle.as_raw_fd(), c"")?;
        let table = InodeTable::new(root.key(), position::file_base(""));
        let id = table.identity(ROOT).ok_or_else(stale)?;
        Ok(Inodes {
            root: Inode {
                id,
                handle: Arc::new(handle),
            },
            table: RwLock::new(table),
            directories: Mutex::default(),
            changing: Mutex::default(),
        })
    }

    fn table(&self) -> RwLockReadGuard<'_, InodeTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, InodeTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn directories(&self) -> MutexGuard<'_, Directories> {
        self.directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// File with that number. ESTALE if anything but the mount has removed it.
    pub fn get(&self, number: u64) -> io::Result<Inode> {
        self.reach(number, true).or_else(|_| {
            // Its name may be changing now.
            let _turn = self.turn();
            self.reach(number, false)
        })
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self, number: u64, first: bool) -> io::Result<Inode> {
        if number == ROOT {
            return Ok(self.root.clone());
        }
        let table = self.table();
        let id = table.identity(number).ok_or_else(stale)?;
        if let Some(handle) = self.directories().open.get(&number).cloned() {
            return Ok(Inode { id, handle });
        }
        let routes = table.routes(number, first, |directory| {
            self.directories().open.get(&directory).cloned()
        });
        drop(table);
        for route in routes {
            match self.follow(route, id) {
                Ok(Some(inode)) => return Ok(inode),
                // no descriptor or memory left: another route would fail as well
                Err(error) if is_shortage(&error) => return Err(error),
                Ok(None) | Err(_) => {}
            }
        }
        Err(stale())
    }

    /// File at the end of a route, if it has that identity.
    fn follow(&self, route: Route, id: Identity) -> io::Result<Option<Inode>> {
        let start = route.start.unwrap_or_else(|| self.root.handle.clone());
        if route.names.is_empty() {
            return Ok(Some(Inode { id, handle: start }));
        }
        let names: Vec<&[u8]> = route.names.iter().map(|name| &name[..]).collect();
        let handle = Arc::new(open_beneath(start.as_raw_fd(), &names)?);
        let seen = Attributes::at(handle.as_raw_fd(), c"")?;
        if seen.key() != id.key || seen.generation != id.generation {
            return Ok(None);
        }
        if seen.is_directory() {
            self.directories().insert(id.number, handle.clone());
        }
        Ok(Some(Inode { id, handle }))
    }

    /// Look up `name` in `parent` and count the lookup; `forget` subtracts it.
    pub fn lookup(&self, parent: &Inode, name: &OsStr) -> io::Result<(Identity, libc::stat)> {
        let seen = Attributes::at(parent.fd(), &component(name)?)?;
        Ok((self.meet(parent, name, &seen), seen.stat))
    }

    /// Same for a file that was just opened by that name.
    pub fn lookup_open(
        &self,
        parent: &Inode,
        name: &OsStr,
        file: RawFd,
    ) -> io::Result<(Identity, libc::stat)> {
        let seen = Attributes::at(file, c"")?;
        Ok((self.meet(parent, name, &seen), seen.stat))
    }

    fn meet(&self, parent: &Inode, name: &OsStr, seen: &Attributes) -> Identity {
        self.table_mut()
            .meet(parent.id.number, name, seen, position::file_base)
    }

    /// Subtract `lookups` lookups that the kernel dropped.
    pub fn forget(&self, number: u64, lookups: u64) {
        if number == ROOT {
            return;
        }
        let mut table = self.table_mut();
        let forgotten = table.forget(number, lookups);
        let closing = table.closing();
        drop(table);
        drop(closing);
        if forgotten {
            let directory = self.directories().open.remove(&number);
            drop(directory);
        }
    }

    /// Generation of the file with that number, which distinguishes it from an earlier file.
    pub fn generation(&self, number: u64) -> u32 {
        let id = self.table().identity(number);
        id.map_or(0, |id| id.generation)
    }

    /// Path of a file relative to the mount.
    pub fn path(&self, number: u64) -> String {
        self.table().path(number)
    }

    /// Path of `name` in a directory.
    pub fn path_below(&self, directory: &Inode, name: &OsStr) -> OsString {
        self.table().path_below(directory.id.number, name)
    }

    /// Lock for removing or moving a name.
    pub fn change(&self) -> Changing<'_> {
        Changing {
            inodes: self,
            _turn: self.turn(),
        }
    }
}

/// True if the server has no descriptor or memory left.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    )
}

/// A name that is about to be removed or moved.
pub struct Named {
    directory: u64,
    name: Box<[u8]>,
    /// Number of the file, if the kernel knows it, and a descriptor that works without the name.
    identified: Option<(u64, OwnedFd)>,
}

impl Named {
    fn name(&self) -> Name {
        (self.directory, self.name.clone())
    }
}

/// Exclusive right to remove and move names.
pub struct Changing<'a> {
    inodes: &'a Inodes,
    _turn: MutexGuard<'a, ()>,
}

impl Changing<'_> {
    /// File with that number, as [`Inodes::get`].
    pub fn get(&self, number: u64) -> io::Result<Inode> {
        self.inodes.reach(number, false)
    }

    /// File that has `name` in a directory now.
    pub fn named(&self, directory: &Inode, name: &OsStr) -> io::Result<Named> {
        let mut named = Named {
            directory: directory.id.number,
            name: name.as_bytes().into(),
            identified: None,
        };
        component(name)?;
        match open_beneath(directory.fd(), &[name.as_bytes()]) {
            Ok(handle) => {
                let seen = Attributes::at(handle.as_raw_fd(), c"")?;
                let number = self.inodes.table().number_of(&seen);
                named.identified = number.map(|number| (number, handle));
                Ok(named)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(named),
            Err(error) => Err(error),
        }
    }

    /// Record that the name was removed.
    pub fn removed(&self, named: Named) {
        let name = named.name();
        if let Some((number, handle)) = named.identified {
            self.inodes.table_mut().remove_name(number, &name, handle);
        }
    }

    /// Record that the file now has the name of `replaced`.
    pub fn renamed(&self, named: &Named, replaced: Named) {
        let (old, new) = (named.name(), replaced.name());
        let mut table = self.inodes.table_mut();
        if let Some((number, handle)) = replaced.identified {
            table.remove_name(number, &new, handle);
        }
        if let Some((number, _)) = &named.identified {
            table.rename(*number, &old, new);
        }
    }

    /// Record that the two names were exchanged.
    pub fn exchanged(&self, first: &Named, second: &Named) {
        let mut table = self.inodes.table_mut();
        for (this, that) in [(first, second), (second, first)] {
            if let Some((number, _)) = &this.identified {
                table.rename(*number, &this.name(), that.name());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::c_name;
    use std::fs;
    use std::path::{Path, PathBuf};

    struct Place(PathBuf);
    impl Place {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("penstock-inode-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Place(path)
        }
        fn inodes(&self) -> Inodes {
            Inodes::new(&c_name(self.0.as_os_str()).unwrap()).unwrap()
        }
    }
    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn descriptors() -> usize {
        fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn reused_inode_numbers_are_new_files() {
        let place = Place::new("again");
        let (inodes, path) = (place.inodes(), place.0.join("a"));
        let root = inodes.get(ROOT).unwrap();
        let seen = |born: &str| {
            fs::write(&path, born).unwrap();
            let (first, _) = inodes.lookup(&root, OsStr::new("a")).unwrap();
            inodes.forget(first.number, 1);
            let (again, _) = inodes.lookup(&root, OsStr::new("a")).unwrap();
            inodes.forget(again.number, 1);
            assert_eq!(first.generation, again.generation);
            fs::remove_file(&path).unwrap();
            (first.number, first.generation)
        };
        let (one, other) = (seen("x"), seen("y"));
        // without birth times a file system has no generations
        if one.1 != 0 && one.0 == other.0 {
            assert_ne!(one.1, other.1);
        }
    }

    #[test]
    fn recorded_files_hold_no_descriptors() {
        let place = Place::new("many");
        let inodes = place.inodes();
        let root = inodes.get(ROOT).unwrap();
        let before = descriptors();
        for number in 0..3 * OPEN_DIRECTORIES {
            let (file, directory) = (format!("f{number}"), format!("d{number}"));
            fs::write(place.0.join(&file), b"x").unwrap();
            fs::create_dir(place.0.join(&directory)).unwrap();
            for name in [&file, &directory] {
                let (id, stat) = inodes.lookup(&root, OsStr::new(name)).unwrap();
                assert_eq!(
                    inodes.get(id.number).unwrap().stat().unwrap().st_ino,
                    stat.st_ino
                );
            }
        }
        // other tests of this process also have descriptors
        assert!(descriptors() < before + OPEN_DIRECTORIES + 128);
    }

    #[test]
    fn removed_and_replaced_open_files_stay_accessible() {
        let place = Place::new("removed");
        let inodes = place.inodes();
        let root = inodes.get(ROOT).unwrap();
        for name in ["gone", "over", "new"] {
            fs::write(place.0.join(name), name).unwrap();
        }
        let [gone, over, new] =
            ["gone", "over", "new"].map(|name| inodes.lookup(&root, OsStr::new(name)).unwrap().0);
        let changing = inodes.change();
        let named = |name: &str| changing.named(&root, OsStr::new(name)).unwrap();
        let (removed, from, to) = (named("gone"), named("new"), named("over"));
        fs::remove_file(place.0.join("gone")).unwrap();
        changing.removed(removed);
        fs::rename(place.0.join("new"), place.0.join("over")).unwrap();
        changing.renamed(&from, to);
        drop(changing);
        let content = |id: Identity| {
            let inode = inodes.get(id.number).unwrap();
            fs::read(Path::new(OsStr::from_bytes(inode.proc_path().as_bytes()))).unwrap()
        };
        assert_eq!(content(gone), b"gone");
        assert_eq!(content(over), b"over");
        assert_eq!(content(new), b"new");
        assert_eq!(inodes.path(new.number), "over");
    }

    #[test]
    fn files_removed_on_the_host_become_stale() {
        let place = Place::new("stale");
        let inodes = place.inodes();
        let root = inodes.get(ROOT).unwrap();
        fs::write(place.0.join("a"), b"one").unwrap();
        let (one, _) = inodes.lookup(&root, OsStr::new("a")).unwrap();
        fs::write(place.0.join("b"), b"two").unwrap();
        fs::rename(place.0.join("b"), place.0.join("a")).unwrap();
        let error = inodes.get(one.number).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    }
}
