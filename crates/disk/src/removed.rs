//! Removed files, links and directories, with the state needed to restore them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::backing::{check, last};
use crate::handle::stat_at;

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
        };
        Ok(Removed { stat, kind })
    }

    /// Restore the name as `path` below the directory `root`. A file without any other name becomes a new file
    /// with the same content, owner, mode and times.
    pub fn put_back(&self, root: RawFd, path: &CStr) -> io::Result<()> {
        let mode = self.stat.mode & 0o7777;
        match &self.kind {
            Kind::File(file) => {
                let old = stat_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?;
                if old.st_nlink > 0 {
                    let source = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
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
                let mut new: File = unsafe {
                    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                    let fd = libc::openat(root, path.as_ptr(), flags, 0o600);
                    if fd < 0 {
                        return Err(last());
                    }
                    OwnedFd::from_raw_fd(fd).into()
                };
                let mut content = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
                io::copy(&mut content, &mut new)?;
                new.flush()?;
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
            check(libc::utimensat(
                root,
                path.as_ptr(),
                times.as_ptr(),
                nofollow,
            ))
        }
    }
}
