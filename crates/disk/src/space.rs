//! Space of a disk with its own size, below that of the host's file system.
//!
//! Used space is the allocation of the regular files below the backing directory on the host. Names and
//! directories take none. A removed file that is still open uses its space until it is closed.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::faults::BLOCK_BYTES;
use crate::handle::stat_at;

/// Space of a disk in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size of the disk.
    pub size_bytes: u64,
    /// Space allocated to its files.
    pub used_bytes: u64,
}

/// Bytes allocated to a file.
pub fn allocated(stat: &libc::stat) -> u64 {
    stat.st_blocks.max(0) as u64 * 512
}

impl Space {
    /// Measure the space of a disk of that size with the files in `backing`.
    pub fn measure(size_bytes: u64, backing: &Path) -> io::Result<Self> {
        let mut seen = HashSet::new();
        let mut used_bytes = 0;
        let mut pending = vec![backing.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let meta = entry.metadata()?;
                if meta.is_dir() {
                    pending.push(entry.path());
                } else if meta.is_file()
                    && (meta.nlink() == 1 || seen.insert((meta.dev(), meta.ino())))
                {
                    used_bytes += meta.blocks() * 512;
                }
            }
        }
        Ok(Space {
            size_bytes,
            used_bytes,
        })
    }

    /// Free space in bytes.
    pub fn free_bytes(&self) -> u64 {
        self.size_bytes.saturating_sub(self.used_bytes)
    }

    /// Apply `change` to the file behind `fd`, and account for its allocation.
    pub fn settled(
        &mut self,
        fd: RawFd,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let used = || {
            let stat = stat_at(fd, c"", libc::AT_EMPTY_PATH)?;
            let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
            Ok::<_, io::Error>(if regular { allocated(&stat) } else { 0 })
        };
        let before = used()?;
        let changed = change();
        self.settle(before, used()?);
        changed
    }

    /// Account for a file whose allocation has changed.
    pub fn settle(&mut self, before_bytes: u64, after_bytes: u64) {
        self.used_bytes = (self.used_bytes + after_bytes).saturating_sub(before_bytes);
    }
}

/// Additional space that a write of `length` bytes at `offset` needs.
pub fn needed(fd: RawFd, offset: u64, length: u64) -> io::Result<u64> {
    let stat = stat_at(fd, c"", libc::AT_EMPTY_PATH)?;
    let first = offset / BLOCK_BYTES * BLOCK_BYTES;
    let end = (offset + length).next_multiple_of(BLOCK_BYTES);
    let size = (stat.st_size as u64).next_multiple_of(BLOCK_BYTES);
    let own = allocated(&stat) / BLOCK_BYTES * BLOCK_BYTES;
    if own >= size {
        // The file has no holes. Preallocated space looks like a hole, but is allocated, also beyond the end.
        return Ok(end.saturating_sub(first.max(own)));
    }
    let beyond = end.saturating_sub(first.max(size));
    Ok(beyond + holes(fd, first, end.min(size)))
}

/// Unallocated bytes between `from` and `to`.
fn holes(fd: RawFd, from: u64, to: u64) -> u64 {
    // SAFETY (both): a valid descriptor, whose position nothing else uses.
    let seek = |at: u64, whence| unsafe { libc::lseek(fd, at as i64, whence) };
    let (mut at, mut found) = (from, 0);
    while at < to {
        let data = match seek(at, libc::SEEK_DATA) {
            data if data < 0 => to,
            data => (data as u64).min(to),
        };
        found += data - at;
        at = match seek(data, libc::SEEK_HOLE) {
            hole if hole < 0 => to,
            hole => (hole as u64).max(data + 1).min(to),
        };
        if data >= to {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn only_new_blocks_need_space() {
        let path = std::env::temp_dir().join(format!("penstock-space-{}", std::process::id()));
        let file = fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        let fd = file.as_raw_fd();
        file.write_all_at(&[1; 8192], 0).unwrap();
        file.set_len(65_536).unwrap();
        file.sync_all().unwrap();
        assert_eq!(needed(fd, 0, 8192).unwrap(), 0);
        assert_eq!(needed(fd, 4096, 8192).unwrap(), 4096);
        assert_eq!(needed(fd, 65_536, 1).unwrap(), 4096);
        assert_eq!(needed(fd, 0, 131_072).unwrap(), 131_072 - 8192);
        let place = path.with_extension("d");
        fs::create_dir_all(&place).unwrap();
        fs::rename(&path, place.join("f")).unwrap();
        fs::hard_link(place.join("f"), place.join("g")).unwrap();
        assert_eq!(Space::measure(1 << 30, &place).unwrap().used_bytes, 8192);
        fs::remove_dir_all(&place).unwrap();
    }
}
