//! File data: read, write, flush, resize.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread;

use fuser::{FileAttr, FileHandle, INodeNo, ReplyData, TimeOrNow};

use crate::backing::{check, clear_set_id, pwrite, timespec};
use crate::gate::{error, FAULTS, OFF, SIZED, VOLATILE};
use crate::inode::Identity;
use crate::open_file::{place, OpenFile, Reading};
use crate::space;
use crate::tree::Tree;

/// A change of a file's bytes.
#[derive(Clone, Copy)]
pub(crate) enum Bytes {
    /// Write, allocate or zero bytes from `offset` on.
    Fill { offset: u64, length: u64 },
    /// Make a hole from `offset` on.
    Clear { offset: u64, length: u64 },
    /// Set the size.
    Resize(u64),
}

impl Tree {
    /// Read with direct I/O from a file that may be longer in the page cache. First make the kernel write back
    /// the data from the offset of `reading` on, which extends the backing file. This needs a separate thread,
    /// because the calling threads serve the kernel's writes.
    pub(crate) fn read_when_written_back(
        &self,
        open: Arc<OpenFile>,
        reading: Reading,
        reply: ReplyData,
    ) {
        let (service, notifier) = (self.service.clone(), self.notifier.clone());
        thread::spawn(move || {
            if let Some(kernel) = notifier.get() {
                // A failed write-back is an error of the writer, not of the reader.
                let number = INodeNo(open.id.number);
                let _ = kernel.inval_inode(number, reading.offset as i64, 0);
            }
            service.read(&open, reading, reply);
        });
    }

    /// Write with the faults and within the size of the disk.
    pub(crate) fn write_at(
        &self,
        open: &OpenFile,
        data: &[u8],
        offset: u64,
        visit: u32,
    ) -> io::Result<()> {
        let fd = open.file.as_raw_fd();
        let up = self.disk.gate.up();
        if up == 0 {
            return pwrite(fd, data, offset);
        }
        let mut stored = Cow::Borrowed(data);
        if up & FAULTS != 0 {
            let path = open.path();
            let place = place(&path, open.id, offset, visit);
            stored = self
                .disk
                .gate
                .faults()
                .on_write(place, data)
                .map_err(error)?;
        }
        let change = Bytes::Fill {
            offset,
            length: stored.len() as u64,
        };
        self.change_bytes(fd, open.id, change, || pwrite(fd, &stored, offset))
    }

    /// Apply `change` to the bytes of a file, and account for its space and unflushed data.
    pub(crate) fn change_bytes(
        &self,
        fd: RawFd,
        file: Identity,
        bytes: Bytes,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let gate = &self.disk.gate;
        let up = gate.up();
        if up == 0 {
            return change();
        }
        // Hold the lock during the change, so that the recorded old content matches the data that a power cut
        // replaces.
        let mut unsynced = (up & VOLATILE != 0).then(|| gate.unsynced());
        let mut free_space = (up & SIZED != 0).then(|| gate.space());
        if gate.up() & OFF != 0 {
            return Err(error(libc::EIO));
        }
        if let Bytes::Fill { offset, length } = bytes {
            let full = up & FAULTS != 0 && gate.faults().full;
            if full || free_space.is_some() {
                let needed = space::needed(fd, offset, length)?;
                let free = match free_space.as_deref() {
                    _ if full => 0,
                    Some(Some(space)) => space.free_bytes(),
                    _ => u64::MAX,
                };
                if needed > free {
                    return Err(error(libc::ENOSPC));
                }
            }
        }
        if let Some(unsynced) = unsynced.as_deref_mut().and_then(Option::as_mut) {
            let (key, base) = (file.key, file.device_base);
            match bytes {
                Bytes::Fill { offset, length } | Bytes::Clear { offset, length } => {
                    unsynced.before_write(fd, key, base, offset, length)?;
                }
                Bytes::Resize(size) => unsynced.before_resize(fd, key, base, size)?,
            }
        }
        match free_space.as_deref_mut().and_then(Option::as_mut) {
            Some(space) => space.settled(fd, change),
            None => change(),
        }
    }

