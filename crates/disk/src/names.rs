//! Names: create, link, rename and remove files and directories.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use fuser::{FileAttr, INodeNo, RenameFlags, Request};

use crate::backing::check;
use crate::gate::{error, OFF, SIZED, VOLATILE};
use crate::handle::{component, stat_at};
use crate::inode::Inode;
use crate::removed::Removed;
use crate::space::allocated;
use crate::tree::Tree;
use crate::unsynced::Name;

impl Tree {
    /// Set the owner of a new file to the user of the request, and its group to that of a setgid directory. This
    /// would remove setuid and setgid of its `mode`.
    pub(crate) fn own(
        &self,
        request: &Request,
        parent: RawFd,
        fd: RawFd,
        name: &CString,
        mode: u32,
    ) -> io::Result<()> {
        let directory = stat_at(parent, c"", libc::AT_EMPTY_PATH)?;
        let inherited = directory.st_mode & libc::S_ISGID != 0;
        let owner = &self.disk.owner;
        let group = if inherited {
            directory.st_gid
        } else {
            owner.group(request.gid())
        };
        // SAFETY: plain fchownat on a valid descriptor and name.
        check(unsafe {
            libc::fchownat(
                fd,
                name.as_ptr(),
                owner.user(request.uid()),
                group,
                libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH,
            )
        })?;
        if mode & (libc::S_ISUID | libc::S_ISGID) == 0 {
            return Ok(());
        }
        // SAFETY (both): a valid descriptor and name.
        check(unsafe {
            if name.is_empty() {
                libc::fchmod(fd, mode & 0o7777)
            } else {
                libc::fchmodat(fd, name.as_ptr(), mode & 0o7777, 0)
            }
        })
    }

