//! Open files and the versions that they read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::core::Core;
use crate::error::Result;
use crate::map::Map;
use crate::nodes::Node;

/// Number of chunks of a file that stay in memory. Readers of small pieces need the same chunk several times.
const CACHED_CHUNKS: usize = 4;

struct View {
    map: Option<Arc<Map>>,
    /// Number of commits after which `map` was current.
    commits: u64,
    /// Index and content of the last chunks.
    chunks: VecDeque<(usize, Arc<Vec<u8>>)>,
}

/// A file that a program has opened.
pub(crate) struct OpenFile {
    pub(crate) node: Arc<Node>,
    /// True if the handle is open for writing.
    pub(crate) writes: bool,
    view: Mutex<View>,
}

impl OpenFile {
    /// Create a file that reads `map`, which was current after `commits` commits.
    pub(crate) fn new(node: Arc<Node>, writes: bool, map: Option<Arc<Map>>, commits: u64) -> Self {
        OpenFile {
            node,
            writes,
            view: Mutex::new(View {
                map,
                commits,
                chunks: VecDeque::new(),
            }),
        }
    }

    /// True if the map is current after `commits` commits. A handle that is only for reading stays at its version.
    pub(crate) fn is_current(&self, commits: u64) -> bool {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.map.is_some() && (!self.writes || view.commits == commits)
    }

    /// Version that the file reads.
    pub(crate) fn map(&self) -> Option<Arc<Map>> {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.map.clone()
    }

    /// Size of this version in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.map.as_ref().map_or(0, |map| map.size_bytes())
    }

    /// Set the version that the file reads.
    pub(crate) fn set_map(&self, map: Arc<Map>, commits: u64) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = View {
            map: Some(map),
            commits,
            chunks: VecDeque::new(),
        };
    }

    /// Read up to `size` bytes at `offset`. Error: a chunk is missing or damaged.
    pub(crate) fn read(&self, core: &Core, mut offset: u64, size: usize) -> Result<Vec<u8>> {
        let map = {
            let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
            view.map.clone()
        };
        let Some(map) = map else {
            return Ok(Vec::new());
        };
        let mut content = Vec::with_capacity(size);
        while content.len() < size {
            let Some((index, begin)) = map.chunk_at(offset) else {
                break;
            };
            let chunk = self.chunk(core, &map, index)?;
            let from = (offset - begin) as usize;
            let to = chunk.len().min(from + size - content.len());
            content.extend_from_slice(&chunk[from..to]);
            offset += (to - from) as u64;
        }
        Ok(content)
    }

    fn chunk(&self, core: &Core, map: &Arc<Map>, index: usize) -> Result<Arc<Vec<u8>>> {
        let cached = {
            let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
            let same = view.map.as_ref().is_some_and(|own| Arc::ptr_eq(own, map));
            let mut chunks = view.chunks.iter().filter(|_| same);
            chunks
                .find(|(of, _)| *of == index)
                .map(|(_, it)| it.clone())
        };
        if let Some(chunk) = cached {
            return Ok(chunk);
        }
        let chunk = Arc::new(core.chunk(map.naming, &map.entries()[index])?);
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if view.map.as_ref().is_some_and(|own| Arc::ptr_eq(own, map)) {
            view.chunks.push_back((index, chunk.clone()));
            if view.chunks.len() > CACHED_CHUNKS {
                view.chunks.pop_front();
            }
        }
        Ok(chunk)
    }
}
