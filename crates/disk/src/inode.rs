//! The files the kernel knows, each held by a handle that no rename or unlink can pull away.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::position;

/// Number of the root directory.
pub const ROOT: u64 = 1;
const FOREIGN: u64 = 1 << 63;

/// A file or directory that the kernel knows.
#[derive(Debug)]
pub struct Inode {
    /// Number on the mount: that of the backing file where it can be.
    pub number: u64,
    /// Device offset of its first byte, fixed when it was first seen.
    pub device_base: u64,
    /// Tells files apart that had the number one after the other: made of the backing file's birth time.
    pub generation: u64,
    /// Device and number of the backing file.
    pub(crate) key: (u64, u64),
    handle: OwnedFd,
    path: RwLock<String>,
}

impl Inode {
    /// The O_PATH descriptor.
    pub fn fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }

    /// Path relative to the mount, as last known.
    pub fn path(&self) -> String {
        self.path
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A path by which the file can be reached whatever became of its name.
    pub fn proc_path(&self) -> CString {
        path_of(self.fd())
    }

    /// The file's attributes.
    pub fn stat(&self) -> io::Result<libc::stat> {
        stat_at(self.fd(), c"", libc::AT_EMPTY_PATH)
    }
}

#[derive(Debug, Default)]
struct Known {
    by_number: HashMap<u64, (Arc<Inode>, u64)>,
    by_key: HashMap<(u64, u64), u64>,
    next_foreign: u64,
}

/// All files that the kernel knows of one mount.
#[derive(Debug)]
pub struct Inodes {
    root_device: u64,
    known: RwLock<Known>,
}

