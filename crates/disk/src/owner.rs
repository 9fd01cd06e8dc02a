//! Mapping of file owners between the mount and the backing directory.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use serde::Deserialize;

use crate::backing::{check, clear_set_id};
use crate::gate::error;
use crate::handle::path_of;

/// User and group that own the files on the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerId {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
}

/// Name of the attribute that gives capabilities to a program.
const CAPABILITY: &CStr = c"security.capability";

/// Exchange of two users and two groups: the owner of the backing directory, and the owner on the mount. The
/// exchange is its own inverse, so it serves both directions. Files of other users keep their owners.
///
/// Files created on such a disk belong to a different user on the host. Therefore its files get no setuid,
/// setgid or capabilities, and lose them when their bytes change. Devices are refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner {
    users: (u32, u32),
    groups: (u32, u32),
    mapped: bool,
}

fn exchanged(id: u32, (one, other): (u32, u32)) -> u32 {
    if id == one {
        other
    } else if id == other {
        one
    } else {
        id
    }
}

impl Owner {
    /// Map files of `host` to those of `mount` on the mount.
    pub fn new(host: OwnerId, mount: OwnerId) -> Self {
        Owner {
            users: (host.uid, mount.uid),
            groups: (host.gid, mount.gid),
            mapped: true,
        }
    }

    /// User on the other side.
    pub fn user(&self, uid: u32) -> u32 {
        exchanged(uid, self.users)
    }

    /// Group on the other side.
    pub fn group(&self, gid: u32) -> u32 {
        exchanged(gid, self.groups)
    }

    /// Permitted mode of a new file of the `kind` (its S_IFMT) for a requested `mode`. Directories keep setgid:
    /// it only sets the group of files in them. EPERM for a device.
    pub(crate) fn mode(&self, kind: u32, mode: u32) -> io::Result<u32> {
        match kind & libc::S_IFMT {
            _ if !self.mapped => Ok(mode),
            libc::S_IFDIR => Ok(mode),
            libc::S_IFCHR | libc::S_IFBLK => Err(error(libc::EPERM)),
            _ => Ok(mode & !(libc::S_ISUID | libc::S_ISGID)),
        }
    }

    /// Remove setuid, setgid and capabilities. Call this before the bytes of the file can change.
    pub(crate) fn disarm(&self, fd: RawFd) -> io::Result<()> {
        if !self.mapped {
            return Ok(());
        }
        clear_set_id(fd)?;
        // SAFETY: terminated strings.
        match check(unsafe { libc::removexattr(path_of(fd).as_ptr(), CAPABILITY.as_ptr()) }) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::ENOTSUP)) => {
                Ok(())
            }
            done => done,
        }
    }

    /// EPERM for an attribute that gives capabilities to a file.
    pub(crate) fn admit_attribute(&self, name: &CStr) -> io::Result<()> {
        if self.mapped && name == CAPABILITY {
            return Err(error(libc::EPERM));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_mount_owner_are_exchanged() {
        let host = OwnerId { uid: 0, gid: 0 };
        let owner = Owner::new(host, OwnerId { uid: 999, gid: 7 });
        assert_eq!((owner.user(0), owner.user(999), owner.user(5)), (999, 0, 5));
        assert_eq!(
            (owner.group(0), owner.group(7), owner.group(999)),
            (7, 0, 999)
        );
        assert_eq!(Owner::default().user(12), 12);
    }

    #[test]
    fn mapped_files_cannot_have_setuid_or_device_modes() {
        let host = OwnerId { uid: 0, gid: 0 };
        let (mapped, unmapped) = (Owner::new(host, host), Owner::default());
        assert_eq!(mapped.mode(libc::S_IFREG, 0o6755).unwrap(), 0o755);
        assert_eq!(mapped.mode(libc::S_IFDIR, 0o2755).unwrap(), 0o2755);
        assert!(mapped.mode(libc::S_IFBLK, 0o600).is_err());
        assert_eq!(unmapped.mode(libc::S_IFREG, 0o6755).unwrap(), 0o6755);
        assert_eq!(unmapped.mode(libc::S_IFBLK, 0o600).unwrap(), 0o600);
    }
}
