//! Record of unflushed data, which a power cut discards.
//!
//! The backing directory has the newest data. This module stores what a power cut restores: for each file
//! changed since its last flush, its size at that flush and the old content of 4 KiB blocks overwritten or
//! truncated since; and the names created, renamed and removed since the last flush of any file. This models a
//! journalling file system with delayed allocation: a flush makes the bytes of one file durable and, through
//! the journal, all names so far.
//!
//! The amount of old content is limited, like the write cache of a device. Beyond the limit, the oldest blocks
//! become durable.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use penstock_station::Draws;
use serde::{Deserialize, Serialize};

use crate::backing::{check, pread, pwrite};
use crate::faults::{BLOCK_BYTES, SECTOR_BYTES};
pub use crate::handle::Key;
use crate::handle::{c_name, stat_at};
use crate::removed::{Removed, Restored};

/// Default limit of old content, in bytes.
pub const LIMIT_BYTES: u64 = 256 << 20;
/// Limit of files and of names (each may need a descriptor).
const MOST: usize = 4096;

/// State of a file after a power cut.
#[derive(Debug)]
struct Before {
    file: File,
    base: u64,
    size: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

/// A change of names, with paths relative to the root. Undoing changes in reverse order keeps each path valid.
#[derive(Debug)]
pub enum Name {
    /// A file, link or (`directory`) a directory was created.
    Made {
        /// Its path.
        path: OsString,
        /// True for a directory.
        directory: bool,
    },
    /// A file, link or directory was removed.
    Removed {
        /// Its path.
        path: OsString,
        /// The removed file, link or directory.
        held: Removed,
    },
    /// A file, link or directory was renamed.
    Renamed {
        /// Old path.
        from: OsString,
        /// New path.
        to: OsString,
        /// File, link or directory that had the new path.
        replaced: Option<Removed>,
    },
    /// Two names were exchanged.
    Exchanged {
        /// First path.
        one: OsString,
        /// Second path.
        other: OsString,
    },
}

/// Fate of unflushed data in a power cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CutMode {
    /// All unflushed data is lost.
    #[default]
    Lost,
    /// A random part survives: some blocks, some leading sectors of blocks, and the first of the name changes.
    Torn,
}

/// Losses of a power cut.
#[derive(Debug, Default, Serialize)]
pub struct Cut {
    /// Number of files whose content or size was restored.
    pub files: u64,
    /// Bytes of old content restored.
    pub restored_bytes: u64,
    /// Bytes removed from the ends of files.
    pub shortened_bytes: u64,
    /// Number of name changes that were undone.
    pub names: u64,
    /// Bytes that became durable without a flush, because the limit of old content was reached.
    pub drained_bytes: u64,
    /// Failed restorations and their reasons.
    pub failed: Vec<String>,
}

/// Record of unflushed data of one disk.
#[derive(Debug)]
pub struct Unsynced {
    limit_bytes: u64,
    stored_bytes: u64,
    drained_bytes: u64,
    files: HashMap<Key, Before>,
    order: VecDeque<(Key, u64)>,
    names: VecDeque<Name>,
}

impl Unsynced {
    /// Empty record with a limit of `limit_bytes` of old content.
    pub fn new(limit_bytes: u64) -> Self {
        Unsynced {
            limit_bytes,
            stored_bytes: 0,
            drained_bytes: 0,
            files: HashMap::new(),
            order: VecDeque::new(),
            names: VecDeque::new(),
        }
    }

    /// Bytes of old content stored, and bytes dropped at the limit.
    pub fn stored_and_dropped_bytes(&self) -> (u64, u64) {
        (self.stored_bytes, self.drained_bytes)
    }

