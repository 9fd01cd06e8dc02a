//! Directories of a store: chunks, files (their maps), temporary files, clients.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use penstock_daemon::private;

use crate::error::{Error, Result};
use crate::hash::{Address, Naming, UniqueNames};
use crate::map::Entry;

const FORMAT_FILE: &str = "penstock-dedup";
const FORMAT: &str = "penstock deduplicating store, format 1\n";

/// Directories of a store on any file system. Only the user who created the store has access to them.
pub struct Objects {
    root: PathBuf,
    pub(crate) names: UniqueNames,
    /// If set, chunks are not compared with their hashes when they are read.
    trust: bool,
    /// Chunks that syncfs(2) does not write to the devices; None if it writes all, as on most file systems.
    unsynced: Option<Mutex<Unsynced>>,
}

/// Files and directories that are not on the devices yet.
#[derive(Default)]
struct Unsynced {
    files: HashSet<PathBuf>,
    directories: HashSet<PathBuf>,
}

/// Maximum number of files that are remembered for the next synchronization. Further files are synchronized at once.
const MOST_UNSYNCED: usize = 1 << 16;

/// True on FUSE, which does not forward syncfs(2): the server of that file system receives only fsync(2).
fn ignores_syncfs(root: &Path) -> Result<bool> {
    let directory = File::open(root).map_err(|error| Error::at(root, error))?;
    // SAFETY: zeros are a valid value; a valid descriptor.
    let (result, facts) = unsafe {
        let mut facts: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(directory.as_raw_fd(), &mut facts), facts)
    };
    if result != 0 {
        return Err(Error::at(root, io::Error::last_os_error()));
    }
    Ok(facts.f_type == libc::FUSE_SUPER_MAGIC)
}

fn private_directory(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::at(path, error)),
        _ => Ok(()),
    }
}

