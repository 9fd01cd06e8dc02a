//! The mounted tree: operations on files, directories and their versions.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    fchown, lchown, DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Instant, SystemTime};

use crate::attributes::{set_mode, set_times, size_of};
use crate::chunking::Chunking;
use crate::core::{now_ns, Core};
use crate::error::{Error, Result};
use crate::filesystem::Listing;
use crate::hash::Naming;
use crate::map::Map;
use crate::nodes::{Node, Nodes, Writing, ROOT};
use crate::objects::flush;
use crate::open_file::OpenFile;
use crate::records::Records;
use crate::version::Version;
use crate::xattr;

/// Configuration of new versions, unless a controller chooses another one.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) chunking: Chunking,
    pub(crate) hash: Naming,
    /// If set, every commit is written to the devices.
    pub(crate) sync: bool,
}

/// A served store.
pub(crate) struct Tree {
    pub(crate) core: Arc<Core>,
    pub(crate) nodes: Nodes,
    pub(crate) settings: Mutex<Settings>,
    pub(crate) records: Records,
    /// Locked for writing while names change, so that paths are valid while it is locked for reading.
    names: RwLock<()>,
    files: RwLock<HashMap<u64, Arc<OpenFile>>>,
    last_handle: AtomicU64,
    /// Open directories by handle; None until their entries are read.
    listings: Mutex<HashMap<u64, Option<Arc<Listing>>>>,
}

/// Convert an error for the kernel. Report a damaged file in the log, too.
pub(crate) fn number_of(error: Error) -> io::Error {
    if !matches!(&error, Error::Io { source, .. } if source.raw_os_error().is_some()) {
        eprintln!("penstock-dedup: {error}");
    }
    io::Error::from_raw_os_error(error.errno())
}

