//! Pass-through file system: metadata without delay, data at the time that the station computes.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use penstock_station::Op;

use crate::backing::{
    answer_xattr, backing_flags, check, clear_set_id, existing_bytes, last, opened_flags, sized,
};
use crate::calibration;
use crate::directory::OpenDirectory;
use crate::handle::{c_name, component};
use crate::open_file::Reading;
use crate::timer::arrival_ns;
use crate::tree::Tree;

/// While the mount is up it is the only access to its files, so the kernel's cache stays valid.
const TTL: Duration = Duration::from_secs(3600);
const LARGEST_REQUEST_BYTES: u32 = 1 << 20;

/// Send the value of `$result` with `$reply.$ok`, or its error.
macro_rules! send {
    ($reply:ident, $result:expr, $value:pat => $ok:expr) => {
        match $result {
            Ok($value) => $ok,
            Err(error) => $reply.error(Errno::from(error)),
        }
    };
}

/// True if a request comes directly from a program and bypasses the page cache. Only then does the kernel state
/// the lock owner. It states none for requests that fill the page cache or write it back, even through the same
/// handle (of a mapping).
fn is_direct(owner: Option<LockOwner>) -> bool {
    owner.is_some()
}

fn done(reply: ReplyEmpty) -> impl FnOnce(io::Result<()>) {
    move |done| send!(reply, done, () => reply.ok())
}

