//! Access to a file of the backing directory by its name, for as long as it is in use.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Identity of a host file: device and inode number.
pub type Key = (u64, u64);

/// Longest part of a path for one system call.
const LONGEST_PATH_BYTES: usize = libc::PATH_MAX as usize - 1;

/// Path of the file behind a descriptor, which may be an O_PATH one.
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

/// Attributes of a file with its generation.
#[derive(Clone, Copy)]
pub struct Attributes {
    /// Result of `fstatat`.
    pub stat: libc::stat,
    /// Distinguishes successive files with the same inode number. Computed from the birth time; 0 if the
    /// backing file system has none.
    pub generation: u32,
}

impl Attributes {
    /// Attributes of `name` in the directory `fd`, or of `fd` itself if the name is empty.
    pub fn at(fd: RawFd, name: &CStr) -> io::Result<Self> {
        // SAFETY: zeroed buffers are valid, the name is terminated.
        let seen = unsafe {
            let mut out: libc::statx = std::mem::zeroed();
            let flags = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
            let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
            if libc::statx(fd, name.as_ptr(), flags, mask, &mut out) != 0 {
                return Err(io::Error::last_os_error());
            }
            out
        };
        Ok(Attributes {
            stat: stat_of(&seen),
            generation: generation_of(&seen),
        })
    }