pub(crate) fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Tree {
    /// Create the tree of a store.
    pub(crate) fn new(core: Arc<Core>, settings: Settings, records: Records) -> Self {
        Tree {
            nodes: Nodes::new(core.objects.files()),
            core,
            settings: Mutex::new(settings),
            records,
            names: RwLock::default(),
            files: RwLock::default(),
            last_handle: AtomicU64::new(0),
            listings: Mutex::default(),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn node(&self, number: u64) -> io::Result<Arc<Node>> {
        self.nodes.get(number).ok_or_else(|| error(libc::ESTALE))
    }

    /// Path of an inode. The caller must have the names locked.
    fn path(&self, number: u64) -> io::Result<PathBuf> {
        self.nodes.path(number).ok_or_else(|| error(libc::ENOENT))
    }

    /// Open a directory. The caller must have the names locked.
    fn directory(&self, number: u64) -> io::Result<OwnedFd> {
        open_directory(&self.path(number)?)
    }

    /// Call `act` with the path of an inode, which does not change during the call.
    pub(crate) fn at<T>(
        &self,
        number: u64,
        act: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        let _names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(number)?;
        match path.parent().zip(path.file_name()) {
            Some((parent, name)) if number != ROOT => {
                let parent = open_directory(parent)?;
                act(&path_of(&parent).join(name))
            }
            _ => act(&path),
        }
    }

    /// Call `act` with the path of a directory. No name changes during the call.
    pub(crate) fn in_directory<T>(
        &self,
        number: u64,
        act: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        let _names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        act(&path_of(&self.directory(number)?))
    }

    /// Call `act` with the path of an inode while no version is committed. A concurrent commit could lose the change.
    pub(crate) fn between_commits<T>(
        &self,
        number: u64,
        act: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        let node = self.node(number)?;
        let _writing = node.writing();
        self.at(number, act)
    }

    /// Call `act` with the path of a name, with all names locked against other changes.
    fn changing<T>(
        &self,
        parent: u64,
        name: &OsStr,
        act: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        let _names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        act(&path_of(&self.directory(parent)?).join(name))
    }

    /// Path below the mount, as in records.
    pub(crate) fn below(&self, number: u64) -> String {
        self.core
            .below(&self.nodes.path(number).unwrap_or_default())
    }

    pub(crate) fn lookup(&self, parent: u64, name: &OsStr) -> io::Result<(Arc<Node>, Metadata)> {
        let facts = self.in_directory(parent, |path| fs::symlink_metadata(path.join(name)))?;
        Ok((self.nodes.looked_up(parent, name), facts))
    }

    /// Attributes of the map or directory, and the size of the content in bytes.
    pub(crate) fn facts(&self, number: u64) -> io::Result<(Metadata, u64)> {
        let node = self.node(number)?;
        let written = {
            let writing = node.writing();
            let size = writing.version.as_ref().map(Version::size_bytes);
            size.transpose().map_err(number_of)?
        };
        self.at(number, |path| {
            let facts = fs::symlink_metadata(path)?;
            let size_bytes = match written {
                Some(size_bytes) => size_bytes,
                None => size_of(path, &facts)?,
            };
            Ok((facts, size_bytes))
        })
    }

    pub(crate) fn file(&self, handle: u64) -> io::Result<Arc<OpenFile>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files
            .get(&handle)
            .cloned()
            .ok_or_else(|| error(libc::EBADF))
    }

    pub(crate) fn listings(&self) -> MutexGuard<'_, HashMap<u64, Option<Arc<Listing>>>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle(&self) -> u64 {
        self.last_handle.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Open a file. Its writers see a truncation at once, others after the commit.
    pub(crate) fn open(&self, number: u64, flags: i32) -> io::Result<u64> {
        let node = self.node(number)?;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let truncates = writes && flags & libc::O_TRUNC != 0;
        let handle = self.handle();
        let mut writing = node.writing();
        let map = if truncates {
            None
        } else {
            let load = |path: &Path| self.core.load_for(handle, path).map_err(number_of);
            Some(self.at(number, load)?)
        };
        if truncates {
            self.change(&node, &mut writing, None, true)?
                .set_size(0)
                .map_err(number_of)?;
            if let Some(version) = &mut writing.version {
                version.dirty = true;
            }
        }
        writing.writers += usize::from(writes);
        let open = OpenFile::new(node.clone(), writes, map, writing.commits);
        drop(writing);
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        files.insert(handle, Arc::new(open));
        Ok(handle)
    }

    /// Return the version in progress. Begin a new one if there is none: with the committed content, or empty with
    /// `empty`.
    pub(crate) fn change<'a>(
        &self,
        node: &Node,
        writing: &'a mut Writing,
        file: Option<&OpenFile>,
        empty: bool,
    ) -> io::Result<&'a mut Version> {
        writing.times = None;
        if writing.version.is_none() {
            let load = |path: &Path| Map::load(path).map(Arc::new).map_err(number_of);
            let base = match self.nodes.path(node.number) {
                _ if empty => None,
                Some(_) => Some(self.at(node.number, load)?),
                None => file.and_then(OpenFile::map), // a removed file: the handle has its content
            };
            let path = self.below(node.number);
            let family = self.core.family(&path);
            let settings = self.settings();
            let chunking = self
                .records
                .choose(&path, &family)
                .unwrap_or(settings.chunking);
            let version =
                Version::new(&self.core, family, chunking, settings.hash, base.as_deref());
            writing.version = Some(version.map_err(number_of)?);
        }
        writing.version.as_mut().ok_or_else(|| error(libc::EIO))
    }

    /// Commit the changes of the version in progress. With `sync`, write them to the devices.
    pub(crate) fn commit(&self, node: &Node, sync: bool) -> io::Result<()> {
        let mut writing = node.writing();
        let sync = sync || self.settings().sync;
        let Some(version) = writing.version.as_mut().filter(|version| version.dirty) else {
            return if sync {
                self.core.objects.sync().map_err(number_of)?;
                self.sync_map(node.number)
            } else {
                Ok(())
            };
        };
        let map = version.map().map_err(number_of)?;
        let begin = Instant::now();
        let times = writing.times.take();
        if self.store_map(node.number, &map, times, sync)? {
            writing.commits += 1;
        }
        if let Some(version) = &mut writing.version {
            version.committed(&map, begin.elapsed());
        }
        Ok(())
    }

    /// Replace the map of a file and retain its attributes. Return false if the file was removed.
    fn store_map(
        &self,
        number: u64,
        map: &Map,
        times: Option<[Option<SystemTime>; 2]>,
        sync: bool,
    ) -> io::Result<bool> {
        let draft = self.draft_of(map).map_err(number_of)?;
        if sync {
            // before the names are locked, because it may be slow
            self.core.objects.sync().map_err(|failure| {
                let _ = fs::remove_file(&draft.0);
                number_of(failure)
            })?;
        }
        let result = self.at(number, |path| {
            self.core.renew().map_err(number_of)?;
            copy_attributes(path, &draft.0, &draft.1)?;
            if let Some([accessed, modified]) = times {
                let mut times = FileTimes::new();
                times = accessed.map_or(times, |time| times.set_accessed(time));
                times = modified.map_or(times, |time| times.set_modified(time));
                draft.1.set_times(times)?;
            }
            if sync {
                draft.1.sync_all()?; // includes the attributes
            }
            fs::rename(&draft.0, path)?;
            if let Some(parent) = path.parent().filter(|_| sync) {
                File::open(parent)?.sync_all()?;
            }
            Ok(true)
        });
        match result {
            Ok(stored) => Ok(stored),
            Err(failure) => {
                let _ = fs::remove_file(&draft.0);
                if failure.raw_os_error() == Some(libc::ENOENT) && self.nodes.path(number).is_none()
                {
                    return Ok(false); // the content of a removed file is lost with its last handle
                }
                Err(failure)
            }
        }
    }

    /// Write the map of an already committed file to the devices, if syncfs(2) does not.
    fn sync_map(&self, number: u64) -> io::Result<()> {
        let synced = self.at(number, |path| {
            let mut options = File::options();
            let options = options.read(true).custom_flags(libc::O_NOFOLLOW);
            options.open(path)?.sync_all()?;
            path.parent()
                .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
        });
        match synced {
            Err(failure) if failure.raw_os_error() == Some(libc::ENOENT) => Ok(()), // removed
            synced => synced,
        }
    }

    fn draft_of(&self, map: &Map) -> Result<(PathBuf, File)> {
        let (path, file) = self.core.objects.draft()?;
        let written = io::Write::write_all(&mut &file, &map.to_bytes()).and_then(|()| flush(&file));
        match written {
            Ok(()) => Ok((path, file)),
            Err(failure) => {
                let _ = fs::remove_file(&path);
                Err(Error::at(&path, failure))
            }
        }
    }

    /// Creates an empty file.
    pub(crate) fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        owner: (u32, u32),
    ) -> io::Result<()> {
        let settings = self.settings();
        let map = Map::new(
            settings.hash,
            settings.chunking.to_string(),
            now_ns(),
            Vec::new(),
        );
        let (draft, file) = self.draft_of(&map).map_err(number_of)?;
        let created = self.changing(parent, name, |path| {
            if fs::symlink_metadata(path).is_ok() {
                return Err(error(libc::EEXIST));
            }
            let group = inherited_group(path, owner.1);
            fchown(&file, Some(owner.0), Some(group)).or_else(ignore_unprivileged)?;
            file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
            fs::rename(&draft, path)
        });
        if created.is_err() {
            let _ = fs::remove_file(&draft);
        }
        created
    }

    pub(crate) fn make_directory(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        owner: (u32, u32),
    ) -> io::Result<()> {
        self.changing(parent, name, |path| {
            fs::DirBuilder::new().mode(0o700).create(path)?;
            let group = inherited_group(path, owner.1);
            // a directory inherits the set-group-ID bit of its parent
            let inherited = if group == owner.1 { 0 } else { libc::S_ISGID };
            lchown(path, Some(owner.0), Some(group)).or_else(ignore_unprivileged)?;
            set_mode(path, mode & 0o7777 | inherited)
        })
    }

    pub(crate) fn link(
        &self,
        parent: u64,
        name: &OsStr,
        target: &Path,
        owner: (u32, u32),
    ) -> io::Result<()> {
        self.changing(parent, name, |path| {
            std::os::unix::fs::symlink(target, path)?;
            lchown(path, Some(owner.0), Some(owner.1)).or_else(ignore_unprivileged)
        })
    }

    pub(crate) fn remove(&self, parent: u64, name: &OsStr, directory: bool) -> io::Result<()> {
        self.changing(parent, name, |path| {
            if directory {
                fs::remove_dir(path)?;
            } else {
                fs::remove_file(path)?;
            }
            self.nodes.removed(parent, name);
            Ok(())
        })
    }

    pub(crate) fn rename(
        &self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        replaces: bool,
    ) -> io::Result<()> {
        self.changing(from.0, from.1, |path| {
            let directory = self.directory(to.0)?;
            let target = path_of(&directory).join(to.1);
            if !replaces && fs::symlink_metadata(&target).is_ok() {
                return Err(error(libc::EEXIST));
            }
            // a collection that starts now waits for this rename
            let _loading = self
                .core
                .loading
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            self.core.note_rename(path);
            fs::rename(path, &target)?;
            self.nodes.renamed(from, to);
            Ok(())
        })
    }

    /// Set the size. Without a handle for writing, the version is committed at once.
    pub(crate) fn set_size(
        &self,
        number: u64,
        handle: Option<u64>,
        size_bytes: u64,
    ) -> io::Result<()> {
        let node = self.node(number)?;
        let file = handle.and_then(|it| self.file(it).ok());
        let by_writer = file.as_ref().is_some_and(|file| file.writes);
        {
            let mut writing = node.writing();
            let version = self.change(&node, &mut writing, file.as_deref(), size_bytes == 0)?;
            version.set_size(size_bytes).map_err(number_of)?;
            version.dirty |= size_bytes == 0;
        }
        if by_writer {
            return Ok(());
        }
        self.commit(&node, false)?;
        let mut writing = node.writing();
        if writing.writers == 0 {
            self.finish(&node, &mut writing);
        }
        Ok(())
    }

    /// Set times. If a version is in progress, they are set again when it is committed.
    pub(crate) fn set_times(&self, number: u64, times: [Option<SystemTime>; 2]) -> io::Result<()> {
        let node = self.node(number)?;
        {
            let mut writing = node.writing();
            if writing
                .version
                .as_ref()
                .is_some_and(|version| version.dirty)
            {
                writing.times = Some(times);
            }
        }
        self.at(number, |path| set_times(path, times))
    }

    /// Complete the record of the version after the last handle for writing is closed.
    fn finish(&self, node: &Node, writing: &mut Writing) {
        if let Some(version) = writing.version.take() {
            if let Some(record) = version.record(self.below(node.number)) {
                self.records.add(record);
            }
        }
    }

    pub(crate) fn release(&self, handle: u64) -> io::Result<()> {
        let file = {
            let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
            files.remove(&handle).ok_or_else(|| error(libc::EBADF))?
        };
        let result = if file.writes {
            let committed = self.commit(&file.node, false);
            let mut writing = file.node.writing();
            writing.writers -= 1;
            if writing.writers == 0 {
                self.finish(&file.node, &mut writing);
            }
            committed
        } else {
            Ok(())
        };
        self.core.index().closed(handle);
        result
    }
}