    /// Record the old content before the file behind `fd` is written or gets a hole from `offset` on.
    pub fn before_write(
        &mut self,
        fd: RawFd,
        key: Key,
        base: u64,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        self.remember(fd, key, base)?;
        let Some(before) = self.files.get_mut(&key) else {
            return Ok(());
        };
        let end = offset.saturating_add(length).min(before.size);
        for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            if before.blocks.contains_key(&block) {
                continue;
            }
            let start = block * BLOCK_BYTES;
            let mut old = Vec::new();
            let old_bytes = BLOCK_BYTES.min(before.size - start) as usize;
            pread(before.file.as_raw_fd(), &mut old, old_bytes, start)?;
            self.stored_bytes += old.len() as u64;
            before.blocks.insert(block, old);
            self.order.push_back((key, block));
        }
        self.drain();
        Ok(())
    }

    /// Record the old content before the file behind `fd` is resized to `size`.
    pub fn before_resize(&mut self, fd: RawFd, key: Key, base: u64, size: u64) -> io::Result<()> {
        self.before_write(fd, key, base, size, u64::MAX - size)
    }

    fn remember(&mut self, fd: RawFd, key: Key, base: u64) -> io::Result<()> {
        if self.files.contains_key(&key) {
            return Ok(());
        }
        if self.files.len() >= MOST {
            // Treat the oldest file as written to the medium.
            if let Some(&oldest) = self.files.keys().next() {
                self.forget(oldest);
            }
        }
        // Open another descriptor: the file may be closed, renamed or removed before the cut.
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{fd}"))?;
        let size = stat_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?.st_size as u64;
        let before = Before {
            file,
            base,
            size,
            blocks: BTreeMap::new(),
        };
        self.files.insert(key, before);
        Ok(())
    }

    fn forget(&mut self, key: Key) {
        if let Some(before) = self.files.remove(&key) {
            let dropped_bytes: usize = before.blocks.values().map(Vec::len).sum();
            self.stored_bytes -= dropped_bytes as u64;
        }
    }

    fn drain(&mut self) {
        while self.stored_bytes > self.limit_bytes {
            let Some((key, block)) = self.order.pop_front() else {
                return;
            };
            let old = self
                .files
                .get_mut(&key)
                .and_then(|before| before.blocks.remove(&block));
            let bytes = old.map_or(0, |old| old.len() as u64);
            self.stored_bytes -= bytes;
            self.drained_bytes += bytes;
        }
        // Drop entries of files flushed since.
        if self.order.len() as u64 > 1024 + 4 * (self.stored_bytes / BLOCK_BYTES) {
            let files = &self.files;
            self.order.retain(|(key, block)| {
                files
                    .get(key)
                    .is_some_and(|before| before.blocks.contains_key(block))
            });
        }
    }

    /// Record a change of names.
    pub fn named(&mut self, change: Name) {
        if self.names.len() >= MOST {
            self.names.pop_front();
        }
        self.names.push_back(change);
    }

    /// Record a flush of a file, or of a directory (None).
    pub fn synced(&mut self, key: Option<Key>) {
        if let Some(key) = key {
            self.forget(key);
        }
        self.names.clear();
    }

    /// Cut the power: restore the last flushed state. `root` is the backing directory.
    pub fn lose(&mut self, root: RawFd, mode: CutMode, seed: u64) -> Cut {
        let mut cut = Cut {
            drained_bytes: self.drained_bytes,
            ..Cut::default()
        };
        for (_, before) in self.files.drain() {
            if let Err(error) = before.put_back(mode, seed, &mut cut) {
                cut.failed.push(format!("content of a file: {error}"));
            }
        }
        let retained = match mode {
            CutMode::Lost => 0,
            CutMode::Torn => {
                let drawn = Draws::keyed(seed, 3, 0, 0).uniform();
                (drawn * (self.names.len() + 1) as f64) as usize
            }
        };
        let mut restored = Restored::new();
        for name in self.names.drain(..).skip(retained).rev() {
            match name.take_back(root, &mut restored) {
                Ok(()) => cut.names += 1,
                Err(error) => cut.failed.push(format!("{name:?}: {error}")),
            }
        }
        *self = Unsynced::new(self.limit_bytes);
        cut
    }
}

impl Before {
    fn put_back(&self, mode: CutMode, seed: u64, cut: &mut Cut) -> io::Result<()> {
        let fd = self.file.as_raw_fd();
        let now = stat_at(fd, c"", libc::AT_EMPTY_PATH)?.st_size as u64;
        let mut draws = Draws::keyed(seed, 4, self.base, 0);
        let size = match mode {
            CutMode::Torn if draws.uniform() < 0.5 => now,
            _ => self.size,
        };
        let mut touched = size != now;
        if touched {
            // SAFETY: a valid descriptor.
            check(unsafe { libc::ftruncate(fd, size as i64) })?;
            cut.shortened_bytes += now.saturating_sub(size);
        }
        for (&block, old) in &self.blocks {
            let keep = stored_sectors(mode, seed, self.base, block) * SECTOR_BYTES;
            let start = block * BLOCK_BYTES + keep as u64;
            let Some(rest) = old.get(keep..).filter(|rest| !rest.is_empty()) else {
                continue;
            };
            let rest = &rest[..rest.len().min(size.saturating_sub(start) as usize)];
            pwrite(fd, rest, start)?;
            cut.restored_bytes += rest.len() as u64;
            touched = true;
        }
        if size > self.size {
            self.tear_tail(size, seed)?;
        }
        cut.files += u64::from(touched);
        Ok(())
    }

