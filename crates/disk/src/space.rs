//! How much room a disk has: a size of its own, below that of the host's file system.
//!
//! Room is what the regular files below the backing directory have allocated on the host; names
//! and directories take none. A removed file that is still open keeps its room until it is closed.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::faults::BLOCK_BYTES;
use crate::handle::stat_at;

/// Room of a disk in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size of the disk.
    pub size_bytes: u64,
    /// What its files have allocated.
    pub used_bytes: u64,
}

/// Bytes allocated to a file.
pub fn allocated(stat: &libc::stat) -> u64 {
    stat.st_blocks.max(0) as u64 * 512
}

impl Space {
    /// A disk of that size over the files that are in `backing` already.
    pub fn measure(size_bytes: u64, backing: &Path) -> io::Result<Self> {
        let mut seen = HashSet::new();
        let mut used_bytes = 0;
        let mut left = vec![backing.to_owned()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let meta = entry.metadata()?;
                if meta.is_dir() {
                    left.push(entry.path());
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

    /// Bytes that still fit.
    pub fn free_bytes(&self) -> u64 {
        self.size_bytes.saturating_sub(self.used_bytes)
    }

    /// A file has allocated (or given back) room.
    pub fn settle(&mut self, before_bytes: u64, after_bytes: u64) {
        self.used_bytes = (self.used_bytes + after_bytes).saturating_sub(before_bytes);
    }
}

/// Bytes of new room that a write of `length` bytes at `offset` takes.
pub fn needed(fd: RawFd, offset: u64, length: u64) -> io::Result<u64> {
    let stat = stat_at(fd, c"", libc::AT_EMPTY_PATH)?;
    let first = offset / BLOCK_BYTES * BLOCK_BYTES;
    let end = (offset + length).next_multiple_of(BLOCK_BYTES);
    let size = (stat.st_size as u64).next_multiple_of(BLOCK_BYTES);
    let beyond = end.saturating_sub(first.max(size));
    if allocated(&stat) >= size {
        // No holes; preallocated space looks like one and is none.
        return Ok(beyond);
    }
    Ok(beyond + holes(fd, first, end.min(size)))
}

/// Bytes without room between `from` and `to`.
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
    fn only_what_is_new_needs_room() {
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
