//! Handler of the kernel's FUSE requests.
//!
//! All files are opened for direct I/O, because programs can have different versions of a file open, whose pages must
//! not be mixed. Files can be mapped if the kernel supports it with direct I/O (Linux 6.6).

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{lchown, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::attributes::{attributes, set_mode};
use crate::nodes::ROOT;
use crate::tree::{error, number_of, Tree};
use crate::xattr;

/// Lifetime of entries and attributes in the kernel's cache. Other clients of the store change files, too.
const TTL: Duration = Duration::from_secs(1);
const LARGEST_REQUEST_BYTES: u32 = 1 << 20;
/// Flag in the inode numbers of directory entries. It distinguishes them from inodes that were looked up.
const UNSEEN: u64 = 1 << 63;

/// Reply with the value of `$result` by `$ok`, or with its error.
macro_rules! send {
    ($reply:ident, $result:expr, $value:pat => $ok:expr) => {
        match $result {
            Ok($value) => $ok,
            Err(error) => $reply.error(Errno::from(error)),
        }
    };
}

fn moment(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::Now => SystemTime::now(),
        TimeOrNow::SpecificTime(time) => time,
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| error(libc::EINVAL))
}

fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| error(libc::EINVAL))
}

/// Refuse access control lists. They are not evaluated here, and in the map's mode they would change the group's
/// rights.
fn refuse_acl(name: &OsStr) -> io::Result<()> {
    if name.as_bytes().starts_with(b"system.") {
        return Err(error(libc::EOPNOTSUPP));
    }
    Ok(())
}

fn answer(size: u32, value: io::Result<Vec<u8>>, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::from(error(libc::ERANGE))),
        Ok(value) => reply.data(&value),
        Err(failure) => reply.error(failure.into()),
    }
}

/// Entries of a directory: name, kind, number.
pub(crate) type Listing = Vec<(OsString, FileType, u64)>;

/// FUSE server of a tree, which has the state of the mount.
pub(crate) struct Served(pub(crate) Arc<Tree>);

impl Served {
    fn attr_of(&self, number: u64) -> io::Result<FileAttr> {
        let (facts, size_bytes) = self.0.facts(number)?;
        Ok(attributes(number, &facts, size_bytes))
    }

    /// Attributes of an inode. For a removed file that is open, only its size is known.
    fn attr_with(&self, number: u64, handle: Option<FileHandle>) -> io::Result<FileAttr> {
        match self.attr_of(number) {
            Err(failure) if failure.raw_os_error() == Some(libc::ENOENT) => handle
                .ok_or(failure)
                .and_then(|handle| self.0.removed_attributes(handle.0)),
            attr => attr,
        }
    }

    /// Reply with a new entry, or with the error of its creation.
    fn send_entry(&self, created: io::Result<()>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let entry = created.and_then(|()| self.entry(parent, name));
        send!(reply, entry, attr => reply.entry(&TTL, &attr, Generation(0)));
    }

    fn entry(&self, parent: u64, name: &OsStr) -> io::Result<FileAttr> {
        let (node, facts) = self.0.lookup(parent, name)?;
        if !facts.is_file() {
            return Ok(attributes(node.number, &facts, facts.len()));
        }
        self.attr_of(node.number)
            .inspect_err(|_| self.0.nodes.forget(node.number, 1))
    }

    fn set_owner_and_mode(
        &self,
        number: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> io::Result<()> {
        self.0.between_commits(number, |path| {
            if uid.is_some() || gid.is_some() {
                lchown(path, uid, gid)?;
            }
            match mode {
                Some(mode) => set_mode(path, mode & 0o7777),
                None => Ok(()),
            }
        })
    }

    /// Clear the set-user-ID and set-group-ID bits, as each change of the content by an ordinary user does.
    fn clear_set_id(&self, number: u64) -> io::Result<()> {
        self.0.between_commits(number, |path| {
            let mode = fs::symlink_metadata(path)?.mode();
            let cleared = mode & 0o7777 & !(libc::S_ISUID | libc::S_ISGID);
            if cleared == mode & 0o7777 {
                return Ok(());
            }
            set_mode(path, cleared)
        })
    }

    fn write_at(&self, handle: u64, offset: u64, data: &[u8], flags: i32) -> io::Result<()> {
        let file = self.0.file(handle)?;
        let mut writing = file.node.writing();
        let version = self
            .0
            .change(&file.node, &mut writing, Some(&file), false)?;
        let offset = if flags & libc::O_APPEND != 0 {
            version.size_bytes().map_err(number_of)?
        } else {
            offset
        };
        version.write(offset, data).map_err(number_of)?;
        drop(writing);
        if flags & (libc::O_SYNC | libc::O_DSYNC) != 0 {
            return self.0.commit(&file.node, true);
        }
        Ok(())
    }

    fn read_at(&self, handle: u64, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let file = self.0.file(handle)?;
        if file.writes {
            let writing = file.node.writing();
            if let Some(version) = &writing.version {
                return version.read(offset, size).map_err(number_of);
            }
            if !file.is_current(writing.commits) {
                let load = |path: &Path| self.0.core.load_for(handle, path).map_err(number_of);
                file.set_map(self.0.at(file.node.number, load)?, writing.commits);
            }
        }
        file.read(&self.0.core, offset, size).map_err(number_of)
    }

    fn entries(&self, number: u64) -> io::Result<Arc<Listing>> {
        let mut entries = self.0.in_directory(number, |path| {
            let mut entries = Vec::new();
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let Ok(kind) = entry.file_type() else {
                    continue; // removed since the directory was read
                };
                let kind = FileType::from_std(kind).unwrap_or(FileType::RegularFile);
                entries.push((
                    entry.file_name(),
                    kind,
                    std::os::unix::fs::DirEntryExt::ino(&entry),
                ));
            }
            Ok(entries)
        })?;
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        let dots = [".", ".."].map(|name| (name.into(), FileType::Directory, ROOT));
        Ok(Arc::new(dots.into_iter().chain(entries).collect()))
    }

