//! A BPF array map in this process's memory; writes by the programs are visible without a system call.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use crate::ProbeError;

/// `len` elements of `T`, shared with the kernel.
pub struct Mapped<T> {
    base: NonNull<T>,
    len: usize,
    kind: PhantomData<T>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and its contents are plain numbers.
unsafe impl<T: Copy + Send> Send for Mapped<T> {}

impl<T: Copy> Mapped<T> {
    /// Map an array that was created with BPF_F_MMAPABLE and elements of the size of `T`.
    pub fn new(fd: BorrowedFd<'_>, len: usize, what: &str) -> Result<Self, ProbeError> {
        let bytes = len * std::mem::size_of::<T>();
        // SAFETY: a new shared mapping of an open descriptor; the kernel checks the length.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast::<T>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Self {
                base,
                len,
                kind: PhantomData,
            }),
            _ => Err(ProbeError::io(format!("mapping {what}"))(
                std::io::Error::last_os_error(),
            )),
        }
    }

    /// Address of element `index`.
    pub fn at(&self, index: usize) -> *mut T {
        assert!(index < self.len);
        // SAFETY: inside the mapping, just checked.
        unsafe { self.base.as_ptr().add(index) }
    }

    /// Copy of element `index`, also during a write by the programs.
    pub fn read(&self, index: usize) -> T {
        // SAFETY: a valid, aligned address; T is plain numbers, so any bytes are valid.
        unsafe { ptr::read_volatile(self.at(index)) }
    }

    /// Bytes of `count` elements from `index`. The programs must not write these meanwhile.
    pub fn bytes(&self, index: usize, count: usize) -> &[u8] {
        assert!(index + count <= self.len);
        // SAFETY: inside the mapping; the programs do not write here until the tail has passed.
        unsafe {
            std::slice::from_raw_parts(
                self.base.as_ptr().add(index).cast(),
                count * std::mem::size_of::<T>(),
            )
        }
    }

    /// Set the first `count` elements to zero bytes.
    pub fn clear(&self, count: usize) {
        assert!(count <= self.len);
        // SAFETY: inside the mapping; called while disarmed.
        unsafe { ptr::write_bytes(self.base.as_ptr(), 0, count) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: a mapping owned by this process, without borrows that outlive this value.
        unsafe {
            libc::munmap(
                self.base.as_ptr().cast(),
                self.len * std::mem::size_of::<T>(),
            )
        };
    }
}