impl Filesystem for Tree {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_WRITEBACK_CACHE,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            // Older kernels lack some capabilities. The mount works without them, but is slower.
            let _ = config.add_capabilities(flag);
        }
        if self.rings {
            let _ = config.add_capabilities(InitFlags::FUSE_OVER_IO_URING);
        }
        let _ = config.set_max_write(LARGEST_REQUEST_BYTES);
        if let Err(most) = config.set_max_readahead(self.readahead_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(self.max_background);
        let _ = config.set_congestion_threshold(self.max_background);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if calibration::is_name(parent.0, name) && self.calibrating(0).is_some() {
            reply.entry(&Duration::ZERO, &calibration::attributes(), Generation(0));
            return;
        }
        send!(reply, self.entry(parent.0, name), attr => reply.entry(&TTL, &attr, self.generation(&attr)));
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        self.inodes.forget(inode.0, lookups);
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        if inode.0 == calibration::INODE {
            reply.attr(&Duration::ZERO, &calibration::attributes());
            return;
        }
        send!(reply, self.getattr_of(inode.0, handle), attr => reply.attr(&TTL, &attr));
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if inode.0 == calibration::INODE {
            reply.attr(&Duration::ZERO, &calibration::attributes());
            return;
        }
        let privileged = request.uid() == 0;
        let changed = self.change(
            inode.0, privileged, mode, uid, gid, size, atime, mtime, handle,
        );
        send!(reply, changed, attr => reply.attr(&TTL, &attr));
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let read = self.inodes.get(inode.0).and_then(|inode| {
            let mut target = vec![0u8; libc::PATH_MAX as usize];
            // SAFETY: a valid descriptor and buffer.
            let length = unsafe {
                libc::readlinkat(
                    inode.fd(),
                    c"".as_ptr(),
                    target.as_mut_ptr().cast(),
                    target.len(),
                )
            };
            usize::try_from(length).map_err(|_| last()).map(|length| {
                target.truncate(length);
                target
            })
        });
        send!(reply, read, target => reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let created = self.disk.owner.mode(mode, mode).and_then(|mode| {
            // SAFETY: valid descriptor and name.
            self.make(request, parent, name, mode, |directory, name| unsafe {
                libc::mknodat(directory, name.as_ptr(), mode, libc::dev_t::from(device))
            })
        });
        send!(reply, created, attr => reply.entry(&TTL, &attr, self.generation(&attr)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        // SAFETY: valid descriptor and name.
        let created = self.make(request, parent, name, 0, |directory, name| unsafe {
            libc::mkdirat(directory, name.as_ptr(), mode)
        });
        send!(reply, created, attr => reply.entry(&TTL, &attr, self.generation(&attr)));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.remove(parent, name, 0);
        send!(reply, done, () => reply.ok());
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.remove(parent, name, libc::AT_REMOVEDIR);
        send!(reply, done, () => reply.ok());
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let created = c_name(target.as_os_str()).and_then(|target| {
            // SAFETY: valid descriptor and names.
            self.make(request, parent, name, 0, |directory, name| unsafe {
                libc::symlinkat(target.as_ptr(), directory, name.as_ptr())
            })
        });
        send!(reply, created, attr => reply.entry(&TTL, &attr, self.generation(&attr)));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.rename_to(parent, name, new_parent, new_name, flags);
        send!(reply, renamed, () => reply.ok());
    }

    fn link(
        &self,
        _request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let linked = self.link_to(inode, new_parent, new_name);
        send!(reply, linked, attr => reply.entry(&TTL, &attr, self.generation(&attr)));
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if inode.0 == calibration::INODE {
            reply.opened(FileHandle(0), opened_flags(flags.0, false));
            return;
        }
        let opened = self.inodes.get(inode.0).and_then(|inode| {
            if flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
                self.disk.gate.admit_change(false)?;
            }
            let path = inode.proc_path();
            // SAFETY: a terminated path; a non-negative result is a descriptor that we own.
            let file = unsafe {
                let mut fd = libc::open(path.as_ptr(), backing_flags(flags.0));
                if fd < 0 && matches!(last().raw_os_error(), Some(libc::EACCES | libc::EROFS)) {
                    // The server is not root and only one access mode is permitted: use that one.
                    fd = libc::open(path.as_ptr(), (flags.0 & libc::O_ACCMODE) | libc::O_CLOEXEC);
                }
                if fd < 0 {
                    return Err(last());
                }
                File::from_raw_fd(fd)
            };
            if flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
                self.disk.owner.disarm(file.as_raw_fd())?;
            }
            Ok(self.keep(file, inode.id, flags.0))
        });
        send!(reply, opened, (handle, fuse_flags) => reply.opened(handle, fuse_flags));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.inodes.get(parent.0).and_then(|directory| {
            self.disk.gate.admit_change(true)?;
            let c_name = component(name)?;
            let open_flags = backing_flags(flags) | libc::O_CREAT | libc::O_NOFOLLOW;
            let mode = self.disk.owner.mode(libc::S_IFREG, mode)?;
            // SAFETY: valid descriptor and name; the result is ours.
            let open = |flags| unsafe {
                let fd = libc::openat(directory.fd(), c_name.as_ptr(), flags, mode);
                if fd < 0 {
                    return Err(last());
                }
                Ok(File::from_raw_fd(fd))
            };
            let fresh = || {
                let file = open(open_flags | libc::O_EXCL)?;
                let itself = CString::default();
                self.own(request, directory.fd(), file.as_raw_fd(), &itself, mode)?;
                Ok(file)
            };
            let file = match self.naming(fresh, || self.creation(&directory, name)) {
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists
                        && flags & libc::O_EXCL == 0 =>
                {
                    let opened = open(open_flags)?;
                    self.disk.owner.disarm(opened.as_raw_fd())?;
                    opened
                }
                fresh => fresh?,
            };
            let (id, stat) = self
                .inodes
                .lookup_open(&directory, name, file.as_raw_fd())?;
            let attr = self.attributes(id.number, &stat);
            Ok((attr, self.keep(file, id, flags)))
        });
        send!(reply, created, (attr, (handle, fuse_flags)) => {
            reply.created(&TTL, &attr, self.generation(&attr), handle, fuse_flags);
        });
    }

    fn read(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let arrival_ns = arrival_ns();
        if inode.0 == calibration::INODE {
            self.calibration_answer(0, arrival_ns, move || reply.data(calibration::zeros(size)));
            return;
        }
        let open = match self.file(handle) {
            Ok(open) => open,
            Err(error) => return reply.error(error.into()),
        };
        if let Err(error) = self.disk.admit(Op::Read) {
            return reply.error(error.into());
        }
        let reading = Reading {
            offset,
            size,
            pid: request.pid(),
            arrival_ns,
        };
        if is_direct(lock_owner)
            && self.has_cached_writer(open.id.key)
            && existing_bytes(&open.file, offset, size) < size
        {
            self.read_when_written_back(open, reading, reply);
        } else {
            self.service.read(&open, reading, reply);
        }
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let arrival_ns = arrival_ns();
        let size = data.len() as u32;
        if inode.0 == calibration::INODE {
            self.calibration_answer(1, arrival_ns, move || reply.written(size));
            return;
        }
        let open = match self.file(handle) {
            Ok(open) => open,
            Err(error) => return reply.error(error.into()),
        };
        let pid = if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            0
        } else {
            request.pid()
        };
        if let Err(error) = self.disk.admit(Op::Write) {
            return reply.error(error.into());
        }
        let mut ticket = self
            .service
            .ticket(Op::Write, &open, offset, size, pid, arrival_ns);
        let mut written = self.write_at(&open, data, offset, ticket.visit());
        if written.is_ok() && write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            written = clear_set_id(open.file.as_raw_fd());
        }
        // After a write through its page cache the kernel flushes by itself; after other writes the device must
        // flush.
        let durable = written.is_ok() && flags.0 & libc::O_DSYNC != 0 && is_direct(lock_owner);
        if durable && self.disk.durable {
            written = open.file.sync_data();
        }
        ticket.fails(&written);
        let answer = move |written: io::Result<()>| match written {
            Ok(()) => reply.written(size),
            Err(error) => reply.error(error.into()),
        };
        if durable && written.is_ok() {
            self.service.flush_after(ticket, open, answer);
        } else {
            self.service.answer(ticket, move || answer(written));
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing needs no action. After ENOSYS the kernel sends no more of these requests.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let closed = self
            .files
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(handle.0);
        if let Some(open) = closed {
            self.disk.file_names.closed(open.file_id);
            self.closed(&open);
        }
        reply.ok();
    }

    fn fsync(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let arrival_ns = arrival_ns();
        if inode.0 == calibration::INODE {
            reply.ok();
            return;
        }
        let open = self.file(handle).ok();
        self.service
            .flush(open.as_deref(), request.pid(), arrival_ns, done(reply));
    }

    fn fsyncdir(
        &self,
        request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.service
            .flush(None, request.pid(), arrival_ns(), done(reply));
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.handle();
        let open = Arc::new(OpenDirectory::default());
        self.directories
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(handle, open);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let directories = self
            .directories
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(open) = directories.get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        drop(directories);
        let listed = self.inodes.get(inode.0).and_then(|inode| {
            open.list(&inode, offset, |entry| {
                let number = INodeNo(entry.number);
                reply.add(number, entry.next, entry.kind, &entry.name)
            })
        });
        send!(reply, listed, () => reply.ok());
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.directories
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, inode: INodeNo, reply: ReplyStatfs) {
        let stats = self.inodes.get(inode.0).and_then(|inode| {
            // SAFETY: a zeroed buffer is valid; the descriptor too.
            unsafe {
                let mut out: libc::statvfs = std::mem::zeroed();
                check(libc::fstatvfs(inode.fd(), &mut out))?;
                Ok(out)
            }
        });
        send!(reply, stats, s => {
            let (blocks, free, available) = self.block_counts(&s);
            reply.statfs(
                blocks,
                free,
                available,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            );
        });
    }

    fn setxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let done = self.inodes.get(inode.0).and_then(|inode| {
            let name = c_name(name)?;
            self.disk.owner.admit_attribute(&name)?;
            // SAFETY: terminated names, a valid slice.
            self.change_attributes(inode.fd(), || unsafe {
                check(libc::setxattr(
                    inode.proc_path().as_ptr(),
                    name.as_ptr(),
                    value.as_ptr().cast(),
                    value.len(),
                    flags,
                ))
            })
        });
        send!(reply, done, () => reply.ok());
    }

    fn getxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if inode.0 == calibration::INODE {
            return reply.error(Errno::ENODATA);
        }
        let got = self.inodes.get(inode.0).and_then(|inode| {
            let name = c_name(name)?;
            sized(size, |buffer, length| {
                // SAFETY: terminated names, a buffer of that size.
                unsafe { libc::getxattr(inode.proc_path().as_ptr(), name.as_ptr(), buffer, length) }
            })
        });
        answer_xattr(size, got, reply);
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let got = self.inodes.get(inode.0).and_then(|inode| {
            sized(size, |buffer, length| {
                // SAFETY: a terminated path, a buffer of that size.
                unsafe { libc::listxattr(inode.proc_path().as_ptr(), buffer.cast(), length) }
            })
        });
        answer_xattr(size, got, reply);
    }

    fn removexattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.inodes.get(inode.0).and_then(|inode| {
            let name = c_name(name)?;
            // SAFETY: terminated names.
            self.change_attributes(inode.fd(), || unsafe {
                check(libc::removexattr(inode.proc_path().as_ptr(), name.as_ptr()))
            })
        });
        send!(reply, done, () => reply.ok());
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self
            .file(handle)
            .and_then(|open| self.allocate(&open, offset, length, mode));
        send!(reply, done, () => reply.ok());
    }

    // `lseek` and `copy_file_range` are not implemented. After one ENOSYS the kernel does both by itself. Only
    // the kernel knows data that is not written back yet; the backing file still has holes there.
}
