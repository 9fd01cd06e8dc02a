//! Directories of disks: validity, and detection of disks that share files.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use penstock_daemon::Error;

/// A directory as its file system and its path in it, which is the same for all bind mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Number of the file system, `major:minor`.
    device: String,
    path: PathBuf,
}

/// Relation between the files of two directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Same,
    Below,
    Above,
}

impl Location {
    /// Location of `path`, from the mounts in `mountinfo` (proc_pid_mountinfo(5)); None without a matching
    /// mount.
    fn find(path: &Path, mountinfo: &[u8]) -> Option<Self> {
        let mut best: Option<(PathBuf, PathBuf, String)> = None;
        for line in mountinfo.split(|&byte| byte == b'\n') {
            let mut fields = line.split(|&byte| byte == b' ').skip(2);
            let (Some(device), Some(root), Some(point)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let point = unescaped(point);
            let longest = |best: &(PathBuf, PathBuf, String)| {
                point.as_os_str().len() >= best.0.as_os_str().len()
            };
            if path.starts_with(&point) && best.as_ref().is_none_or(longest) {
                let device = String::from_utf8_lossy(device).into_owned();
                best = Some((point, unescaped(root), device));
            }
        }
        let (point, root, device) = best?;
        let below = path.strip_prefix(&point).ok()?;
        Some(Location {
            device,
            path: root.join(below),
        })
    }

    fn relation(&self, other: &Location) -> Option<Relation> {
        if self.device != other.device {
            None
        } else if self.path == other.path {
            Some(Relation::Same)
        } else if self.path.starts_with(&other.path) {
            Some(Relation::Below)
        } else if other.path.starts_with(&self.path) {
            Some(Relation::Above)
        } else {
            None
        }
    }
}

/// Replace octal escapes, such as `\040` for a space.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| byte == b'\\');
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                plain.push(code);
                rest = &after[3..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(plain).into()
}

/// Directories of one disk. While this exists, no other server can serve the backing directory.
#[derive(Debug)]
pub struct Places {
    mount: PathBuf,
    backing: PathBuf,
    mounted: Option<Location>,
    backed: Option<Location>,
    key: (u64, u64),
    _lock: Option<File>,
}

fn full(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize()
        .map_err(|error| Error::host(path.display().to_string(), error))
}

impl Places {
    /// Claim the directories of a new disk. Refuse an unusable mount point or backing directory, and files that
    /// another disk shows: neither disk would see writes through the other.
    pub fn claim<'a>(
        mount: &Path,
        backing: &Path,
        others: impl Iterator<Item = &'a Places>,
    ) -> Result<Self, Error> {
        check_directories(mount, backing)?;
        let mountinfo = fs::read("/proc/self/mountinfo")
            .map_err(|error| Error::host("/proc/self/mountinfo", error))?;
        let (mount, backing) = (full(mount)?, full(backing)?);
        check_apart(&mount, &backing)?;
        check_empty(&mount)?;
        let meta = fs::metadata(&backing)
            .map_err(|error| Error::host(backing.display().to_string(), error))?;
        let places = Places {
            mounted: Location::find(&mount, &mountinfo),
            backed: Location::find(&backing, &mountinfo),
            key: (meta.dev(), meta.ino()),
            mount,
            backing,
            _lock: None,
        };
        if let (Some(mounted), Some(backed)) = (&places.mounted, &places.backed) {
            // shared by a path other than those compared above
            if mounted.relation(backed).is_some() {
                return Err(Error::Bad(format!(
                    "mount point {} and backing directory {} share files, by a bind mount",
                    places.mount.display(),
                    places.backing.display()
                )));
            }
        }
        for other in others {
            places.check_against(other)?;
        }
        let lock = places.lock()?;
        Ok(Places {
            _lock: lock,
            ..places
        })
    }

    fn check_against(&self, other: &Places) -> Result<(), Error> {
        let relation = match (&self.backed, &other.backed) {
            _ if self.key == other.key => Some(Relation::Same),
            (Some(own), Some(its)) => own.relation(its),
            _ => None,
        };
        let backing = self.backing.display();
        let (its, at) = (other.backing.display(), other.mount.display());
        let description = match relation {
            None => return self.check_mount_points(other),
            Some(Relation::Same) if self.backing == other.backing => "is that".to_owned(),
            Some(Relation::Same) => format!("is {its}, that"),
            Some(Relation::Below) => format!("lies in {its}, that"),
            Some(Relation::Above) => format!("contains {its}, that"),
        };
        Err(Error::Bad(format!(
            "backing directory {backing} {description} of the disk at {at}; expected files of its own"
        )))
    }

    fn check_mount_points(&self, other: &Places) -> Result<(), Error> {
        let lies_in = |point: &Option<Location>, backing: &Option<Location>| {
            let relation = point.as_ref().zip(backing.as_ref());
            let relation = relation.and_then(|(point, backing)| point.relation(backing));
            matches!(relation, Some(Relation::Same | Relation::Below))
        };
        for (point, backing, overlap) in [
            (self, other, lies_in(&self.mounted, &other.backed)),
            (other, self, lies_in(&other.mounted, &self.backed)),
        ] {
            if overlap {
                return Err(Error::Bad(format!(
                    "mount point {} lies in the backing directory {} of the disk at {}",
                    point.mount.display(),
                    backing.backing.display(),
                    backing.mount.display()
                )));
            }
        }
        Ok(())
    }