    /// List a directory as it was when it was opened or rewound. So removals in between do not shift other entries.
    fn list(
        &self,
        number: u64,
        handle: u64,
        offset: u64,
        reply: &mut ReplyDirectory,
    ) -> io::Result<()> {
        let listed = self.0.listings().get(&handle).cloned().flatten();
        let all = match listed.filter(|_| offset > 0) {
            Some(all) => all,
            None => {
                let all = self.entries(number)?;
                self.0.listings().insert(handle, Some(all.clone()));
                all
            }
        };
        for (at, (name, kind, ino)) in all.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(ino | UNSEEN), at as u64 + 1, *kind, name) {
                break;
            }
        }
        Ok(())
    }

    fn seek(&self, inode: u64, offset: i64, whence: i32) -> io::Result<i64> {
        let size = self.attr_of(inode)?.size as i64;
        if offset < 0 || offset >= size {
            return Err(error(libc::ENXIO));
        }
        match whence {
            libc::SEEK_DATA => Ok(offset),
            libc::SEEK_HOLE => Ok(size), // there are no holes
            _ => Err(error(libc::EINVAL)),
        }
    }
}

impl Filesystem for Served {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            // older kernels lack some capabilities
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(LARGEST_REQUEST_BYTES);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.send_entry(Ok(()), parent.0, name, reply);
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        self.0.nodes.forget(inode.0, lookups);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        send!(reply, self.attr_with(inode.0, handle), attr => reply.attr(&TTL, &attr));
    }

    fn setattr(
        &self,
        _request: &Request,
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
        let change = || {
            if let Some(size) = size {
                self.0.set_size(inode.0, handle.map(|it| it.0), size)?;
            }
            if mode.is_some() || uid.is_some() || gid.is_some() {
                self.set_owner_and_mode(inode.0, mode, uid, gid)?;
            }
            if atime.is_some() || mtime.is_some() {
                self.0
                    .set_times(inode.0, [atime.map(moment), mtime.map(moment)])?;
            }
            self.attr_with(inode.0, handle)
        };
        send!(reply, change(), attr => reply.attr(&TTL, &attr));
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let target = self.0.at(inode.0, |path| fs::read_link(path));
        send!(reply, target, target => reply.data(target.as_os_str().as_bytes()));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        let created = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => {
                let owner = (request.uid(), request.gid());
                self.0.create(parent.0, name, mode, owner)
            }
            _ => Err(error(libc::EPERM)),
        };
        self.send_entry(created, parent.0, name, reply);
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
        let owner = (request.uid(), request.gid());
        let created = self.0.make_directory(parent.0, name, mode, owner);
        self.send_entry(created, parent.0, name, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        send!(reply, self.0.remove(parent.0, name, false), () => reply.ok());
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        send!(reply, self.0.remove(parent.0, name, true), () => reply.ok());
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let owner = (request.uid(), request.gid());
        let created = self.0.link(parent.0, name, target, owner);
        self.send_entry(created, parent.0, name, reply);
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
        let no_replace = flags == RenameFlags::RENAME_NOREPLACE;
        let renamed = if flags.is_empty() || no_replace {
            let (from, to) = ((parent.0, name), (new_parent.0, new_name));
            self.0.rename(from, to, !no_replace)
        } else {
            Err(error(libc::EINVAL))
        };
        send!(reply, renamed, () => reply.ok());
    }

    fn link(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        // after the next commit, the two names would refer to different versions
        reply.error(Errno::from(error(libc::EPERM)));
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        send!(reply, self.0.open(inode.0, flags.0), handle => {
            reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
        });
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
        let owner = (request.uid(), request.gid());
        let created = match self.0.create(parent.0, name, mode, owner) {
            Err(failure)
                if failure.raw_os_error() == Some(libc::EEXIST) && flags & libc::O_EXCL == 0 =>
            {
                // created by another client: the kernel repeats the lookup, and checks the permissions of the existing
                // file
                Err(error(libc::ESTALE))
            }
            result => result,
        };
        let opened = created.and_then(|()| {
            let attr = self.entry(parent.0, name)?;
            let opened = self.0.open(attr.ino.0, flags);
            let handle = opened.inspect_err(|_| self.0.nodes.forget(attr.ino.0, 1))?;
            Ok((attr, handle))
        });
        send!(reply, opened, (attr, handle) => {
            let direct = FopenFlags::FOPEN_DIRECT_IO;
            reply.created(&TTL, &attr, Generation(0), FileHandle(handle), direct);
        });
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let content = self.read_at(handle.0, offset, size as usize);
        send!(reply, content, content => reply.data(&content));
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // writes of a mapped file's pages have explicit offsets, even if the file is open for appending
        let flags = if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            0
        } else {
            flags.0
        };
        let mut written = self.write_at(handle.0, offset, data, flags);
        if written.is_ok() && write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            written = self.clear_set_id(inode.0);
        }
        send!(reply, written, () => reply.written(data.len() as u32));
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let flushed = self.0.file(handle.0).and_then(|file| {
            if file.writes {
                self.0.commit(&file.node, false)
            } else {
                Ok(())
            }
        });
        send!(reply, flushed, () => reply.ok());
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
        send!(reply, self.0.release(handle.0), () => reply.ok());
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self
            .0
            .file(handle.0)
            .and_then(|file| self.0.commit(&file.node, true));
        send!(reply, synced, () => reply.ok());
    }

    fn opendir(&self, _: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.0.handle();
        self.0.listings().insert(handle, None);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.listings().remove(&handle.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        send!(reply, self.list(inode.0, handle.0, offset, &mut reply), () => reply.ok());
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self.0.core.objects.sync().map_err(number_of);
        let synced = synced.and_then(|()| {
            let sync = |path: &Path| fs::File::open(path)?.sync_all();
            self.0.in_directory(inode.0, sync)
        });
        send!(reply, synced, () => reply.ok());
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let read = self.0.at(ROOT, |path| {
            let path = c_path(path)?;
            // SAFETY: zeros are a valid value; a terminated path.
            unsafe {
                let mut facts: libc::statvfs = std::mem::zeroed();
                if libc::statvfs(path.as_ptr(), &mut facts) != 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(facts)
            }
        });
        send!(reply, read, facts => reply.statfs(
            facts.f_blocks,
            facts.f_bfree,
            facts.f_bavail,
            facts.f_files,
            facts.f_ffree,
            facts.f_bsize as u32,
            facts.f_namemax as u32,
            facts.f_frsize as u32,
        ));
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
        let set = self.0.between_commits(inode.0, |path| {
            refuse_acl(name)?;
            xattr::set(&c_path(path)?, &c_name(name)?, value, flags)
        });
        send!(reply, set, () => reply.ok());
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self
            .0
            .at(inode.0, |path| xattr::get(&c_path(path)?, &c_name(name)?));
        answer(size, value, reply);
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.0.at(inode.0, |path| xattr::list(&c_path(path)?));
        answer(size, names, reply);
    }

    fn removexattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.0.between_commits(inode.0, |path| {
            refuse_acl(name)?;
            xattr::remove(&c_path(path)?, &c_name(name)?)
        });
        send!(reply, removed, () => reply.ok());
    }

    fn lseek(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        send!(reply, self.seek(inode.0, offset, whence), offset => reply.offset(offset));
    }
}

impl Tree {
    /// Attributes of a removed file that is open. Only its size is known.
    fn removed_attributes(&self, handle: u64) -> io::Result<FileAttr> {
        let file = self.file(handle)?;
        let written = {
            let writing = file.node.writing();
            let size = writing.version.as_ref().map(|version| version.size_bytes());
            size.transpose().map_err(number_of)?
        };
        let (facts, _) = self.facts(ROOT)?;
        let mut attr = attributes(
            file.node.number,
            &facts,
            written.unwrap_or_else(|| file.size_bytes()),
        );
        attr.kind = FileType::RegularFile;
        attr.perm = 0o600;
        attr.nlink = 0;
        Ok(attr)
    }
}