    pub(crate) fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        make: impl FnOnce(RawFd, &CString) -> i32,
    ) -> io::Result<FileAttr> {
        self.disk.gate.admit_change(true)?;
        let directory = self.inodes.get(parent.0)?;
        let c_name = component(name)?;
        self.naming(
            || {
                check(make(directory.fd(), &c_name))?;
                self.own(request, directory.fd(), directory.fd(), &c_name, mode)
            },
            || self.creation(&directory, name),
        )?;
        self.entry(parent.0, name)
    }

    /// Change that a power cut undoes for a new name.
    pub(crate) fn creation(&self, directory: &Inode, name: &OsStr) -> io::Result<Name> {
        let stat = stat_at(directory.fd(), &component(name)?, 0)?;
        Ok(Name::Made {
            path: self.inodes.path_below(directory, name),
            directory: stat.st_mode & libc::S_IFMT == libc::S_IFDIR,
        })
    }

    /// Apply `change` to names. Afterwards `record` returns the change that a power cut would undo.
    pub(crate) fn naming<T>(
        &self,
        change: impl FnOnce() -> io::Result<T>,
        record: impl FnOnce() -> io::Result<Name>,
    ) -> io::Result<T> {
        let gate = &self.disk.gate;
        if gate.up() & VOLATILE == 0 {
            return change();
        }
        let mut unsynced = gate.unsynced();
        if gate.up() & OFF != 0 {
            return Err(error(libc::EIO));
        }
        let done = change()?;
        if let Some(unsynced) = unsynced.as_mut() {
            unsynced.named(record()?);
        }
        Ok(done)
    }

    /// Store the file that is about to lose its name, if a power cut could restore it.
    fn hold(&self, directory: RawFd, name: &CString) -> io::Result<Option<Removed>> {
        if self.disk.gate.up() & VOLATILE == 0 {
            return Ok(None);
        }
        match Removed::hold(directory, name) {
            Ok(removed) => Ok(Some(removed)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Space that a file frees when it loses its last name and is not open.
    fn room_of(&self, directory: RawFd, name: &CString) -> u64 {
        if self.disk.gate.up() & SIZED == 0 {
            return 0;
        }
        match stat_at(directory, name, 0) {
            Ok(stat) if stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_nlink == 1 => {
                if self.is_open((stat.st_dev, stat.st_ino)) {
                    0
                } else {
                    allocated(&stat)
                }
            }
            _ => 0,
        }
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            if let Some(space) = self.disk.gate.space().as_mut() {
                space.settle(bytes, 0);
            }
        }
    }

    /// Account for the freed space when the last handle of a file without names is closed.
    pub(crate) fn closed(&self, open: &crate::open_file::OpenFile) {
        if self.disk.gate.up() & SIZED == 0 || self.is_open(open.id.key) {
            return;
        }
        if let Ok(stat) = stat_at(open.file.as_raw_fd(), c"", libc::AT_EMPTY_PATH) {
            if stat.st_nlink == 0 {
                self.give_back(allocated(&stat));
            }
        }
    }

    pub(crate) fn remove(&self, parent: INodeNo, name: &OsStr, flags: i32) -> io::Result<()> {
        self.disk.gate.admit_change(false)?;
        let changing = self.inodes.change();
        let directory = changing.get(parent.0)?;
        let c_name = component(name)?;
        let named = changing.named(&directory, name)?;
        let freed_bytes = self.room_of(directory.fd(), &c_name);
        let removed = self.hold(directory.fd(), &c_name)?;
        self.naming(
            // SAFETY: valid descriptor and name.
            || check(unsafe { libc::unlinkat(directory.fd(), c_name.as_ptr(), flags) }),
            || {
                Ok(Name::Removed {
                    path: self.inodes.path_below(&directory, name),
                    held: removed.ok_or_else(|| error(libc::ENOENT))?,
                })
            },
        )?;
        changing.removed(named);
        self.give_back(freed_bytes);
        Ok(())
    }

    pub(crate) fn link_to(
        &self,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
    ) -> io::Result<FileAttr> {
        self.disk.gate.admit_change(true)?;
        let inode = self.inodes.get(inode.0)?;
        let parent = self.inodes.get(new_parent.0)?;
        let name = component(new_name)?;
        let source = inode.proc_path();
        self.naming(
            // SAFETY: valid descriptors and names; following the link in /proc reaches the file.
            || {
                check(unsafe {
                    libc::linkat(
                        libc::AT_FDCWD,
                        source.as_ptr(),
                        parent.fd(),
                        name.as_ptr(),
                        libc::AT_SYMLINK_FOLLOW,
                    )
                })
            },
            || self.creation(&parent, new_name),
        )?;
        self.entry(new_parent.0, new_name)
    }

    pub(crate) fn rename_to(
        &self,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> io::Result<()> {
        self.disk.gate.admit_change(false)?;
        let changing = self.inodes.change();
        let from = changing.get(parent.0)?;
        let to = changing.get(new_parent.0)?;
        let (c_old, c_new) = (component(name)?, component(new_name)?);
        let old = self.inodes.path_below(&from, name);
        let new = self.inodes.path_below(&to, new_name);
        let moved = changing.named(&from, name)?;
        let target = changing.named(&to, new_name)?;
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        let (freed_bytes, replaced) = if exchange {
            (0, None)
        } else {
            (self.room_of(to.fd(), &c_new), self.hold(to.fd(), &c_new)?)
        };
        self.naming(
            // SAFETY: valid descriptors, terminated names.
            || {
                check(unsafe {
                    libc::renameat2(
                        from.fd(),
                        c_old.as_ptr(),
                        to.fd(),
                        c_new.as_ptr(),
                        flags.bits(),
                    )
                })
            },
            || {
                Ok(if exchange {
                    Name::Exchanged {
                        one: old.clone(),
                        other: new.clone(),
                    }
                } else {
                    Name::Renamed {
                        from: old.clone(),
                        to: new.clone(),
                        replaced,
                    }
                })
            },
        )?;
        self.give_back(freed_bytes);
        if exchange {
            changing.exchanged(&moved, &target);
        } else {
            changing.renamed(&moved, target);
        }
        Ok(())
    }
}
