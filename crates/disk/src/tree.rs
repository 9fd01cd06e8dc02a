//! One mount: its open files, its buffers, and the timing of its replies.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use fuser::{FileAttr, FileHandle, FopenFlags, Generation, Notifier};

use crate::awake;
use crate::backing::{attributes, opened_flags};
use crate::directory::OpenDirectory;
use crate::disk::Disk;
use crate::handle::{c_name, stat_at, Key};
use crate::inode::{Identity, Inodes};
use crate::open_file::{OpenFile, OpenFiles};
use crate::service::Service;
use crate::timer::Timers;

/// One mount.
pub struct Tree {
    pub(crate) disk: Arc<Disk>,
    pub(crate) service: Service,
    /// Notifier that tells the kernel to write back; set once the mount is up.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) files: RwLock<OpenFiles>,
    pub(crate) directories: RwLock<HashMap<u64, Arc<OpenDirectory>>>,
    pub(crate) next_handle: AtomicU64,
    pub(crate) readahead_bytes: u32,
    pub(crate) max_background: u16,
    /// True to request io_uring from the kernel.
    pub(crate) rings: bool,
}

impl Tree {
    /// Create the tree of `disk`.
    pub fn new(
        disk: Arc<Disk>,
        timers: Timers,
        readahead_bytes: u32,
        max_background: u16,
    ) -> io::Result<Self> {
        let backing = c_name(disk.backing.as_os_str())?;
        Ok(Tree {
            inodes: Arc::new(Inodes::new(&backing)?),
            service: Service {
                disk: disk.clone(),
                timers,
                buffers: Arc::default(),
            },
            notifier: Arc::default(),
            disk,
            files: RwLock::default(),
            directories: RwLock::default(),
            next_handle: AtomicU64::new(1),
            readahead_bytes,
            max_background,
            rings: false,
        })
    }

    pub(crate) fn handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn file(&self, handle: FileHandle) -> io::Result<Arc<OpenFile>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files
            .get(handle.0)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Store a file that was opened with `flags`. Return its handle and the flags for the kernel.
    pub(crate) fn keep(&self, file: File, id: Identity, flags: i32) -> (FileHandle, FopenFlags) {
        let open_flags = opened_flags(flags, self.disk.exact.load(Ordering::Relaxed));
        let direct = open_flags.contains(FopenFlags::FOPEN_DIRECT_IO);
        let handle = self.handle();
        let file_id = self.disk.file_names.opened(self.inodes.path(id.number));
        let open = Arc::new(OpenFile {
            file,
            id,
            inodes: self.inodes.clone(),
            file_id,
            cached_writer: !direct && flags & libc::O_ACCMODE != libc::O_RDONLY,
        });
        self.files
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(handle, open);
        (FileHandle(handle), open_flags)
    }

    pub(crate) fn entry(&self, parent: u64, name: &OsStr) -> io::Result<FileAttr> {
        let parent = self.inodes.get(parent)?;
        let (id, stat) = self.inodes.lookup(&parent, name)?;
        Ok(self.attributes(id.number, &stat))
    }

    /// Generation of a file, which distinguishes it from an earlier file with the same number.
    pub(crate) fn generation(&self, attr: &FileAttr) -> Generation {
        Generation(self.inodes.generation(attr.ino.0).into())
    }

    pub(crate) fn getattr_of(
        &self,
        number: u64,
        handle: Option<FileHandle>,
    ) -> io::Result<FileAttr> {
        let stat = match handle.and_then(|handle| self.file(handle).ok()) {
            Some(open) => stat_at(open.file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?,
            None => self.inodes.get(number)?.stat()?,
        };
        Ok(self.attributes(number, &stat))
    }

    /// Attributes of a file on the mount.
    pub(crate) fn attributes(&self, number: u64, stat: &libc::stat) -> FileAttr {
        let mut seen = attributes(number, stat);
        seen.uid = self.disk.owner.user(seen.uid);
        seen.gid = self.disk.owner.group(seen.gid);
        seen
    }

    /// True if the file may be longer in the page cache than in the backing file.
    pub(crate) fn has_cached_writer(&self, key: Key) -> bool {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.has_cached_writer(key)
    }

    /// True if the file is open.
    pub(crate) fn is_open(&self, key: Key) -> bool {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.is_open(key)
    }

    /// Service time of reads (0) or writes (1) of the calibration file, in nanoseconds; None outside a
    /// calibration.
    pub(crate) fn calibrating(&self, write: usize) -> Option<u64> {
        match self.disk.calibration_service_ns[write].load(Ordering::Relaxed) {
            0 => None,
            service_ns => Some(service_ns),
        }
    }

    pub(crate) fn calibration_answer(
        &self,
        write: usize,
        arrival_ns: u64,
        answer: impl FnOnce() + Send + 'static,
    ) {
        awake::stay();
        let due_ns = arrival_ns + self.calibrating(write).unwrap_or(0);
        let disk = self.disk.clone();
        let disk_number = disk.number;
        let answer = move |now_ns: u64, _| {
            let late = &disk.calibration_lateness_ns;
            late.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(now_ns.saturating_sub(due_ns));
            answer();
        };
        self.service
            .timers
            .answer_at(due_ns, (disk_number, u64::MAX), Box::new(answer));
    }
}