    /// Device and inode number of the file.
    pub fn key(&self) -> Key {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// True if the file has several names. A directory has one.
    pub fn has_more_names(&self) -> bool {
        self.stat.st_nlink > 1 && !self.is_directory()
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        self.stat.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

fn stat_of(seen: &libc::statx) -> libc::stat {
    // SAFETY: a stat of zeros is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = libc::makedev(seen.stx_dev_major, seen.stx_dev_minor);
    stat.st_ino = seen.stx_ino;
    stat.st_nlink = libc::nlink_t::from(seen.stx_nlink);
    stat.st_mode = libc::mode_t::from(seen.stx_mode);
    stat.st_uid = seen.stx_uid;
    stat.st_gid = seen.stx_gid;
    stat.st_rdev = libc::makedev(seen.stx_rdev_major, seen.stx_rdev_minor);
    stat.st_size = seen.stx_size as i64;
    stat.st_blksize = libc::blksize_t::from(seen.stx_blksize);
    stat.st_blocks = seen.stx_blocks as i64;
    stat.st_atime = seen.stx_atime.tv_sec;
    stat.st_atime_nsec = i64::from(seen.stx_atime.tv_nsec);
    stat.st_mtime = seen.stx_mtime.tv_sec;
    stat.st_mtime_nsec = i64::from(seen.stx_mtime.tv_nsec);
    stat.st_ctime = seen.stx_ctime.tv_sec;
    stat.st_ctime_nsec = i64::from(seen.stx_ctime.tv_nsec);
    stat
}

/// Generation computed from a file's birth time. It stays the same when the kernel forgets the file and looks
/// it up again.
fn generation_of(seen: &libc::statx) -> u32 {
    if seen.stx_mask & libc::STATX_BTIME == 0 {
        return 0;
    }
    // the kernel stores 32 bits: births 1 ns to 4 s apart differ, longer intervals almost surely
    let born = (seen.stx_btime.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(u64::from(seen.stx_btime.tv_nsec));
    (born ^ (born >> 32)) as u32
}

/// Name as a C string.
pub fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// One component of a path; EINVAL for names that lead to another directory.
pub fn component(name: &OsStr) -> io::Result<CString> {
    match name.as_bytes() {
        b"" | b"." | b".." => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        bytes if bytes.contains(&b'/') => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        _ => c_name(name),
    }
}

/// The directory at `path`, which may be reached through a symbolic link.
pub fn open_root(path: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a terminated path; a non-negative result is a descriptor that we own.
    unsafe { owned(libc::open(path.as_ptr(), flags)) }
}

/// O_PATH descriptor of the file that the names lead to from the directory `start`. No symbolic link is
/// followed, including the last component, and nothing above `start` is reachable.
pub fn open_beneath(start: RawFd, names: &[&[u8]]) -> io::Result<OwnedFd> {
    let mut reached: Option<OwnedFd> = None;
    let mut path = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let next = names.get(index + 1).map_or(0, |next| next.len());
        if index + 1 == names.len() || path.len() + 1 + next > LONGEST_PATH_BYTES {
            let from = reached.as_ref().map_or(start, AsRawFd::as_raw_fd);
            reached = Some(open_path(from, &path)?);
            path.clear();
        }
    }
    reached.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

fn open_path(from: RawFd, path: &[u8]) -> io::Result<OwnedFd> {
    static LACKS_OPENAT2: AtomicBool = AtomicBool::new(false);
    if !LACKS_OPENAT2.load(Ordering::Relaxed) {
        match open_resolved(from, path) {
            // before Linux 5.6, or in a container that hides the system call
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                LACKS_OPENAT2.store(true, Ordering::Relaxed);
            }
            done => return done,
        }
    }
    let mut reached: Option<OwnedFd> = None;
    for name in path.split(|&byte| byte == b'/') {
        let name = component(OsStr::from_bytes(name))?;
        let at = reached.as_ref().map_or(from, AsRawFd::as_raw_fd);
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a valid descriptor, a terminated name; the result is ours.
        reached = Some(unsafe { owned(libc::openat(at, name.as_ptr(), flags))? });
    }
    reached.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

fn open_resolved(from: RawFd, path: &[u8]) -> io::Result<OwnedFd> {
    let path = CString::new(path).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: a zeroed open_how is valid, the path is terminated, the size is that of the struct; a non-negative
    // result is a descriptor that we own.
    unsafe {
        let mut open_how: libc::open_how = std::mem::zeroed();
        open_how.flags = (libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
        open_how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;
        let size = std::mem::size_of::<libc::open_how>();
        let fd = libc::syscall(libc::SYS_openat2, from, path.as_ptr(), &open_how, size);
        owned(fd as i32)
    }
}

/// # Safety
/// `fd` is the result of a system call that opens a descriptor, which nobody else owns.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(OwnedFd::from_raw_fd(fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{symlink, MetadataExt};

    #[test]
    fn lookups_stay_below_the_directory() {
        let place = std::env::temp_dir().join(format!("penstock-beneath-{}", std::process::id()));
        fs::create_dir_all(place.join("root/d")).unwrap();
        fs::write(place.join("outside"), b"x").unwrap();
        fs::write(place.join("root/d/f"), b"x").unwrap();
        symlink("../..", place.join("root/d/up")).unwrap();
        symlink("/", place.join("root/all")).unwrap();
        let root = open_root(&c_name(place.join("root").as_os_str()).unwrap()).unwrap();
        let open = |names: &[&[u8]]| open_beneath(root.as_raw_fd(), names);
        let fd = open(&[b"d", b"f"]).unwrap();
        let key = Attributes::at(fd.as_raw_fd(), c"").unwrap().key();
        assert_eq!(key.1, fs::metadata(place.join("root/d/f")).unwrap().ino());
        assert!(open(&[b"d", b"up"]).is_ok(), "the link itself");
        for names in [
            &[b"d".as_slice(), b"up", b"outside"][..],
            &[b"all", b"tmp"],
            &[b"..", b"outside"],
        ] {
            assert!(open(names).is_err(), "{names:?}");
        }
        for name in ["", ".", "..", "a/b"] {
            assert!(component(OsStr::new(name)).is_err());
        }
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn long_paths_are_walked_in_parts() {
        let place = std::env::temp_dir().join(format!("penstock-deep-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let root = open_root(&c_name(place.as_os_str()).unwrap()).unwrap();
        let name = [b'n'; 200];
        let mut names: Vec<&[u8]> = Vec::new();
        for _ in 0..30 {
            let c_name = CString::new(name).unwrap();
            let above = if names.is_empty() {
                None
            } else {
                Some(open_beneath(root.as_raw_fd(), &names).unwrap())
            };
            let at = above.as_ref().map_or(root.as_raw_fd(), AsRawFd::as_raw_fd);
            // SAFETY: a valid descriptor and name.
            assert_eq!(unsafe { libc::mkdirat(at, c_name.as_ptr(), 0o700) }, 0);
            names.push(&name);
        }
        assert!(open_beneath(root.as_raw_fd(), &names).is_ok());
        fs::remove_dir_all(&place).unwrap();
    }
}