    /// Zero the blocks beyond the old end that were not stored.
    fn tear_tail(&self, size: u64, seed: u64) -> io::Result<()> {
        let zeros = [0; BLOCK_BYTES as usize];
        for block in self.size.div_ceil(BLOCK_BYTES)..size.div_ceil(BLOCK_BYTES) {
            let keep = stored_sectors(CutMode::Torn, seed, self.base, block) * SECTOR_BYTES;
            let start = block * BLOCK_BYTES + keep as u64;
            let end = ((block + 1) * BLOCK_BYTES).min(size);
            if start < end {
                pwrite(
                    self.file.as_raw_fd(),
                    &zeros[..(end - start) as usize],
                    start,
                )?;
            }
        }
        Ok(())
    }
}

/// Number of leading sectors of a block that were stored: none, all, or some.
fn stored_sectors(mode: CutMode, seed: u64, base: u64, block: u64) -> usize {
    let sectors = BLOCK_BYTES as usize / SECTOR_BYTES;
    match mode {
        CutMode::Lost => 0,
        CutMode::Torn => {
            let mut draws = Draws::keyed(seed, 5, base, block);
            match (3.0 * draws.uniform()) as u8 {
                0 => 0,
                1 => sectors,
                _ => 1 + (draws.uniform() * (sectors - 1) as f64) as usize,
            }
        }
    }
}

impl Name {
    /// Undo the change; `restored` are the files made anew so far.
    fn take_back(&self, root: RawFd, restored: &mut Restored) -> io::Result<()> {
        let rename = |from: &OsStr, to: &OsStr, flags: u32| {
            let (from, to) = (c_name(from)?, c_name(to)?);
            // SAFETY: a valid descriptor, terminated names.
            check(unsafe { libc::renameat2(root, from.as_ptr(), root, to.as_ptr(), flags) })
        };
        match self {
            Name::Made { path, directory } => {
                let flags = if *directory { libc::AT_REMOVEDIR } else { 0 };
                let path = c_name(path)?;
                // SAFETY: as above.
                check(unsafe { libc::unlinkat(root, path.as_ptr(), flags) })
            }
            Name::Removed {
                path,
                held: removed,
            } => removed.put_back(root, &c_name(path)?, restored),
            Name::Renamed { from, to, replaced } => {
                rename(to, from, 0)?;
                replaced.as_ref().map_or(Ok(()), |removed| {
                    removed.put_back(root, &c_name(to)?, restored)
                })
            }
            Name::Exchanged { one, other } => rename(one, other, libc::RENAME_EXCHANGE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};

    struct Place(PathBuf);
    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Place(path)
        }
    }
    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn open(path: &Path) -> (File, Key) {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        let meta = file.metadata().unwrap();
        let key = (meta.dev(), meta.ino());
        (file, key)
    }

    fn write(unsynced: &mut Unsynced, file: &File, key: Key, data: &[u8], offset: u64) {
        unsynced
            .before_write(file.as_raw_fd(), key, 1 << 40, offset, data.len() as u64)
            .unwrap();
        pwrite(file.as_raw_fd(), data, offset).unwrap();
    }

    fn root(place: &Place) -> File {
        File::open(&place.0).unwrap()
    }

