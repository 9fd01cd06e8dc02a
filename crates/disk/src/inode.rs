//! The inodes of one mount: numbers that the kernel has, and the files of the backing directory that they stand for.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::handle::{component, open_beneath, open_root, path_of, stat_at, Attributes};
pub use crate::known::Identity;
use crate::known::{Known, Name, Route, ROOT};
use crate::position;

/// Directories of a mount whose descriptors are kept for the next use.
const OPEN_DIRECTORIES: usize = 256;

/// A file or directory that is at hand: its identity, and a descriptor that no rename or unlink can pull away.
#[derive(Debug, Clone)]
pub struct Inode {
    /// What it is.
    pub id: Identity,
    handle: Arc<OwnedFd>,
}

impl Inode {
    /// The O_PATH descriptor.
    pub fn fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }

    /// A path by which the file can be reached as long as this lives.
    pub fn proc_path(&self) -> CString {
        path_of(self.fd())
    }

    /// The file's attributes.
    pub fn stat(&self) -> io::Result<libc::stat> {
        stat_at(self.fd(), c"", libc::AT_EMPTY_PATH)
    }
}

/// Descriptors of the directories used last.
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

/// All inodes of one mount.
#[derive(Debug)]
pub struct Inodes {
    root: Inode,
    known: RwLock<Known>,
    directories: Mutex<Directories>,
    /// Held while a name is taken away or moved, so that who finds nothing at a name can wait and look again.
    changing: Mutex<()>,
}

fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

impl Inodes {
    /// Those of the tree whose root is the directory at `backing`.
    pub fn new(backing: &CStr) -> io::Result<Self> {
        let handle = open_root(backing)?;
        let root = Attributes::at(handle.as_raw_fd(), c"")?;
        let known = Known::new(root.key(), position::file_base(""));
        let id = known.identity(ROOT).ok_or_else(stale)?;
        Ok(Inodes {
            root: Inode {
                id,
                handle: Arc::new(handle),
            },
            known: RwLock::new(known),
            directories: Mutex::default(),
            changing: Mutex::default(),
        })
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn directories(&self) -> MutexGuard<'_, Directories> {
        self.directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of that number. ESTALE where something else than the mount has taken it away.
    pub fn get(&self, number: u64) -> io::Result<Inode> {
        self.reach(number, true).or_else(|_| {
            // Its name may be changing at this moment.
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
        let known = self.known();
        let id = known.identity(number).ok_or_else(stale)?;
        if let Some(handle) = self.directories().open.get(&number).cloned() {
            return Ok(Inode { id, handle });
        }
        let routes = known.routes(number, first, |directory| {
            self.directories().open.get(&directory).cloned()
        });
        drop(known);
        for route in routes {
            match self.follow(route, id) {
                Ok(Some(inode)) => return Ok(inode),
                // as many as there may be: another way would fail as well
                Err(error) if is_shortage(&error) => return Err(error),
                Ok(None) | Err(_) => {}
            }
        }
        Err(stale())
    }

    /// What is at the end of a route, if it is that file.
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

    /// Looks `name` up in `parent` and counts the lookup, which `forget` gives back.
    pub fn lookup(&self, parent: &Inode, name: &OsStr) -> io::Result<(Identity, libc::stat)> {
        let seen = Attributes::at(parent.fd(), &component(name)?)?;
        Ok((self.meet(parent, name, &seen), seen.stat))
    }

    /// The same of a file that was just opened by that name.
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
        self.known_mut()
            .meet(parent.id.number, name, seen, position::file_base)
    }

    /// The kernel gives `lookups` lookups of a file back.
    pub fn forget(&self, number: u64, lookups: u64) {
        if number == ROOT {
            return;
        }
        let mut known = self.known_mut();
        let forgotten = known.forget(number, lookups);
        let closing = known.closing();
        drop(known);
        drop(closing);
        if forgotten {
            let directory = self.directories().open.remove(&number);
            drop(directory);
        }
    }

    /// Distinguishes the file of that number from an earlier one.
    pub fn generation(&self, number: u64) -> u32 {
        let id = self.known().identity(number);
        id.map_or(0, |id| id.generation)
    }

    /// Path of a file relative to the mount.
    pub fn path(&self, number: u64) -> String {
        self.known().path(number)
    }

    /// Path of `name` in a directory.
    pub fn path_below(&self, directory: &Inode, name: &OsStr) -> String {
        self.known().path_below(directory.id.number, name)
    }

    /// To be held while a name is taken away or moved.
    pub fn change(&self) -> Changing<'_> {
        Changing {
            inodes: self,
            _turn: self.turn(),
        }
    }
}

/// True where the server has no descriptor or memory left.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    )
}

/// Something that is about to lose a name, or to get another.
pub struct Named {
    directory: u64,
    name: Box<[u8]>,
    /// Its number, if the kernel knows it, and what it is reached by without the name.
    known: Option<(u64, OwnedFd)>,
}

impl Named {
    fn name(&self) -> Name {
        (self.directory, self.name.clone())
    }
}

/// The right to take names away and to move them, one at a time.
pub struct Changing<'a> {
    inodes: &'a Inodes,
    _turn: MutexGuard<'a, ()>,
}

impl Changing<'_> {
    /// The file of that number, as [`Inodes::get`].
    pub fn get(&self, number: u64) -> io::Result<Inode> {
        self.inodes.reach(number, false)
    }

    /// What has `name` in a directory now.
    pub fn named(&self, directory: &Inode, name: &OsStr) -> io::Result<Named> {
        let mut named = Named {
            directory: directory.id.number,
            name: name.as_bytes().into(),
            known: None,
        };
        component(name)?;
        match open_beneath(directory.fd(), &[name.as_bytes()]) {
            Ok(handle) => {
                let seen = Attributes::at(handle.as_raw_fd(), c"")?;
                let number = self.inodes.known().number_of(&seen);
                named.known = number.map(|number| (number, handle));
                Ok(named)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(named),
            Err(error) => Err(error),
        }
    }

    /// It has lost that name.
    pub fn removed(&self, named: Named) {
        let name = named.name();
        if let Some((number, handle)) = named.known {
            self.inodes.known_mut().remove_name(number, &name, handle);
        }
    }

    /// It has the name that `replaced` had.
    pub fn renamed(&self, named: &Named, replaced: Named) {
        let (old, new) = (named.name(), replaced.name());
        let mut known = self.inodes.known_mut();
        if let Some((number, handle)) = replaced.known {
            known.remove_name(number, &new, handle);
        }
        if let Some((number, _)) = &named.known {
            known.rename(*number, &old, new);
        }
    }

    /// They have each other's names.
    pub fn exchanged(&self, one: &Named, other: &Named) {
        let mut known = self.inodes.known_mut();
        for (this, that) in [(one, other), (other, one)] {
            if let Some((number, _)) = &this.known {
                known.rename(*number, &this.name(), that.name());
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
    fn a_number_that_is_used_again_is_another_file() {
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
        // a file system without birth times has no generation to give
        if one.1 != 0 && one.0 == other.0 {
            assert_ne!(one.1, other.1);
        }
    }

    #[test]
    fn known_files_take_no_descriptors() {
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
        // other tests of this process have descriptors too
        assert!(descriptors() < before + OPEN_DIRECTORIES + 128);
    }

    #[test]
    fn removed_and_replaced_files_are_reached_without_their_names() {
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
    fn what_the_host_takes_away_is_stale_and_never_another_file() {
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
