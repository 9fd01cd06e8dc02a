//! Removed files, links and directories, with the state needed to restore them.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::backing::{check, last, sized};
use crate::handle::{path_of, stat_at, Key};

/// Files made anew, by the removed file with that content: its other names become links to the same file.
pub type Restored = HashMap<Key, File>;

/// A file, link or directory that was removed, or is about to be.
#[derive(Debug)]
pub struct Removed {
    stat: Stat,
    kind: Kind,
}

#[derive(Debug)]
struct Stat {
    mode: u32,
    uid: u32,
    gid: u32,
    device: u64,
    times: [(i64, i64); 2],
    /// Extended attributes.
    attributes: Vec<(CString, Vec<u8>)>,
}

#[derive(Debug)]
enum Kind {
    /// The content exists while this descriptor is open.
    File(File),
    Directory,
    Link(CString),
    Node,
}

fn open(fd: RawFd, name: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain openat; a non-negative result is a descriptor that we own.
    unsafe {
        let fd = libc::openat(fd, name.as_ptr(), flags | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(last());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn target(fd: RawFd, name: &CStr) -> io::Result<CString> {
    let mut text = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: a valid buffer of that size.
    let length =
        unsafe { libc::readlinkat(fd, name.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    text.truncate(usize::try_from(length).map_err(|_| last())?);
    CString::new(text).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Path of a name below the directory `fd`.
fn path_in(fd: RawFd, name: &CStr) -> CString {
    let path = [path_of(fd).as_bytes(), b"/", name.to_bytes()].concat();
    CString::new(path).unwrap_or_default()
}

/// Extended attributes of `name` in the directory `fd`; none if its file system has none.
fn extended_attributes(fd: RawFd, name: &CStr) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let path = path_in(fd, name);
    // SAFETY (both): terminated names; the buffers have the stated sizes.
    let list = |buffer: *mut libc::c_void, size| unsafe {
        libc::llistxattr(path.as_ptr(), buffer.cast(), size)
    };
    let get = |name: &CStr, buffer, size| unsafe {
        libc::lgetxattr(path.as_ptr(), name.as_ptr(), buffer, size)
    };
    let size = match sized(0, list) {
        Ok((0, _)) => return Ok(Vec::new()),
        Err(error) if error.raw_os_error() == Some(libc::ENOTSUP) => return Ok(Vec::new()),
        listed => listed?.0,
    };
    let (_, names) = sized(size as u32, list)?;
    let names = names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    names
        .map(|name| {
            let name = CString::new(name)?;
            let (size, _) = sized(0, |buffer, size| get(&name, buffer, size))?;
            let (_, value) = sized(size as u32, |buffer, size| get(&name, buffer, size))?;
            Ok((name, value))
        })
        .collect()
}

/// Give `to` the content of `from`, with its holes.
fn copy(mut from: &File, mut to: &File) -> io::Result<()> {
    to.set_len(from.metadata()?.len())?;
    let seek = |at: u64, whence| {
        // SAFETY: a valid descriptor, whose position nothing else uses.
        let found = unsafe { libc::lseek(from.as_raw_fd(), at as i64, whence) };
        match u64::try_from(found) {
            Ok(found) => Ok(Some(found)),
            Err(_) if last().raw_os_error() == Some(libc::ENXIO) => Ok(None),
            Err(_) => Err(last()),
        }
    };
    let mut end = 0;
    while let Some(start) = seek(end, libc::SEEK_DATA)? {
        end = seek(start, libc::SEEK_HOLE)?.unwrap_or(start);
        if end == start {
            break;
        }
        from.seek(SeekFrom::Start(start))?;
        to.seek(SeekFrom::Start(start))?;
        io::copy(&mut from.take(end - start), &mut to)?;
    }
    Ok(())
}

impl Removed {
    /// Store the state of `name` in the directory `fd`. Call this before removing the name.
    pub fn hold(fd: RawFd, name: &CStr) -> io::Result<Self> {
        let stat = stat_at(fd, name, 0)?;
        let kind = match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File(open(fd, name, libc::O_RDONLY | libc::O_NOFOLLOW)?.into()),
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => Kind::Link(target(fd, name)?),
            _ => Kind::Node,
        };
        let stat = Stat {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            device: stat.st_rdev,
            times: [
                (stat.st_atime, stat.st_atime_nsec),
                (stat.st_mtime, stat.st_mtime_nsec),
            ],
            attributes: extended_attributes(fd, name)?,
        };
        Ok(Removed { stat, kind })
    }

    /// Restore the name as `path` below the directory `root`. A file without any other name becomes a new file
    /// with the same content, owner, mode, times and attributes, and is added to `restored`.
    pub fn put_back(&self, root: RawFd, path: &CStr, restored: &mut Restored) -> io::Result<()> {
        let mode = self.stat.mode & 0o7777;
        match &self.kind {
            Kind::File(file) => {
                let old = stat_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?;
                let key = (old.st_dev, old.st_ino);
                let linked = if old.st_nlink > 0 {
                    Some(file)
                } else {
                    restored.get(&key)
                };
                if let Some(linked) = linked {
                    let source = path_of(linked.as_raw_fd());
                    // SAFETY: terminated names.
                    return check(unsafe {
                        libc::linkat(
                            libc::AT_FDCWD,
                            source.as_ptr(),
                            root,
                            path.as_ptr(),
                            libc::AT_SYMLINK_FOLLOW,
                        )
                    });
                }
                // SAFETY: as in `open`, with a mode.
                let new: File = unsafe {
                    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                    let fd = libc::openat(root, path.as_ptr(), flags, 0o600);
                    if fd < 0 {
                        return Err(last());
                    }
                    OwnedFd::from_raw_fd(fd).into()
                };
                copy(file, &new)?;
                restored.insert(key, new);
            }
            // SAFETY (these three): a valid descriptor, terminated names.
            Kind::Directory => check(unsafe { libc::mkdirat(root, path.as_ptr(), mode) })?,
            Kind::Link(to) => {
                check(unsafe { libc::symlinkat(to.as_ptr(), root, path.as_ptr()) })?;
            }
            Kind::Node => check(unsafe {
                libc::mknodat(root, path.as_ptr(), self.stat.mode, self.stat.device)
            })?,
        }
        self.dress(root, path, mode)
    }

    fn dress(&self, root: RawFd, path: &CStr, mode: u32) -> io::Result<()> {
        let times = self
            .stat
            .times
            .map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
        let nofollow = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: a valid descriptor, terminated names, two times.
        unsafe {
            check(libc::fchownat(
                root,
                path.as_ptr(),
                self.stat.uid,
                self.stat.gid,
                nofollow,
            ))?;
            if !matches!(self.kind, Kind::Link(_)) {
                check(libc::fchmodat(root, path.as_ptr(), mode, 0))?;
            }
            let at = path_in(root, path);
            for (name, value) in &self.stat.attributes {
                check(libc::lsetxattr(
                    at.as_ptr(),
                    name.as_ptr(),
                    value.as_ptr().cast(),
                    value.len(),
                    0,
                ))?;
            }
            check(libc::utimensat(
                root,
                path.as_ptr(),
                times.as_ptr(),
                nofollow,
            ))
        }
    }
}
