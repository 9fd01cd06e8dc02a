//! What serving a request takes: the open file, what is read of it, a buffer.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use crate::faults::Place;
use crate::inode::Inode;

/// Buffers kept for reuse.
const SPARE_BUFFERS: usize = 64;

/// A file that a program has open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) inode: Arc<Inode>,
    pub(crate) file_id: u32,
    /// Writes go into the page cache, and the file may be longer there than here.
    pub(crate) cached_writer: bool,
}

/// What is read, by whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) pid: u32,
    pub(crate) arrival_ns: u64,
}

/// Buffers for reads, reused.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    pub(crate) fn take(&self, size: usize) -> Vec<u8> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = spare.iter().rposition(|buffer| buffer.capacity() >= size);
        let mut buffer = match fits {
            Some(index) => spare.swap_remove(index),
            None => Vec::with_capacity(size.max(4096)),
        };
        drop(spare);
        buffer.clear();
        buffer
    }

    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    }
}

/// Where on the disk a request goes.
pub(crate) fn place<'a>(path: &'a str, inode: &Inode, offset: u64, visit: u32) -> Place<'a> {
    Place {
        path,
        base: inode.device_base,
        offset,
        visit,
    }
}