/// Report errors of writes that a network file system has deferred, as close(2) does.
pub(crate) fn flush(file: &File) -> io::Result<()> {
    let copy = file.try_clone()?.into_raw_fd();
    // SAFETY: a descriptor that is owned here.
    if unsafe { libc::close(copy) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Refuse a directory in which another user could create links: the server follows paths with its own rights.
fn check_owner(root: &Path) -> Result<()> {
    // SAFETY: no arguments, no failure.
    let user = unsafe { libc::geteuid() };
    for path in root.ancestors() {
        let facts = fs::metadata(path).map_err(|error| Error::at(path, error))?;
        let sticky = path != root && facts.mode() & libc::S_ISVTX != 0;
        let by_others = facts.mode() & 0o022 != 0 && !sticky && path != root;
        if ![user, 0].contains(&facts.uid()) || by_others {
            return Err(Error::Bad(format!(
                "{}: found user {} and mode {:o}; expected a directory that only user {user} can change",
                path.display(),
                facts.uid(),
                facts.mode() & 0o7777
            )));
        }
    }
    Ok(())
}

impl Objects {
    /// Open the store at `root`, an existing directory. With `create`, an empty directory becomes a store.
    pub fn open(root: &Path, create: bool, trust: bool) -> Result<Self> {
        let root = fs::canonicalize(root).map_err(|error| Error::at(root, error))?;
        check_owner(&root)?;
        let format = root.join(FORMAT_FILE);
        match fs::read_to_string(&format) {
            Ok(text) if text == FORMAT => {}
            Ok(_) => {
                return Err(Error::Bad(format!(
                    "{}: found another format; expected {FORMAT:?}",
                    format.display()
                )))
            }
            Err(error) if error.kind() == ErrorKind::NotFound && create => {
                let mut entries = fs::read_dir(&root).map_err(|error| Error::at(&root, error))?;
                // some file systems create `lost+found`; the others remain if an earlier creation was interrupted
                let own_entries = ["lost+found", "chunks", "files", "tmp", "clients"];
                if entries.any(|entry| {
                    !entry.is_ok_and(|entry| {
                        own_entries.iter().any(|name| entry.file_name() == *name)
                    })
                }) {
                    return Err(Error::Bad(format!(
                        "{}: found files; expected a store, or an empty directory",
                        root.display()
                    )));
                }
                // the mount gets the mode of the directory, and only the owner can read the stored files
                let facts = fs::metadata(&root).map_err(|error| Error::at(&root, error))?;
                let set_mode = |path: &Path, mode: u32| {
                    let set = fs::set_permissions(path, Permissions::from_mode(mode));
                    set.map_err(|error| Error::at(path, error))
                };
                set_mode(&root, 0o700)?;
                for name in ["chunks", "files", "tmp", "clients"] {
                    private_directory(&root.join(name))?;
                }
                set_mode(&root.join("files"), facts.mode() & 0o7777)?;
                let mut draft = private::file(&root.join("tmp/format"))
                    .map_err(|error| Error::at(&root, error))?;
                draft
                    .write_all(FORMAT.as_bytes())
                    .and_then(|()| draft.sync_all())
                    .and_then(|()| fs::rename(root.join("tmp/format"), &format))
                    .map_err(|error| Error::at(&format, error))?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::Bad(format!(
                    "{}: found no store; expected a directory that `penstock dedup mount` has used",
                    root.display()
                )))
            }
            Err(error) => return Err(Error::at(&format, error)),
        }
        let names =
            UniqueNames::new().map_err(|error| Error::at(Path::new("/dev/urandom"), error))?;
        let unsynced = ignores_syncfs(&root)?.then(Mutex::default);
        Ok(Objects {
            root,
            names,
            trust,
            unsynced,
        })
    }

    /// Directory of the store.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Directory of the maps.
    pub fn files(&self) -> PathBuf {
        self.root.join("files")
    }

    pub(crate) fn clients(&self) -> PathBuf {
        self.root.join("clients")
    }

    pub(crate) fn chunk_directory(&self) -> PathBuf {
        self.root.join("chunks")
    }

    /// Directory of temporary files.
    pub(crate) fn drafts(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Create a temporary file. Its name has the prefix of this client.
    pub(crate) fn draft(&self) -> Result<(PathBuf, File)> {
        let name = format!("{}-{:x}", self.names.prefix(), self.names.number());
        let path = self.drafts().join(name);
        let file = private::new_file(&path).map_err(|error| Error::at(&path, error))?;
        Ok((path, file))
    }

    pub(crate) fn chunk_path(&self, naming: Naming, address: &Address) -> PathBuf {
        let name = naming.file_name(address);
        let mut path = self.chunk_directory();
        path.push(&name[..2]);
        path.push(name);
        path
    }

    /// True if a chunk of this length is stored at the address.
    pub(crate) fn has(&self, naming: Naming, address: &Address, length: usize) -> bool {
        let path = self.chunk_path(naming, address);
        let stored = fs::metadata(&path).is_ok_and(|it| it.len() == length as u64);
        // an earlier process may have written the chunk without synchronization
        stored
            && (self.note_unsynced(&path)
                || File::open(&path).is_ok_and(|it| it.sync_all().is_ok()))
    }

    /// Store a chunk: write it to a temporary file, then rename the file.
    pub(crate) fn put(&self, naming: Naming, address: &Address, content: &[u8]) -> Result<()> {
        let path = self.chunk_path(naming, address);
        let (draft, mut file) = self.draft()?;
        let written = file.write_all(content).and_then(|()| flush(&file));
        drop(file);
        let stored = written.and_then(|()| match fs::rename(&draft, &path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(&path);
                private_directory(parent).map_err(|error| io::Error::other(error.to_string()))?;
                fs::rename(&draft, &path)
            }
            result => result,
        });
        // after the rename: before it, a synchronization would not find the file
        let stored = stored.and_then(|()| match self.note_unsynced(&path) {
            true => Ok(()),
            false => File::open(&path)?.sync_all(),
        });
        stored.map_err(|error| {
            let _ = fs::remove_file(&draft);
            Error::at(&path, error)
        })
    }

    /// Record a chunk for [`Objects::sync`]. Return false if there are too many.
    pub(crate) fn note_unsynced(&self, path: &Path) -> bool {
        let Some(unsynced) = &self.unsynced else {
            return true;
        };
        let mut unsynced = unsynced.lock().unwrap_or_else(PoisonError::into_inner);
        let parents = path.ancestors().skip(1).take(2); // the directory of the chunk may be new, too
        unsynced.directories.extend(parents.map(Path::to_owned));
        let fits = unsynced.files.len() < MOST_UNSYNCED;
        if fits {
            unsynced.files.insert(path.to_owned());
        }
        fits
    }

    fn sync_each(&self, unsynced: &Mutex<Unsynced>) -> Result<()> {
        // under the lock: a concurrent synchronization must not return before these are written
        let mut unsynced = unsynced.lock().unwrap_or_else(PoisonError::into_inner);
        for path in unsynced.files.iter().chain(&unsynced.directories) {
            match File::open(path).and_then(|file| file.sync_all()) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::at(path, error)); // the next synchronization tries all of them again
                }
                _ => {} // also if a collection removed the file
            }
        }
        *unsynced = Unsynced::default();
        Ok(())
    }

    /// Read the content of a chunk. Error: it is missing or damaged.
    pub fn get(&self, naming: Naming, entry: &Entry) -> Result<Vec<u8>> {
        self.load(naming, entry, self.trust)
    }

    pub(crate) fn load(&self, naming: Naming, entry: &Entry, trust: bool) -> Result<Vec<u8>> {
        let path = self.chunk_path(naming, &entry.address);
        let damaged = |why: String| Error::Damaged(format!("chunk {} {why}", path.display()));
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(damaged("is missing".into()))
            }
            file => file.map_err(|error| Error::at(&path, error))?,
        };
        let length = entry.length as usize;
        let mut content = Vec::with_capacity(length + 1);
        file.take(length as u64 + 1)
            .read_to_end(&mut content)
            .map_err(|error| Error::at(&path, error))?;
        if content.len() != length {
            let length_found = if content.len() > length {
                "more".into()
            } else {
                content.len().to_string()
            };
            return Err(damaged(format!(
                "has {length_found} bytes; expected {length}"
            )));
        }
        if !trust && !naming.matches(&entry.address, &content) {
            return Err(damaged("is damaged: its content has another hash".into()));
        }
        Ok(content)
    }

    /// Write all files of the store's file system to its devices: syncfs(2).
    pub(crate) fn sync(&self) -> Result<()> {
        let directory = File::open(&self.root).map_err(|error| Error::at(&self.root, error))?;
        // SAFETY: a valid descriptor.
        if unsafe { libc::syncfs(directory.as_raw_fd()) } != 0 {
            return Err(Error::at(&self.root, io::Error::last_os_error()));
        }
        self.unsynced
            .as_ref()
            .map_or(Ok(()), |unsynced| self.sync_each(unsynced))
    }
}
