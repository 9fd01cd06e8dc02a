//! Open directories: listed in the pieces that the kernel requests, regardless of their size.

use std::collections::VecDeque;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use fuser::FileType;

use crate::backing::{kind_of, last};
use crate::handle::stat_at;
use crate::inode::Inode;

/// Size of the pieces read from the backing directory.
const PIECE_BYTES: usize = 32 << 10;

/// One entry of a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    /// Offset of the next entry.
    pub(crate) next: u64,
    pub(crate) kind: FileType,
    pub(crate) name: OsString,
}

#[derive(Debug)]
struct Stream {
    directory: File,
    /// Offset of the first waiting entry.
    at: u64,
    waiting: VecDeque<Entry>,
}

/// A directory that a program has open. It has a descriptor from the first listing on.
#[derive(Debug, Default)]
pub(crate) struct OpenDirectory {
    stream: Mutex<Option<Stream>>,
}

impl OpenDirectory {
    /// Pass the entries from `offset` on to `add` until it returns that it is full.
    pub(crate) fn list(
        &self,
        inode: &Inode,
        offset: u64,
        mut add: impl FnMut(&Entry) -> bool,
    ) -> io::Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = match &mut *stream {
            Some(stream) => stream,
            none => none.insert(Stream::open(inode)?),
        };
        if offset != stream.at || offset == 0 {
            stream.seek(offset)?;
        }
        loop {
            if stream.waiting.is_empty() && !stream.fetch(inode)? {
                return Ok(());
            }
            while let Some(entry) = stream.waiting.front() {
                if add(entry) {
                    return Ok(());
                }
                stream.at = entry.next;
                stream.waiting.pop_front();
            }
        }
    }
}

impl Stream {
    fn open(inode: &Inode) -> io::Result<Self> {
        let path = inode.proc_path();
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: a terminated path; a non-negative result is a descriptor that we own.
        let directory = unsafe {
            let fd = libc::open(path.as_ptr(), flags);
            if fd < 0 {
                return Err(last());
            }
            File::from_raw_fd(fd)
        };
        Ok(Stream {
            directory,
            at: 0,
            waiting: VecDeque::new(),
        })
    }

    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.waiting.clear();
        // SAFETY: a valid descriptor.
        if unsafe { libc::lseek(self.directory.as_raw_fd(), offset as i64, libc::SEEK_SET) } < 0 {
            return Err(last());
        }
        self.at = offset;
        Ok(())
    }

    /// Read the next piece. Return false at the end.
    fn fetch(&mut self, inode: &Inode) -> io::Result<bool> {
        let mut piece = [0u8; PIECE_BYTES];
        let fd = self.directory.as_raw_fd();
        // SAFETY: a valid descriptor and a buffer of that size.
        let filled = unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                fd,
                piece.as_mut_ptr(),
                piece.len() as libc::c_uint,
            )
        };
        let filled = usize::try_from(filled).map_err(|_| last())?;
        let mut rest = &piece[..filled];
        while let Some((entry, after)) = entry_of(rest, fd, inode.id.number) {
            self.waiting.extend(entry);
            rest = after;
        }
        Ok(filled > 0)
    }
}

/// First entry of a piece (None if its name is invalid), and the rest of the piece. A record is d_ino (8
/// bytes), d_off (8), d_reclen (2), d_type (1), d_name with a null byte: getdents(2).
fn entry_of(piece: &[u8], directory: RawFd, number: u64) -> Option<(Option<Entry>, &[u8])> {
    const NAME_AT: usize = 19;
    let wide = |at: usize| Some(u64::from_ne_bytes(piece.get(at..at + 8)?.try_into().ok()?));
    let (own, next) = (wide(0)?, wide(8)?);
    let length = usize::from(u16::from_ne_bytes(piece.get(16..18)?.try_into().ok()?));
    let (record, after) = (piece.get(..length)?, piece.get(length..)?);
    let (kind, name) = (record.get(18)?, record.get(NAME_AT..)?);
    let entry = CStr::from_bytes_until_nul(name).ok().map(|name| Entry {
        // the parent of the root is outside the mount
        number: if matches!(name.to_bytes(), b"." | b"..") {
            number
        } else {
            own
        },
        next,
        kind: match *kind {
            libc::DT_UNKNOWN => {
                stat_at(directory, name, 0).map_or(FileType::RegularFile, |s| kind_of(s.st_mode))
            }
            // inverse of IFTODT(3)
            kind => kind_of(u32::from(kind) << 12),
        },
        name: OsStr::from_bytes(name.to_bytes()).to_owned(),
    });
    Some((entry, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::c_name;
    use crate::inode::Inodes;
    use std::collections::HashSet;
    use std::fs;

    #[test]
    fn partial_listings_add_up_to_the_directory() {
        let place = std::env::temp_dir().join(format!("penstock-listed-{}", std::process::id()));
        fs::create_dir_all(place.join("d")).unwrap();
        for number in 0..3000 {
            fs::write(place.join(format!("file-{number}")), b"").unwrap();
        }
        let inodes = Inodes::new(&c_name(place.as_os_str()).unwrap()).unwrap();
        let root = inodes.get(crate::known::ROOT).unwrap();
        let open = OpenDirectory::default();
        let (mut names, mut offset) = (HashSet::new(), 0);
        loop {
            let mut remaining = 37;
            let mut next = None;
            open.list(&root, offset, |entry| {
                if remaining == 0 {
                    return true;
                }
                remaining -= 1;
                assert!(names.insert(entry.name.clone()), "{entry:?} twice");
                assert_eq!(entry.kind == FileType::Directory, entry.name.len() < 3);
                next = Some(entry.next);
                false
            })
            .unwrap();
            match next {
                Some(next) => offset = next,
                None => break,
            }
        }
        assert_eq!(names.len(), 3003);
        let mut first = None;
        open.list(&root, 0, |entry| first.replace(entry.next).is_some())
            .unwrap();
        assert!(first.is_some(), "read again from the beginning");
        fs::remove_dir_all(&place).unwrap();
    }
}
