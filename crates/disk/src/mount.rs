//! Mount and unmount the file system of a disk.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use penstock_daemon::Error;

fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Bad(format!("path {path:?} has a null byte")))
}

/// Mount a FUSE file system at `mount` with source `penstock:<token>`. Return its device.
pub fn mount(mount: &Path, token: &str) -> Result<OwnedFd, Error> {
    let device = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/fuse")
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::Bad(
                "this kernel offers no FUSE (/dev/fuse is missing): load the module `fuse`".into(),
            ),
            _ => Error::host("opening /dev/fuse", error),
        })?;
    let source = format!("penstock:{token}");
    // SAFETY: no arguments, no failure.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let options = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions,allow_other",
        device.as_raw_fd()
    );
    let (c_source, c_mount, c_options) = (
        CString::new(source.as_str()).map_err(|_| Error::Bad("token has a null byte".into()))?,
        c_path(mount)?,
        CString::new(options).unwrap_or_default(),
    );
    // SAFETY: terminated strings.
    let result = unsafe {
        libc::mount(
            c_source.as_ptr(),
            c_mount.as_ptr(),
            c"fuse.penstock".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            c_options.as_ptr().cast(),
        )
    };
    if result == 0 {
        return Ok(device.into());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(Error::host(
            format!("mounting on {}", mount.display()),
            error,
        ));
    }
    drop(device);
    by_fusermount(mount, &source)
}

/// Mount without privileges: `fusermount3` mounts and passes the device over a socket.
fn by_fusermount(mount: &Path, source: &str) -> Result<OwnedFd, Error> {
    let mut pair: [RawFd; 2] = [0; 2];
    // SAFETY: space for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) } != 0 {
        return Err(Error::last("a socket for fusermount3"));
    }
    // SAFETY: both were just made and are owned here.
    let (parent_end, child_end) =
        unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
    let attempt = |options: &str| {
        Command::new("fusermount3")
            .args([
                OsStr::new("-o"),
                OsStr::new(options),
                OsStr::new("--"),
                mount.as_os_str(),
            ])
            .env("_FUSE_COMMFD", child_end.as_raw_fd().to_string())
            .output()
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => {
                    Error::Bad("mounting needs root or fusermount3 (Debian package fuse3)".into())
                }
                _ => Error::host("fusermount3", error),
            })
    };
    let base = format!("fsname={source},subtype=penstock,default_permissions,nosuid,nodev");
    let mut output = attempt(&format!("{base},allow_other"))?;
    if !output.status.success() {
        // Without user_allow_other in /etc/fuse.conf the disk serves its owner only.
        output = attempt(&base)?;
    }
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Bad(format!(
            "mounting on {}: {}",
            mount.display(),
            why.trim()
        )));
    }
    receive_descriptor(&parent_end).ok_or_else(|| Error::Bad("fusermount3 passed no device".into()))
}

fn receive_descriptor(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = 0u8;
    let mut space = [0u64; 8];
    let mut part = libc::iovec {
        iov_base: std::ptr::from_mut(&mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: the message points to live buffers of the stated sizes; a descriptor received is ours.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = std::mem::size_of_val(&space);
        if libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) <= 0 {
            return None;
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        let fd = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<RawFd>());
        Some(OwnedFd::from_raw_fd(fd))
    }
}

/// Unmount; lazily if files are open. Return true if the unmount was lazy.
pub fn unmount(mount: &Path) -> Result<bool, Error> {
    let c_mount = c_path(mount)?;
    // SAFETY: a terminated path.
    let result = unsafe { libc::umount2(c_mount.as_ptr(), libc::UMOUNT_NOFOLLOW) };
    if result == 0 {
        return Ok(false);
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EBUSY) => {
            // SAFETY: as above.
            let flags = libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW;
            if unsafe { libc::umount2(c_mount.as_ptr(), flags) } == 0 {
                return Ok(true);
            }
            Err(Error::last(format!("unmounting {}", mount.display())))
        }
        Some(libc::EPERM) => {
            let status = Command::new("fusermount3")
                .args(["-u", "-z", "--"])
                .arg(mount)
                .status();
            match status {
                Ok(status) if status.success() => Ok(true),
                _ => Err(Error::Bad(format!(
                    "fusermount3 could not unmount {}",
                    mount.display()
                ))),
            }
        }
        // Already unmounted.
        Some(libc::EINVAL | libc::ENOENT) => Ok(false),
        _ => Err(Error::last(format!("unmounting {}", mount.display()))),
    }
}

