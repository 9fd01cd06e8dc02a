//! Files, directories and sockets that only root and the user of the daemon can reach.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

const BY_OTHERS: u32 = 0o077;
const WRITABLE_BY_OTHERS: u32 = 0o022;

fn own_uid() -> u32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::geteuid() }
}

fn refused(why: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, why)
}

/// Create an empty file of mode 0600 and replace an existing file of that name. A symbolic link is not
/// followed.
pub fn file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    new_file(path)
}

/// Create an empty file of mode 0600. Fails if a file or link of that name exists.
pub fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Create the directory if absent and set its permissions to exclude other users. Refuse a link and a directory
/// of another user.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let facts = fs::symlink_metadata(path)?;
    if !facts.is_dir() || facts.uid() != own_uid() {
        return Err(refused(format!(
            "found a {} of user {}; expected a directory of user {}",
            if facts.is_dir() { "directory" } else { "file" },
            facts.uid(),
            own_uid()
        )));
    }
    if facts.mode() & BY_OTHERS != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Refuse a directory in which another user could replace our files.
pub(crate) fn check_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let facts = fs::metadata(parent)?;
    let (owner, mode) = (facts.uid(), facts.mode());
    if (owner != 0 && owner != own_uid()) || mode & WRITABLE_BY_OTHERS != 0 {
        return Err(refused(format!(
            "{} belongs to user {owner} and has mode {:o}; expected a directory of our own that nobody \
             else may write to",
            parent.display(),
            mode & 0o7777
        )));
    }
    Ok(())
}

/// The user at the other end of a connection; `SO_PEERCRED`, socket(7).
fn peer_uid(stream: &UnixStream) -> io::Result<u32> {
    // SAFETY: zeros are a valid value; the buffer and its length belong together.
    unsafe {
        let mut peer: libc::ucred = zeroed();
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let result = libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut length,
        );
        if result == 0 {
            Ok(peer.uid)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// True if the peer is root or our own user.
pub(crate) fn may_ask(stream: &UnixStream) -> bool {
    peer_uid(stream).is_ok_and(|uid| uid == 0 || uid == own_uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place(name: &str) -> std::path::PathBuf {
        let place =
            std::env::temp_dir().join(format!("penstock-private-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).unwrap();
        place
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn planted_links_are_replaced_without_touching_the_target() {
        let place = place("link");
        let (target, path) = (place.join("target"), place.join("file"));
        fs::write(&target, "precious").unwrap();
        symlink(&target, &path).unwrap();
        file(&path).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        assert_eq!(mode(&path), 0o600);
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn directories_are_private_and_links_are_rejected() {
        let place = place("directory");
        let open = place.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        directory(&open).unwrap();
        assert_eq!(mode(&open), 0o700);
        let link = place.join("link");
        symlink(&open, &link).unwrap();
        assert!(directory(&link).is_err());
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn sockets_reject_directories_writable_by_others() {
        let place = place("parent");
        let path = place.join("socket");
        assert!(check_parent(&path).is_ok());
        fs::set_permissions(&place, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(check_parent(&path).is_err());
        fs::remove_dir_all(place).unwrap();
    }
}