    #[test]
    fn only_flushed_data_survives() {
        let place = Place::new("flushed");
        let path = place.0.join("f");
        fs::write(&path, [b'a'; 10_000]).unwrap();
        let (file, key) = open(&path);
        let mut unsynced = Unsynced::new(LIMIT_BYTES);
        write(&mut unsynced, &file, key, &[b'b'; 5000], 3000);
        unsynced.synced(Some(key));
        let durable = fs::read(&path).unwrap();
        write(&mut unsynced, &file, key, &[b'c'; 9000], 4000);
        write(&mut unsynced, &file, key, &[b'd'; 10], 4100);
        unsynced
            .before_resize(file.as_raw_fd(), key, 1 << 40, 100)
            .unwrap();
        file.set_len(100).unwrap();
        write(&mut unsynced, &file, key, &[b'e'; 300], 20_000);
        let cut = unsynced.lose(root(&place).as_raw_fd(), CutMode::Lost, 0);
        assert_eq!(cut.failed, Vec::<String>::new());
        assert_eq!(fs::read(&path).unwrap(), durable);
        assert_eq!(cut.files, 1);
    }

    #[test]
    fn torn_cuts_mix_old_and_new_sectors() {
        let place = Place::new("torn");
        let path = place.0.join("f");
        fs::write(&path, vec![b'a'; 400 * 4096]).unwrap();
        let (file, key) = open(&path);
        let mut unsynced = Unsynced::new(LIMIT_BYTES);
        write(&mut unsynced, &file, key, &vec![b'b'; 400 * 4096], 0);
        unsynced.lose(root(&place).as_raw_fd(), CutMode::Torn, 7);
        let content = fs::read(&path).unwrap();
        let mut kinds = [0; 3];
        for block in content.chunks(4096) {
            let new = block.iter().take_while(|&&b| b == b'b').count();
            assert!(block[new..].iter().all(|&b| b == b'a'));
            assert_eq!(new % SECTOR_BYTES, 0);
            kinds[usize::from(new > 0) + usize::from(new == 4096)] += 1;
        }
        assert!(kinds.iter().all(|&n| (90..180).contains(&n)), "{kinds:?}");
    }

    #[test]
    fn name_changes_are_undone_in_reverse() {
        let place = Place::new("names");
        let at = |name: &str| place.0.join(name);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/old"), b"precious").unwrap();
        fs::write(at("gone"), b"so am I").unwrap();
        let root = root(&place);
        let mut unsynced = Unsynced::new(LIMIT_BYTES);
        let hold = |path: &str| {
            let path = std::ffi::CString::new(path).unwrap();
            Removed::hold(root.as_raw_fd(), &path).unwrap()
        };
        // create a file, rename it over the old one, rename its directory, remove another file
        fs::write(at("d/new"), b"fresh").unwrap();
        unsynced.named(Name::Made {
            path: "d/new".into(),
            directory: false,
        });
        let replaced = Some(hold("d/old"));
        fs::rename(at("d/new"), at("d/old")).unwrap();
        unsynced.named(Name::Renamed {
            from: "d/new".into(),
            to: "d/old".into(),
            replaced,
        });
        fs::rename(at("d"), at("e")).unwrap();
        unsynced.named(Name::Renamed {
            from: "d".into(),
            to: "e".into(),
            replaced: None,
        });
        let removed = hold("gone");
        fs::remove_file(at("gone")).unwrap();
        unsynced.named(Name::Removed {
            path: "gone".into(),
            held: removed,
        });
        let cut = unsynced.lose(root.as_raw_fd(), CutMode::Lost, 0);
        assert_eq!(cut.failed, Vec::<String>::new());
        assert_eq!(cut.names, 4);
        assert_eq!(fs::read(at("d/old")).unwrap(), b"precious");
        assert_eq!(fs::read(at("gone")).unwrap(), b"so am I");
        assert!(!at("e").exists() && !at("d/new").exists());
    }

    #[test]
    fn oldest_content_becomes_durable_beyond_the_limit() {
        let place = Place::new("limit");
        let path = place.0.join("f");
        fs::write(&path, vec![b'a'; 16 * 4096]).unwrap();
        let (file, key) = open(&path);
        let mut unsynced = Unsynced::new(4 * 4096);
        for block in 0..16 {
            write(&mut unsynced, &file, key, &[b'b'; 4096], block * 4096);
        }
        assert_eq!(unsynced.stored_and_dropped_bytes(), (4 * 4096, 12 * 4096));
        unsynced.lose(root(&place).as_raw_fd(), CutMode::Lost, 0);
        let content = fs::read(&path).unwrap();
        let split = content.iter().position(|&b| b == b'a').unwrap();
        assert_eq!(split, 12 * 4096);
        assert!(content[split..].iter().all(|&b| b == b'a'));
    }
}
