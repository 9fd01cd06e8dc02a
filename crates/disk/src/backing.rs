//! Backing files on the host: data, attributes, flags and names.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, FopenFlags, INodeNo, ReplyXattr, TimeOrNow};

use crate::handle::{path_of, stat_at};

pub(crate) fn last() -> io::Error {
    io::Error::last_os_error()
}

pub(crate) fn check(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(last())
    }
}

pub(crate) fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let part = Duration::from_nanos(nanoseconds.max(0) as u64);
    if seconds >= 0 {
        UNIX_EPOCH + Duration::from_secs(seconds as u64) + part
    } else {
        UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + part
    }
}

pub(crate) fn kind_of(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// Number of 512-byte blocks of a file. The kernel keeps reporting this value while dirty pages have no blocks
/// in the backing file yet. tar archives a file without blocks as a hole, so a regular file always reports at
/// least one.
fn blocks(stat: &libc::stat) -> u64 {
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    (stat.st_blocks as u64).max(regular.into())
}

pub(crate) fn attributes(number: u64, stat: &libc::stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: stat.st_size as u64,
        blocks: blocks(stat),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind_of(stat.st_mode),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: 4096,
        flags: 0,
    }
}

pub(crate) fn timespec(time: Option<TimeOrNow>) -> libc::timespec {
    match time {
        None => libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::UTIME_OMIT,
        },
        Some(TimeOrNow::Now) => libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::UTIME_NOW,
        },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => libc::timespec {
                tv_sec: since.as_secs() as i64,
                tv_nsec: i64::from(since.subsec_nanos()),
            },
            Err(before) => {
                let before = before.duration();
                let nanoseconds = i64::from(before.subsec_nanos());
                libc::timespec {
                    tv_sec: -(before.as_secs() as i64) - i64::from(nanoseconds > 0),
                    tv_nsec: (1_000_000_000 - nanoseconds) % 1_000_000_000,
                }
            }
        },
    }
}

/// Flags of the backing file. It is readable, because the page cache reads partially written pages; it is not
/// opened for appending, because the kernel states offsets; and the host caches it.
pub(crate) fn backing_flags(flags: i32) -> i32 {
    let mut flags = flags
        & !(libc::O_DIRECT
            | libc::O_APPEND
            | libc::O_NOFOLLOW
            | libc::O_SYNC
            | libc::O_DSYNC
            | libc::O_CREAT
            | libc::O_EXCL
            | libc::O_NOATIME);
    if flags & libc::O_ACCMODE == libc::O_WRONLY {
        flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR;
    }
    flags | libc::O_CLOEXEC
}

/// Flags for the kernel. A file opened with O_DIRECT bypasses the page cache at its true size and may write in
/// parallel. Other files keep their cached data, unless the disk is `exact`: then every call reaches the disk.
pub(crate) fn opened_flags(flags: i32, exact: bool) -> FopenFlags {
    if flags & libc::O_DIRECT != 0 {
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else if exact {
        FopenFlags::FOPEN_DIRECT_IO
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    }
}

pub(crate) fn pread(file: RawFd, buffer: &mut Vec<u8>, size: usize, offset: u64) -> io::Result<()> {
    buffer.reserve(size);
    // SAFETY: space for `size` bytes; the length is set to what was written.
    unsafe {
        let filled = pread_into(file, buffer.as_mut_ptr(), size, offset)?;
        buffer.set_len(filled);
    }
    Ok(())
}

/// Read up to `size` bytes into `into`; fewer at the end of the file.
///
/// # Safety
/// `into` must be valid for writes of `size` bytes.
pub(crate) unsafe fn pread_into(
    file: RawFd,
    into: *mut u8,
    size: usize,
    offset: u64,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < size {
        let at = (offset + filled as u64) as i64;
        let got = libc::pread(file, into.add(filled).cast(), size - filled, at);
        match got {
            0 => break,
            got if got > 0 => filled += got as usize,
            _ if last().kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(last()),
        }
    }
    Ok(filled)
}

/// Number of the `size` bytes at `offset` that exist in the file; `size` if the metadata is unavailable.
pub(crate) fn existing_bytes(file: &File, offset: u64, size: u32) -> u32 {
    let Ok(facts) = file.metadata() else {
        return size;
    };
    if facts.is_file() {
        facts.len().saturating_sub(offset).min(size.into()) as u32
    } else {
        size
    }
}

pub(crate) fn pwrite(file: RawFd, data: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < data.len() {
        let rest = &data[written..];
        // SAFETY: reads from a valid slice.
        let put = unsafe {
            libc::pwrite(
                file,
                rest.as_ptr().cast(),
                rest.len(),
                (offset + written as u64) as i64,
            )
        };
        match put {
            put if put >= 0 => written += put as usize,
            _ if last().kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(last()),
        }
    }
    Ok(())
}

pub(crate) fn clear_set_id(fd: RawFd) -> io::Result<()> {
    let stat = stat_at(fd, c"", libc::AT_EMPTY_PATH)?;
    let set_id = libc::S_ISUID | libc::S_ISGID;
    if stat.st_mode & set_id == 0 {
        return Ok(());
    }
    // SAFETY: a terminated path.
    check(unsafe { libc::chmod(path_of(fd).as_ptr(), stat.st_mode & 0o7777 & !set_id) })
}

pub(crate) fn sized(
    size: u32,
    get: impl FnOnce(*mut libc::c_void, usize) -> isize,
) -> io::Result<(usize, Vec<u8>)> {
    let mut buffer = vec![0u8; size as usize];
    let length = get(buffer.as_mut_ptr().cast(), buffer.len());
    let length = usize::try_from(length).map_err(|_| last())?;
    buffer.truncate(length);
    Ok((length, buffer))
}

pub(crate) fn answer_xattr(size: u32, got: io::Result<(usize, Vec<u8>)>, reply: ReplyXattr) {
    match got {
        Ok((length, _)) if size == 0 => reply.size(length as u32),
        Ok((_, value)) => reply.data(&value),
        Err(error) => reply.error(error.into()),
    }
}
