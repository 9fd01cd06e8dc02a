//! Open files, parameters of a read, and read buffers.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use crate::faults::Place;
use crate::handle::Key;
use crate::inode::{Identity, Inodes};

/// Maximum number of spare buffers.
const SPARE_BUFFERS: usize = 64;

/// A file that a program has open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) id: Identity,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) file_id: u32,
    /// True if writes go into the page cache, where the file may be longer than the backing file.
    pub(crate) cached_writer: bool,
}

impl OpenFile {
    /// Path of the file relative to the mount.
    pub(crate) fn path(&self) -> String {
        self.inodes.path(self.id.number)
    }
}

/// Handles of one file.
#[derive(Debug, Default, Clone, Copy)]
struct Uses {
    open: usize,
    cached_writers: usize,
}

/// Open files by handle.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    by_handle: HashMap<u64, Arc<OpenFile>>,
    uses: HashMap<Key, Uses>,
}

impl OpenFiles {
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.by_handle.get(&handle).cloned()
    }

    pub(crate) fn insert(&mut self, handle: u64, open: Arc<OpenFile>) {
        let uses = self.uses.entry(open.id.key).or_default();
        uses.open += 1;
        uses.cached_writers += usize::from(open.cached_writer);
        self.by_handle.insert(handle, open);
    }

    pub(crate) fn remove(&mut self, handle: u64) -> Option<Arc<OpenFile>> {
        let open = self.by_handle.remove(&handle)?;
        if let Some(uses) = self.uses.get_mut(&open.id.key) {
            uses.open -= 1;
            uses.cached_writers -= usize::from(open.cached_writer);
            if uses.open == 0 {
                self.uses.remove(&open.id.key);
            }
        }
        Some(open)
    }

    /// True if the file is open.
    pub(crate) fn is_open(&self, file: Key) -> bool {
        self.uses.contains_key(&file)
    }

    /// True if the file may be longer in the page cache than in the backing file.
    pub(crate) fn has_cached_writer(&self, file: Key) -> bool {
        let uses = self.uses.get(&file);
        uses.is_some_and(|uses| uses.cached_writers > 0)
    }
}

/// Parameters of a read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) pid: u32,
    pub(crate) arrival_ns: u64,
}

/// Reusable read buffers.
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

/// Location of a request on the disk.
pub(crate) fn place(path: &str, file: Identity, offset: u64, visit: u32) -> Place<'_> {
    Place {
        path,
        base: file.device_base,
        offset,
        visit,
    }
}