    /// Apply `change` to the extended attributes of a file, which may take a block.
    pub(crate) fn change_attributes(
        &self,
        fd: RawFd,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.disk.gate.admit_change(false)?;
        if self.disk.gate.up() & SIZED == 0 {
            return change();
        }
        match self.disk.gate.space().as_mut() {
            Some(space) => space.settled(fd, change),
            None => change(),
        }
    }

    /// Set attributes of a file. Its size can be changed by a `privileged` user without loss of setuid and setgid.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn change(
        &self,
        number: u64,
        privileged: bool,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        handle: Option<FileHandle>,
    ) -> io::Result<FileAttr> {
        self.disk.gate.admit_change(false)?;
        let inode = self.inodes.get(number)?;
        let proc_path = inode.proc_path();
        let open = handle.and_then(|handle| self.file(handle).ok());
        if let Some(size) = size {
            let length = i64::try_from(size).map_err(|_| error(libc::EFBIG))?;
            let fd = open.as_ref().map_or(inode.fd(), |o| o.file.as_raw_fd());
            self.disk.owner.disarm(fd)?;
            // SAFETY: a valid descriptor or a terminated path.
            self.change_bytes(fd, inode.id, Bytes::Resize(size), || unsafe {
                check(match &open {
                    Some(open) => libc::ftruncate(open.file.as_raw_fd(), length),
                    None => libc::truncate(proc_path.as_ptr(), length),
                })
            })?;
            if !privileged {
                clear_set_id(fd)?;
            }
        }
        let mode = match mode {
            Some(mode) => Some(self.disk.owner.mode(inode.stat()?.st_mode, mode)?),
            None => None,
        };
        // SAFETY: system calls on valid descriptors and terminated paths.
        unsafe {
            if let Some(mode) = mode {
                check(libc::chmod(proc_path.as_ptr(), mode))?;
            }
            if uid.is_some() || gid.is_some() {
                let keep = u32::MAX;
                let owner = &self.disk.owner;
                check(libc::fchownat(
                    inode.fd(),
                    c"".as_ptr(),
                    uid.map_or(keep, |uid| owner.user(uid)),
                    gid.map_or(keep, |gid| owner.group(gid)),
                    libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW,
                ))?;
            }
            if atime.is_some() || mtime.is_some() {
                let times = [timespec(atime), timespec(mtime)];
                check(libc::utimensat(
                    libc::AT_FDCWD,
                    proc_path.as_ptr(),
                    times.as_ptr(),
                    0,
                ))?;
            }
        }
        self.getattr_of(number, handle)
    }

    /// Allocate a range of a file, or make it a hole or zeros.
    pub(crate) fn allocate(
        &self,
        open: &OpenFile,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> io::Result<()> {
        self.disk.gate.admit_change(false)?;
        let fd = open.file.as_raw_fd();
        // FALLOC_FL_ZERO_RANGE allocates the range
        let bytes = if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
            Bytes::Clear { offset, length }
        } else {
            Bytes::Fill { offset, length }
        };
        // SAFETY: a valid descriptor.
        self.change_bytes(fd, open.id, bytes, || unsafe {
            check(libc::fallocate(fd, mode, offset as i64, length as i64))
        })
    }

    /// Total, free and available blocks of the disk: those of the host, or those of the disk's own size.
    pub(crate) fn block_counts(&self, host: &libc::statvfs) -> (u64, u64, u64) {
        let gate = &self.disk.gate;
        let (mut blocks, mut free, mut available) = (host.f_blocks, host.f_bfree, host.f_bavail);
        if let Some(space) = *gate.space() {
            let free_blocks = space.free_bytes() / host.f_frsize;
            blocks = space.size_bytes / host.f_frsize;
            free = free_blocks;
            available = free_blocks.min(available);
        }
        if gate.up() & FAULTS != 0 && gate.faults().full {
            (free, available) = (0, 0);
        }
        (blocks, free, available)
    }
}
