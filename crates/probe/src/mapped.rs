//! A BPF array map in our memory: what the programs write is there without a system call.

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

// SAFETY: a mapping belongs to the process, not to a thread, and what lies in it is plain numbers.
unsafe impl<T: Copy + Send> Send for Mapped<T> {}

impl<T: Copy> Mapped<T> {
    /// Maps an array made with BPF_F_MMAPABLE, whose element size is that of `T`.
    pub fn new(fd: BorrowedFd<'_>, len: usize, what: &str) -> Result<Self, ProbeError> {
        let bytes = len * std::mem::size_of::<T>();
        // SAFETY: a fresh shared mapping of a descriptor we hold; the kernel checks the length.
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

    /// Where element `index` is.
    pub fn at(&self, index: usize) -> *mut T {
        assert!(index < self.len);
        // SAFETY: inside the mapping, just checked.
        unsafe { self.base.as_ptr().add(index) }
    }

    /// A copy of element `index`, which the programs may be writing.
    pub fn read(&self, index: usize) -> T {
        // SAFETY: a valid, aligned address; T is plain numbers, so any bytes will do.
        unsafe { ptr::read_volatile(self.at(index)) }
    }

    /// The bytes of `count` elements from `index` on; the programs must not be writing those.
    pub fn bytes(&self, index: usize, count: usize) -> &[u8] {
        assert!(index + count <= self.len);
        // SAFETY: inside the mapping; left alone by the programs until the tail passes them.
        unsafe {
            std::slice::from_raw_parts(
                self.base.as_ptr().add(index).cast(),
                count * std::mem::size_of::<T>(),
            )
        }
    }

    /// Sets all elements up to `count` to zero bytes.
    pub fn clear(&self, count: usize) {
        assert!(count <= self.len);
        // SAFETY: inside the mapping; called while disarmed.
        unsafe { ptr::write_bytes(self.base.as_ptr(), 0, count) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing borrowed from it outlives us.
        unsafe {
            libc::munmap(
                self.base.as_ptr().cast(),
                self.len * std::mem::size_of::<T>(),
            )
        };
    }
}