    /// Lock of the backing directory against other servers; None if the directory is not readable.
    fn lock(&self) -> Result<Option<File>, Error> {
        let Ok(directory) = File::open(&self.backing) else {
            return Ok(None);
        };
        // SAFETY: a valid descriptor.
        if unsafe { libc::flock(directory.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(Some(directory));
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EWOULDBLOCK) => Err(Error::Bad(format!(
                "backing directory {} is locked: another disk server shows it, or a program has locked it \
                 (flock)",
                self.backing.display()
            ))),
            // the file system does not support locks
            _ => Ok(None),
        }
    }
}

fn check_directories(mount: &Path, backing: &Path) -> Result<(), Error> {
    for (what, path) in [("mount point", mount), ("backing directory", backing)] {
        if !path.is_absolute() {
            return Err(Error::Bad(format!(
                "{what} {} is not an absolute path",
                path.display()
            )));
        }
        let meta = fs::metadata(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTCONN) => Error::Bad(format!(
                "{what} {} is a mount whose server is gone; `penstock undo` removes it",
                path.display()
            )),
            _ => Error::host(format!("{what} {}", path.display()), error),
        })?;
        if !meta.is_dir() {
            return Err(Error::Bad(format!(
                "{what} {} is not a directory",
                path.display()
            )));
        }
    }
    Ok(())
}

fn check_apart(mount: &Path, backing: &Path) -> Result<(), Error> {
    if mount == backing || backing.starts_with(mount) {
        return Err(Error::Bad(format!(
            "backing directory {} lies in the mount point {}: the disk would hide it",
            backing.display(),
            mount.display()
        )));
    }
    if mount.starts_with(backing) {
        return Err(Error::Bad(format!(
            "mount point {} lies in the backing directory {}",
            mount.display(),
            backing.display()
        )));
    }
    Ok(())
}

fn check_empty(mount: &Path) -> Result<(), Error> {
    let above = mount.parent().unwrap_or(mount);
    let differs =
        fs::metadata(above).and_then(|above| Ok(above.dev() != fs::metadata(mount)?.dev()));
    if differs.unwrap_or(false) {
        return Err(Error::Bad(format!(
            "{} has something mounted on it already",
            mount.display()
        )));
    }
    // an unreadable directory shows nothing that the disk would hide
    if let Some(Ok(entry)) = fs::read_dir(mount).ok().and_then(|mut all| all.next()) {
        return Err(Error::Bad(format!(
            "mount point {} is not empty: the disk would hide {}",
            mount.display(),
            Path::new(std::ffi::OsStr::from_bytes(entry.file_name().as_bytes())).display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const MOUNTS: &[u8] = b"20 1 8:1 / / rw - ext4 /dev/sda rw\n\
        21 20 8:1 /data/sub /mnt/with\\040space rw - ext4 /dev/sda rw\n\
        22 20 0:30 / /data/sub/ram rw - tmpfs none rw\n";

    fn at(path: &str) -> Location {
        Location::find(Path::new(path), MOUNTS).unwrap()
    }

    #[test]
    fn bind_mounts_resolve_to_their_source() {
        assert_eq!(at("/mnt/with space"), at("/data/sub"));
        let (inside, above) = (at("/mnt/with space/x"), at("/data"));
        assert_eq!(inside.relation(&above), Some(Relation::Below));
        assert_eq!(above.relation(&inside), Some(Relation::Above));
        assert_eq!(at("/data/sub2").relation(&at("/data/sub")), None);
        assert_eq!(at("/data/sub/ram").relation(&at("/data")), None);
    }

    struct Ground(PathBuf);
    impl Ground {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("penstock-places-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            for directory in ["a/below", "b", "m", "n"] {
                fs::create_dir_all(path.join(directory)).unwrap();
            }
            Ground(path)
        }
        fn claim(&self, mount: &str, backing: &str, others: &[&Places]) -> Result<Places, String> {
            let (mount, backing) = (self.0.join(mount), self.0.join(backing));
            Places::claim(&mount, &backing, others.iter().copied()).map_err(|e| e.to_string())
        }
    }
    impl Drop for Ground {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_backing_directory_serves_one_disk() {
        let ground = Ground::new("shared");
        symlink(ground.0.join("a"), ground.0.join("link")).unwrap();
        let first = ground.claim("m", "a", &[]).unwrap();
        for (backing, message) in [
            ("a", "is that of the disk at"),
            ("link", "is that of the disk at"),
            ("a/below", "lies in"),
            (".", "lies in the backing directory"),
        ] {
            let refused = ground.claim("n", backing, &[&first]).unwrap_err();
            assert!(refused.contains(message), "{backing}: {refused}");
        }
        assert!(ground.claim("n", "b", &[&first]).is_ok());
        // another server, which does not know the first claim
        let refused = ground.claim("n", "link", &[]).unwrap_err();
        assert!(refused.contains("is locked"), "{refused}");
        drop(first);
        let below = ground.claim("m", "a/below", &[]).unwrap();
        let refused = ground.claim("n", "a", &[&below]).unwrap_err();
        assert!(refused.contains("contains"), "{refused}");
    }

    #[test]
    fn mount_points_must_be_empty() {
        let ground = Ground::new("empty");
        fs::write(ground.0.join("m/.precious"), b"x").unwrap();
        let refused = ground.claim("m", "a", &[]).unwrap_err();
        assert!(refused.contains("not empty"), "{refused}");
        assert!(refused.contains(".precious"), "{refused}");
        let first = ground.claim("n", "b", &[]).unwrap();
        let refused = ground.claim("a/below", "m", &[&first]).err();
        assert_eq!(refused, None);
        let refused = ground.claim("a/below", "a", &[&first]).unwrap_err();
        assert!(
            refused.contains("lies in the backing directory"),
            "{refused}"
        );
    }
}