/// A path of the file of a descriptor, be it an O_PATH one.
pub(crate) fn path_of(fd: RawFd) -> CString {
    CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

/// `fstatat`.
pub fn stat_at(fd: RawFd, name: &CStr, flags: i32) -> io::Result<libc::stat> {
    // SAFETY: a zeroed stat is a valid buffer, the name is terminated.
    unsafe {
        let mut out: libc::stat = std::mem::zeroed();
        if libc::fstatat(
            fd,
            name.as_ptr(),
            &mut out,
            flags | libc::AT_SYMLINK_NOFOLLOW,
        ) == 0
        {
            Ok(out)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// A number made of a file's birth time, so that it stays when the kernel forgets the file and asks anew;
/// 0 where the backing file system has none.
fn generation_of(fd: RawFd) -> u64 {
    // SAFETY: a zeroed statx is a valid buffer, the name is terminated.
    unsafe {
        let mut out: libc::statx = std::mem::zeroed();
        let asked = libc::statx(
            fd,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW,
            libc::STATX_BTIME,
            &mut out,
        );
        if asked != 0 || out.stx_mask & libc::STATX_BTIME == 0 {
            return 0;
        }
        // the kernel keeps 32 bits; births a nanosecond to 4 s apart differ, later ones almost surely
        let born = (out.stx_btime.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(u64::from(out.stx_btime.tv_nsec));
        (born ^ (born >> 32)) & 0xffff_ffff
    }
}

/// A name as the C library wants it.
pub fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn open_path(fd: RawFd, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: plain openat; a non-negative result is a descriptor that we own.
    unsafe {
        let fd = libc::openat(
            fd,
            name.as_ptr(),
            libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC,
        );
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

impl Inodes {
    /// A tree whose root is the directory at `backing`.
    pub fn new(backing: &CStr) -> io::Result<Self> {
        // SAFETY: as in `open_path`; the root may be reached through a symbolic link.
        let handle = unsafe {
            let fd = libc::open(
                backing.as_ptr(),
                libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC,
            );
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let stat = stat_at(handle.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?;
        let key = (stat.st_dev, stat.st_ino);
        let root = Inode {
            number: ROOT,
            device_base: position::file_base(""),
            generation: 0,
            handle,
            key,
            path: RwLock::new(String::new()),
        };
        let mut known = Known {
            next_foreign: FOREIGN,
            ..Known::default()
        };
        known.by_number.insert(ROOT, (Arc::new(root), 1));
        known.by_key.insert(key, ROOT);
        Ok(Inodes {
            root_device: stat.st_dev,
            known: RwLock::new(known),
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of that number.
    pub fn get(&self, number: u64) -> io::Result<Arc<Inode>> {
        let known = self.read();
        let (inode, _) = known
            .by_number
            .get(&number)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))?;
        Ok(inode.clone())
    }

    /// Looks `name` up in `parent` and counts the lookup, which `forget` gives back.
    pub fn lookup(&self, parent: &Inode, name: &OsStr) -> io::Result<(Arc<Inode>, libc::stat)> {
        let c_name = c_name(name)?;
        let handle = open_path(parent.fd(), &c_name)?;
        let stat = stat_at(handle.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?;
        let key = (stat.st_dev, stat.st_ino);
        let mut known = self.write();
        if let Some(number) = known.by_key.get(&key).copied() {
            if let Some((inode, lookups)) = known.by_number.get_mut(&number) {
                *lookups += 1;
                return Ok((inode.clone(), stat));
            }
        }
        let path = join(&parent.path(), name);
        let number =
            if stat.st_dev == self.root_device && stat.st_ino != ROOT && stat.st_ino < FOREIGN {
                stat.st_ino
            } else {
                known.next_foreign += 1;
                known.next_foreign
            };
        let inode = Arc::new(Inode {
            number,
            device_base: position::file_base(&path),
            generation: generation_of(handle.as_raw_fd()),
            handle,
            key,
            path: RwLock::new(path),
        });
        known.by_key.insert(key, number);
        known.by_number.insert(number, (inode.clone(), 1));
        Ok((inode, stat))
    }

    /// The kernel gives `lookups` lookups of a file back.
    pub fn forget(&self, number: u64, lookups: u64) {
        if number == ROOT {
            return;
        }
        let mut known = self.write();
        let Some((_, count)) = known.by_number.get_mut(&number) else {
            return;
        };
        *count = count.saturating_sub(lookups);
        if *count == 0 {
            if let Some((inode, _)) = known.by_number.remove(&number) {
                known.by_key.remove(&inode.key);
            }
        }
    }

    /// A name has changed: known paths at and below it follow.
    pub fn renamed(&self, old: &str, new: &str) {
        let below = format!("{old}/");
        for (inode, _) in self.read().by_number.values() {
            let mut path = inode.path.write().unwrap_or_else(PoisonError::into_inner);
            if *path == old {
                *path = new.to_owned();
            } else if let Some(rest) = path.strip_prefix(&below) {
                *path = format!("{new}/{rest}");
            }
        }
    }
}

/// Path of `name` in the directory at `parent`.
pub fn join(parent: &str, name: &OsStr) -> String {
    let name = name.to_string_lossy();
    if parent.is_empty() {
        name.into_owned()
    } else {
        format!("{parent}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_used_again_is_another_file() {
        let place = std::env::temp_dir().join(format!("penstock-inode-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let inodes = Inodes::new(&c_name(place.as_os_str()).unwrap()).unwrap();
        let root = inodes.get(ROOT).unwrap();
        let seen = |born: &str| {
            std::fs::write(place.join("a"), born).unwrap();
            let (first, _) = inodes.lookup(&root, OsStr::new("a")).unwrap();
            inodes.forget(first.number, 1);
            let (again, _) = inodes.lookup(&root, OsStr::new("a")).unwrap();
            inodes.forget(again.number, 1);
            assert_eq!(first.generation, again.generation);
            std::fs::remove_file(place.join("a")).unwrap();
            (first.number, first.generation)
        };
        let (one, other) = (seen("x"), seen("y"));
        std::fs::remove_dir(&place).unwrap();
        // a file system without birth times tells nothing, and has no generation to give
        if one.1 != 0 && one.0 == other.0 {
            assert_ne!(one.1, other.1);
        }
    }
}