/// Mount a shared, empty file system at `mount`; the disk is then mounted on top of it.
///
/// Mount namespaces created while it is there, and bind mounts of it, receive a copy. Unless they are private,
/// later mounts and unmounts on it propagate to them. So a container that has the mount point follows when a
/// disk is stopped, or mounted again after a power cut.
pub fn carry(mount: &Path, token: &str) -> Result<(), Error> {
    let what = || format!("a shared mount at {}", mount.display());
    let c_source = CString::new(format!("penstock:{token}"))
        .map_err(|_| Error::Bad("token has a null byte".into()))?;
    let c_mount = c_path(mount)?;
    // SAFETY (both): terminated strings.
    let mounted = unsafe {
        libc::mount(
            c_source.as_ptr(),
            c_mount.as_ptr(),
            c"tmpfs".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
            c"size=4k,nr_inodes=2,mode=755".as_ptr().cast(),
        )
    };
    if mounted != 0 {
        return Err(Error::last(what()));
    }
    let none = std::ptr::null();
    let shared = unsafe { libc::mount(none, c_mount.as_ptr(), none, libc::MS_SHARED, none.cast()) };
    if shared != 0 {
        let error = Error::last(what());
        let _ = unmount(mount);
        return Err(error);
    }
    Ok(())
}

/// Abort a connection: all requests fail, including those in progress, and the mount stays. Return false if the
/// control file system is not mounted.
fn abort_connection(device: [u32; 2]) -> bool {
    fs::write(format!("/sys/fs/fuse/connections/{}/abort", device[1]), "1").is_ok()
}

/// Make all requests of a mount fail. Without its device or the control file system, this also removes a mount
/// that is not in use.
pub fn abort(mount: &Path, device: Option<[u32; 2]>) {
    if device.is_some_and(abort_connection) {
        return;
    }
    if let Ok(c_mount) = c_path(mount) {
        // SAFETY: a terminated path.
        unsafe { libc::umount2(c_mount.as_ptr(), libc::MNT_FORCE | libc::UMOUNT_NOFOLLOW) };
    }
}

/// End a mount at once: requests fail, dirty pages are dropped, open files become unusable.
pub fn cut(mount: &Path, device: [u32; 2]) -> Result<(), Error> {
    let aborted = abort_connection(device);
    let c_mount = c_path(mount)?;
    let flags = libc::MNT_FORCE | libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW;
    // SAFETY: a terminated path.
    if unsafe { libc::umount2(c_mount.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = Error::last(format!("cutting {} off", mount.display()));
    if aborted {
        return unmount(mount).map(|_| ());
    }
    Err(error)
}

/// Device number of the mount, `[major, minor]`, as in the attributes of its files.
pub fn device(mount: &Path) -> Result<[u32; 2], Error> {
    let meta =
        fs::metadata(mount).map_err(|error| Error::host(mount.display().to_string(), error))?;
    Ok([libc::major(meta.dev()), libc::minor(meta.dev())])
}

/// Set dirty limit and readahead of the mount. Return the settings that this host refuses.
///
/// By default, a FUSE mount has a strict dirty limit of 1 % of the memory. A limit in bytes makes it
/// independent of the host's memory size. The kernel throttles a writer at the limit, so dirty pages, which
/// cannot be dropped, do not fill a small memory group either.
pub fn tune(device: [u32; 2], dirty_bytes: u64, readahead_bytes: u32) -> Vec<String> {
    let bdi = format!("/sys/class/bdi/{}:{}", device[0], device[1]);
    let settings = [
        ("max_bytes", dirty_bytes.to_string()),
        ("strict_limit", "1".to_owned()),
        ("read_ahead_kb", (readahead_bytes / 1024).to_string()),
    ];
    let mut refused = Vec::new();
    for (name, value) in settings {
        if let Err(error) = fs::write(format!("{bdi}/{name}"), &value) {
            refused.push(format!("{name}: {error}"));
        }
    }
    refused
}
