//! Attributes of files for the kernel.

use std::ffi::CString;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};

use crate::error::Error;
use crate::inspect::size_at;

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let part = Duration::from_nanos(nanoseconds.max(0) as u64);
    if seconds >= 0 {
        UNIX_EPOCH + Duration::from_secs(seconds as u64) + part
    } else {
        UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + part
    }
}

/// Size of the content in bytes. A file with a damaged map has size 0, so that it can be removed; opening it is an
/// error.
pub(crate) fn size_of(path: &Path, facts: &Metadata) -> io::Result<u64> {
    if !facts.is_file() {
        return Ok(facts.len());
    }
    match size_at(path) {
        Err(Error::Damaged(_)) => Ok(0),
        result => result.map_err(|error| io::Error::from_raw_os_error(error.errno())),
    }
}

/// Attributes of the inode `number`.
pub(crate) fn attributes(number: u64, facts: &Metadata, size_bytes: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: size_bytes,
        blocks: size_bytes.div_ceil(512),
        atime: time(facts.atime(), facts.atime_nsec()),
        mtime: time(facts.mtime(), facts.mtime_nsec()),
        ctime: time(facts.ctime(), facts.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(facts.file_type()).unwrap_or(FileType::RegularFile),
        perm: (facts.mode() & 0o7777) as u16,
        nlink: facts.nlink() as u32,
        uid: facts.uid(),
        gid: facts.gid(),
        rdev: 0,
        blksize: 1 << 20, // of direct reads and writes
        flags: 0,
    }
}

fn timespec(time: Option<SystemTime>) -> libc::timespec {
    let Some(time) = time else {
        return libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::UTIME_OMIT,
        };
    };
    let (seconds, nanoseconds) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, i64::from(since.subsec_nanos())),
        Err(before) => {
            let before = before.duration();
            let part = i64::from(before.subsec_nanos());
            (
                -(before.as_secs() as i64) - i64::from(part > 0),
                (1_000_000_000 - part) % 1_000_000_000,
            )
        }
    };
    libc::timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    }
}

/// Set the mode of a path. Error: the path is a link, whose target must not change.
pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let mut options = File::options();
    let options = options
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
    let file = options.open(path)?;
    if file.metadata()?.is_symlink() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(same, Permissions::from_mode(mode))
}

/// Set the access and modification time of a path. If it is a link, its target does not change.
pub(crate) fn set_times(path: &Path, times: [Option<SystemTime>; 2]) -> io::Result<()> {
    let c_path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let times = times.map(timespec);
    // SAFETY: a terminated path and two times.
    let result = unsafe {
        libc::utimensat(
            libc::AT_FDCWD,
            c_path.as_ptr(),
            times.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
