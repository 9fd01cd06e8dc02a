//! Whom the files belong to: on the mount to one, in the backing directory to another.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use serde::Deserialize;

use crate::backing::{check, clear_set_id};
use crate::gate::error;
use crate::handle::path_of;

/// Who sees the files as its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerId {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
}

/// Name of the attribute that gives capabilities to who runs a file.
const CAPABILITY: &CStr = c"security.capability";

/// Exchanges two users and two groups: the owner of the backing directory and the one whom the
/// disk is given to. It is its own inverse, so that it serves both ways, and whoever else has files
/// there keeps them.
///
/// What is made on a disk that is given to somebody belongs to another on the host, so nothing on it gets, or
/// keeps when its bytes change, what acts there: setuid, setgid, capabilities, devices.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner {
    users: (u32, u32),
    groups: (u32, u32),
    given: bool,
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
    /// Files of `host` are `given`'s on the mount.
    pub fn new(host: OwnerId, given: OwnerId) -> Self {
        Owner {
            users: (host.uid, given.uid),
            groups: (host.gid, given.gid),
            given: true,
        }
    }

    /// The user on the other side.
    pub fn user(&self, uid: u32) -> u32 {
        exchanged(uid, self.users)
    }

    /// The group on the other side.
    pub fn group(&self, gid: u32) -> u32 {
        exchanged(gid, self.groups)
    }

    /// The mode that something of the `kind` (its S_IFMT) gets where `mode` is asked for. Directories keep
    /// setgid: it says whose group files in them have, and gives nobody anything. EPERM for a device.
    pub(crate) fn mode(&self, kind: u32, mode: u32) -> io::Result<u32> {
        match kind & libc::S_IFMT {
            _ if !self.given => Ok(mode),
            libc::S_IFDIR => Ok(mode),
            libc::S_IFCHR | libc::S_IFBLK => Err(error(libc::EPERM)),
            _ => Ok(mode & !(libc::S_ISUID | libc::S_ISGID)),
        }
    }

    /// To be called before somebody can change the bytes of the file of a descriptor.
    pub(crate) fn disarm(&self, fd: RawFd) -> io::Result<()> {
        if !self.given {
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

    /// EPERM for an attribute that gives a file capabilities.
    pub(crate) fn admit_attribute(&self, name: &CStr) -> io::Result<()> {
        if self.given && name == CAPABILITY {
            return Err(error(libc::EPERM));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_owners_change_places_and_the_rest_stay() {
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
    fn what_is_given_away_cannot_act() {
        let host = OwnerId { uid: 0, gid: 0 };
        let (given, kept) = (Owner::new(host, host), Owner::default());
        assert_eq!(given.mode(libc::S_IFREG, 0o6755).unwrap(), 0o755);
        assert_eq!(given.mode(libc::S_IFDIR, 0o2755).unwrap(), 0o2755);
        assert!(given.mode(libc::S_IFBLK, 0o600).is_err());
        assert_eq!(kept.mode(libc::S_IFREG, 0o6755).unwrap(), 0o6755);
        assert_eq!(kept.mode(libc::S_IFBLK, 0o600).unwrap(), 0o600);
    }
}