/// Open a directory of the store. Links are not followed: another client may have replaced a directory by one.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: zeros are a valid value; a terminated path, a structure of that size; the descriptor is new.
    unsafe {
        let mut open_how: libc::open_how = std::mem::zeroed();
        open_how.flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
        open_how.resolve = libc::RESOLVE_NO_SYMLINKS;
        let size = std::mem::size_of::<libc::open_how>();
        let number = libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &open_how,
            size,
        );
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(number as i32))
    }
}

/// Path of an open directory.
fn path_of(directory: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

/// Group of a new entry: that of a directory with the set-group-ID bit.
fn inherited_group(path: &Path, group: u32) -> u32 {
    let parent = path.parent().and_then(|parent| fs::metadata(parent).ok());
    match parent {
        Some(facts) if facts.mode() & libc::S_ISGID != 0 => facts.gid(),
        _ => group,
    }
}

/// Ignore missing permission to change owners. Files then belong to the user of the server.
fn ignore_unprivileged(failure: io::Error) -> io::Result<()> {
    if failure.raw_os_error() == Some(libc::EPERM) {
        Ok(())
    } else {
        Err(failure)
    }
}

/// Copy the attributes of a file's current map to its new one.
fn copy_attributes(path: &Path, draft: &Path, file: &File) -> io::Result<()> {
    let facts = fs::symlink_metadata(path)?;
    fchown(file, Some(facts.uid()), Some(facts.gid())).or_else(ignore_unprivileged)?;
    file.set_permissions(Permissions::from_mode(facts.mode() & 0o7777))?;
    let c_path = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    xattr::copy(&c_path(path)?, &c_path(draft)?)
}
